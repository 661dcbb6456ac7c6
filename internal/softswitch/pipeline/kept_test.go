package pipeline

import (
	"testing"

	"github.com/mcrdma/mcrdma/internal/softswitch/program"
)

// TestKept: packets need not keep a metadata field that each action writes before it reads it, and nothing else does.
func TestKept(t *testing.T) {
	const m, x = 3, 1
	set := program.Stmt{Op: program.StAssign, Dst: field(m, x, 16), X: field(0, 0, 8)}
	get := program.Stmt{Op: program.StAssign, Dst: field(0, 1, 8), X: field(m, x, 16)}
	more := program.Stmt{Op: program.StAssign, Dst: field(m, x, 16), X: binaryOf(program.OpAdd, field(m, x, 16), constant(1, 16), 16)}
	jump := program.Stmt{Op: program.StJumpIfZero, X: field(0, 0, 8), N: 2}
	for _, c := range []struct {
		what   string
		bodies [][]program.Stmt
		kept   bool
	}{
		{"written, then read", [][]program.Stmt{{set, get, more}, {set, get}}, false},
		{"only written", [][]program.Stmt{{set}}, false},
		{"read first", [][]program.Stmt{{get, set}}, true},
		{"read to be written", [][]program.Stmt{{more, get}}, true},
		{"written by another action", [][]program.Stmt{{set}, {get}}, true},
		{"perhaps not written", [][]program.Stmt{{jump, set, get}}, true},
	} {
		prog := tiny()
		unused := program.Field{Name: "unused", Bits: 16 * 64} // more than what is sooner copied than left out
		prog.Headers = append(prog.Headers, program.Header{Name: "n", Metadata: true, Bits: 32*64 + 16,
			Fields: []program.Field{unused, {Name: "x", Bits: 16}, unused}, Stack: program.None})
		prog.Actions = nil
		for _, b := range c.bodies {
			prog.Actions = append(prog.Actions, program.Action{Name: "a", Body: b})
		}
		p, err := New(prog, Options{})
		if err != nil {
			t.Fatal(c.what, err)
		}
		w, kept := p.lay.heads[m].slots[x].w, false
		for _, r := range p.kept {
			kept = kept || r[0] <= w && w < r[1]
		}
		if kept != c.kept {
			t.Errorf("%s: kept is %t: %v", c.what, kept, p.kept)
		}
	}
}
