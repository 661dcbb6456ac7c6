package lab

import (
	"bufio"
	"io"

	"github.com/mcrdma/mcrdma/tests/e2e/orders"
)

// Elsewhere returns an application that the caller has started and ends, given its standard input
// and its standard output.
func Elsewhere(name string, in io.WriteCloser, out io.Reader) *Member {
	m := newMember(&Process{Name: name, In: in, Out: bufio.NewReader(out)})
	m.waiting = map[int]chan orders.Answer{}
	go m.read()
	return m
}
