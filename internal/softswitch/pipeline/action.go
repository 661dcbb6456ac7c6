package pipeline

import (
	"math/big"

	"github.com/mcrdma/mcrdma/internal/softswitch/program"
)

// maxJumps is how often an action may jump backward: more than any sensible program needs, and few
// enough to detect an endless loop soon.
const maxJumps = 1 << 14

// An action is a compiled action.
type action struct {
	run   stmt   // nil: no statements
	body  []stmt // the same statements, if there are no jumps
	exits bool   // it may exit the control
}

// action compiles an action. If consts is not nil, its arguments are always these.
func (c *compiler) action(i int, consts []*big.Int) *action {
	c.enter(i, consts)
	body := c.prog.Actions[i].Body
	a := &action{}
	jumps := false
	for j := range body {
		switch body[j].Op {
		case program.StJump, program.StJumpIfZero:
			jumps = true
		case program.StExit, program.StAssert:
			a.exits = true
		}
	}
	if jumps {
		a.run = c.jumping(body)
		a.body = []stmt{a.run}
		return a
	}
	c.written = map[int]bool{}
	for j := range body {
		a.body = append(a.body, c.stmt(&body[j]))
	}
	c.written = nil
	a.run = sequence(a.body)
	return a
}

// sequence runs statements one after the other.
func sequence(body []stmt) stmt {
	switch len(body) {
	case 0:
		return nil
	case 1:
		return body[0]
	}
	return func(pk *Packet) {
		for _, s := range body {
			s(pk)
		}
	}
}

// A step is a statement of an action with jumps. A jump has no run. It is taken if the test fails,
// or always if there is none.
type step struct {
	run  stmt
	test cond
	to   int
}

// jumping compiles an action with jumps.
func (c *compiler) jumping(body []program.Stmt) stmt {
	steps := make([]step, len(body))
	for i := range body {
		switch s := &body[i]; s.Op {
		case program.StJump:
			steps[i] = step{to: s.N}
		case program.StJumpIfZero:
			c.at(s.Source)
			steps[i] = step{to: s.N, test: c.nonZero(s.X)}
		default:
			steps[i] = step{run: c.stmt(s)}
		}
	}
	st := &c.p.stats
	return func(pk *Packet) {
		back := 0
		for i := 0; i < len(steps); {
			s := &steps[i]
			switch {
			case s.run != nil:
				s.run(pk)
				i++
			case s.test != nil && s.test(pk):
				i++
			default:
				if s.to <= i {
					if back++; back > maxJumps {
						st.EndlessLoop++
						return
					}
				}
				i = s.to
			}
		}
	}
}
