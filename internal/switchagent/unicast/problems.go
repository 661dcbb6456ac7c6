package unicast

import "fmt"

func (s *set) problem(format string, args ...any) {
	s.problems = append(s.problems, fmt.Sprintf(format, args...))
}

// problems counts routes by what is wrong with them.
type problems map[string]problem

type problem struct {
	routes int
	first  prefix
}

// none stands for a prefix where the problem is not of a single route.
const none = ^prefix(0)

func (p problems) add(cause string, at prefix) {
	q, ok := p[cause]
	if !ok || at < q.first {
		q.first = at
	}
	q.routes++
	p[cause] = q
}
