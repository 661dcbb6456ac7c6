package pipeline

import (
	"testing"

	"github.com/mcrdma/mcrdma/internal/softswitch/program"
)

// elem is field 0 or 1 of the element of exprProgram's stack that the first field
// of "from" names.
func elem(f int) *program.Expr {
	return &program.Expr{Op: program.OpStackElem, Index: f, Left: field(2, 2, 8), Bits: elemFields[f]}
}

// externs compiles one statement of exprProgram with externs, to be run on packets
// of which pk's words are the fields.
func externs(t *testing.T, st program.Stmt) (*Pipeline, *Packet, func()) {
	t.Helper()
	prog := exprProgram()
	prog.Registers = []program.Register{{Name: "r", Size: 2, Bits: 64}, {Name: "wide", Size: 2, Bits: 100}}
	prog.Meters = []program.Meter{{Name: "m", Size: 2, Table: program.None}}
	prog.Calculations = []program.Calculation{{Name: "k", Algo: program.Random}}
	prog.Actions[0].Body = []program.Stmt{st}
	p, err := New(prog, Options{Seed: 4})
	if err != nil {
		t.Fatal(err)
	}
	pk := p.pool.packet()
	p.fresh(pk)
	return p, pk, func() { p.actions[0].run(pk) }
}

// TestExternsToElements lets externs write to elements of a stack, which compiled
// programs do by way of a variable, and to none.
func TestExternsToElements(t *testing.T) {
	for _, c := range []struct {
		what string
		st   program.Stmt
		want uint64 // after what was 1<<40 - 1 in the register; of 8 bits
	}{
		{"register", program.Stmt{Op: program.StRegisterRead, Dst: elem(0), X: constant(1, 2)}, 0xff},
		{"random", program.Stmt{Op: program.StRandom, Dst: elem(0), X: constant(5, 8), Y: constant(5, 8)}, 5},
		{"meter", program.Stmt{Op: program.StMeter, Dst: elem(0), X: constant(1, 8)}, 0},
		{"assignment", program.Stmt{Op: program.StAssign, Dst: elem(0), X: constant(0x1ff, 9)}, 0xff},
	} {
		p, pk, run := externs(t, c.st)
		p.registers[0].cells[1] = 1<<40 - 1
		index := p.lay.heads[2].slots[2].w
		e0, e1 := p.lay.heads[3].slots[0].w, p.lay.heads[4].slots[0].w
		pk.w[index], pk.w[e0], pk.w[e1] = 1, 77, 88
		if run(); pk.w[e0] != 77 || pk.w[e1] != c.want {
			t.Errorf("%s: elements %d, %d", c.what, pk.w[e0], pk.w[e1])
		}
		pk.w[index] = 2
		if run(); pk.w[e0] != 77 || pk.w[e1] != c.want || p.Stats().BadStackIndex != 1 {
			t.Errorf("%s: beyond the stack: %d, %d, %+v", c.what, pk.w[e0], pk.w[e1], p.Stats())
		}
	}
}

// TestBadIndices: what is to be read stays as it was.
func TestBadIndices(t *testing.T) {
	for _, st := range []program.Stmt{
		{Op: program.StRegisterRead, Dst: elem(0), X: constant(2, 8)},
		{Op: program.StRegisterRead, Dst: field(2, 5, 32), X: constant(2, 8)},
		{Op: program.StRegisterRead, Dst: field(2, 10, 128), X: constant(2, 8), Register: 1},
		{Op: program.StRegisterWrite, X: constant(2, 8), Y: constant(1, 1), Register: 1},
		{Op: program.StMeter, Dst: field(2, 5, 32), X: constant(2, 8)},
	} {
		p, pk, run := externs(t, st)
		for i := range pk.w {
			if i >= p.meta[0] {
				pk.w[i] = 1
			}
		}
		before := append([]uint64(nil), pk.w...)
		run()
		for i, w := range pk.w {
			if w != before[i] {
				t.Errorf("statement %d: word %d became %#x", st.Op, i, w)
			}
		}
		if p.Stats().BadIndex != 1 {
			t.Errorf("statement %d: %+v", st.Op, p.Stats())
		}
	}
}

// TestWideResults: an extern's number in a field of more than 64 bits.
func TestWideResults(t *testing.T) {
	p, pk, run := externs(t, program.Stmt{Op: program.StHash, Dst: field(2, 10, 128), X: constant(7, 8), Y: constant(0, 8)})
	s := p.lay.heads[2].slots[10]
	pk.w[s.w] = 5
	if run(); pk.w[s.w] != 0 || pk.w[s.w+1] != 7 {
		t.Errorf("hash with a modulus of 0: %#x", pk.w[s.w:s.w+2])
	}
	p, pk, run = externs(t, program.Stmt{Op: program.StHash, Dst: field(2, 7, 64), X: constant(1000, 16), Y: constant(256, 16)})
	if run(); pk.w[p.lay.heads[2].slots[7].w] < 1000 {
		t.Errorf("a hash above 1000 is %d", pk.w[p.lay.heads[2].slots[7].w])
	}
	p, pk, run = externs(t, program.Stmt{Op: program.StHash, Dst: field(2, 7, 64), X: constant(0, 8), Y: constant(256, 16)})
	seen := map[uint64]bool{}
	for range 100 {
		run()
		seen[pk.w[p.lay.heads[2].slots[7].w]] = true
	}
	for v := range seen {
		if v > 255 {
			t.Errorf("%d is not below 256", v)
		}
	}
	if len(seen) < 50 {
		t.Errorf("a random hash gave %d values of 100", len(seen))
	}
	p, pk, run = externs(t, program.Stmt{Op: program.StRegisterRead, Dst: field(2, 8, 65), X: constant(1, 8), Register: 1})
	copy(p.registers[1].wide(1), []uint64{3, 4})
	s = p.lay.heads[2].slots[8]
	if run(); pk.w[s.w] != 1 || pk.w[s.w+1] != 4 {
		t.Errorf("65 bits of a register: %#x", pk.w[s.w:s.w+2])
	}
}

// TestAssignStack copies a stack, element by element.
func TestAssignStack(t *testing.T) {
	prog := exprProgram()
	prog.Stacks = append(prog.Stacks, program.Stack{Name: "s2", Headers: []int{4, 3}})
	prog.Actions[0].Body = []program.Stmt{{Op: program.StAssignStack, Stack: 1, Stack2: 0}}
	p, err := New(prog, Options{})
	if err != nil {
		t.Fatal(err)
	}
	pk := p.pool.packet()
	p.fresh(pk)
	e0, e1 := p.lay.heads[3], p.lay.heads[4]
	pk.w[p.lay.stacks[0].next], pk.w[e0.valid], pk.w[e0.lo], pk.w[e1.lo] = 1, 1, 10, 11
	p.actions[0].run(pk)
	// First e1 becomes e0, valid; then e0 becomes e1, the same.
	if pk.w[p.lay.stacks[1].next] != 1 || pk.w[e1.valid] != 1 || pk.w[e1.lo] != 10 || pk.w[e0.lo] != 10 {
		t.Errorf("next %d, valid %d, %d and %d", pk.w[p.lay.stacks[1].next], pk.w[e1.valid], pk.w[e1.lo], pk.w[e0.lo])
	}
}

// TestAssignInvalid: a header that becomes invalid keeps its fields.
func TestAssignInvalid(t *testing.T) {
	p, pk, run := externs(t, program.Stmt{Op: program.StAssignHeader, Head: 3, Head2: 4})
	d, s := p.lay.heads[3], p.lay.heads[4]
	pk.w[d.valid], pk.w[d.lo], pk.w[s.lo] = 1, 5, 6
	if run(); pk.w[d.valid] != 0 || pk.w[d.lo] != 5 {
		t.Errorf("valid %d, field %d", pk.w[d.valid], pk.w[d.lo])
	}
}

// TestStackSize: elements that are pushed count, up to the stack's size, and less
// when popped.
func TestStackSize(t *testing.T) {
	for _, c := range []struct {
		op   program.StmtOp
		n    int
		from uint64
		want uint64
	}{
		{program.StPush, 1, 0, 1}, {program.StPush, 1, 1, 2}, {program.StPush, 1, 2, 2}, {program.StPush, 9, 0, 2},
		{program.StPop, 1, 2, 1}, {program.StPop, 1, 0, 0}, {program.StPop, 9, 2, 0}, {program.StPush, 0, 1, 1},
	} {
		p, pk, run := externs(t, program.Stmt{Op: c.op, N: c.n})
		next := p.lay.stacks[0].next
		pk.w[next] = c.from
		if run(); pk.w[next] != c.want {
			t.Errorf("statement %d of %d elements, %d before: %d after", c.op, c.n, c.from, pk.w[next])
		}
		size := newCompiler(p, p.lay, p.prog)
		got := size.num(&program.Expr{Op: program.OpStackSize, Bits: 8})(pk)
		last := size.num(&program.Expr{Op: program.OpStackLast, Bits: 8})(pk)
		if got != c.want || last != c.want-1 {
			t.Errorf("size %d, last %d, want %d elements", got, int64(last), c.want)
		}
	}
}
