package pipeline

import (
	"errors"
	"math/big"
	"strings"
	"testing"

	"github.com/mcrdma/mcrdma/internal/softswitch/program"
)

// tiny is a program with a header, a metadata struct and an action, and nothing
// else.
func tiny() *program.Program {
	var std program.Std
	for i := range std {
		std[i] = program.NoField
	}
	return &program.Program{
		Headers: []program.Header{
			{Name: "h", Bits: 16, Fields: []program.Field{{Name: "a", Bits: 8}, {Name: "b", Bits: 8}}, Stack: program.None},
			{Name: "v", Bits: 4, Fields: []program.Field{{Name: "a", Bits: 4}, {Name: "d", Bits: 64, Var: true}}, Stack: program.None},
			{Name: "m", Metadata: true, Bits: 208, Fields: []program.Field{{Name: "x", Bits: 16}, {Name: "w", Bits: 128}, {Name: "y", Bits: 64}}, Stack: program.None},
		},
		Parser: program.Parser{States: []program.State{{Cases: []program.Case{{Default: true, Next: program.Accept}}}}},
		Actions: []program.Action{{
			Name: "a", Source: program.Source{File: "tiny.p4", Line: 12},
		}},
		Std: std,
	}
}

func field(h, f, bits int) *program.Expr {
	return &program.Expr{Op: program.OpField, Field: program.FieldRef{Header: h, Field: f}, Bits: bits}
}

func constant(v int64, bits int) *program.Expr {
	return &program.Expr{Op: program.OpConst, Const: big.NewInt(v), Bits: bits}
}

func binaryOf(op program.Op, l, r *program.Expr, bits int) *program.Expr {
	return &program.Expr{Op: op, Left: l, Right: r, Bits: bits}
}

// TestRefused compiles what cannot run. Most of it never gets past Load.
func TestRefused(t *testing.T) {
	assign := func(x *program.Expr) func(*program.Program) {
		return func(p *program.Program) {
			p.Actions[0].Body = []program.Stmt{{Op: program.StAssign, Dst: field(2, 1, 128), X: x}}
		}
	}
	for _, c := range []struct {
		what string
		edit func(*program.Program)
		says string
	}{
		{"a product of more than 64 bits", assign(binaryOf(program.OpMul, field(2, 1, 128), constant(3, 2), 130)), "more than 64 bits"},
		{"a shift by a variable of more than 64 bits", assign(binaryOf(program.OpShl, field(2, 1, 128), field(2, 0, 16), 0)), "shift"},
		{"an order of more than 64 bits", func(p *program.Program) {
			x := binaryOf(program.OpLt, field(2, 1, 128), constant(3, 2), 1)
			x.Bool = true
			p.Actions[0].Body = []program.Stmt{{Op: program.StAssert, X: x}}
		}, "order"},
		{"a validity assigned", func(p *program.Program) {
			p.Actions[0].Body = []program.Stmt{{Op: program.StAssign, Dst: field(0, program.Valid, 1), X: constant(1, 1)}}
		}, "validity"},
		{"a statement of the parser in an action", func(p *program.Program) {
			p.Actions[0].Body = []program.Stmt{{Op: program.StExtract, Head: 0}}
		}, "statement"},
		{"a header that is not of whole bytes", func(p *program.Program) { p.Deparser = []int{1} }, "whole bytes"},
		{"a varbit header extracted without a length", func(p *program.Program) {
			p.Parser.States[0].Ops = []program.Stmt{{Op: program.StExtract, Head: 1}}
		}, "whole bytes"},
		{"a length for a header without a varbit field", func(p *program.Program) {
			p.Parser.States[0].Ops = []program.Stmt{{Op: program.StExtractVar, Head: 0, X: constant(8, 4)}}
		}, "without a varbit field"},
		{"a varbit field in a field list", func(p *program.Program) {
			p.FieldLists = []program.FieldList{{Fields: []program.FieldRef{{Header: 1, Field: 1}}}}
		}, "field list"},
		{"a circle", func(p *program.Program) {
			p.Ingress = program.Node{Kind: program.NodeConditional}
			p.Conditionals = []program.Conditional{{Cond: &program.Expr{Op: program.OpBool, Const: big.NewInt(1), Bool: true}, True: p.Ingress}}
		}, "circles"},
	} {
		prog := tiny()
		c.edit(prog)
		p, err := New(prog, Options{})
		if err == nil {
			t.Errorf("%s: accepted", c.what)
			continue
		}
		if p != nil || !errors.Is(err, ErrUnsupported) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", c.what, err)
		}
		if len(prog.Actions[0].Body) > 0 && !strings.Contains(err.Error(), "tiny.p4:12") {
			t.Errorf("%s: %v does not say where", c.what, err)
		}
	}
	if _, err := New(tiny(), Options{}); err != nil {
		t.Fatal("the program without any of that:", err)
	}
}

// TestWideAssert asserts numbers of more than 64 bits.
func TestWideAssert(t *testing.T) {
	for _, bit := range []uint{3, 100} {
		prog := tiny()
		prog.Actions[0].Body = []program.Stmt{
			{Op: program.StAssign, Dst: field(2, 1, 128), X: &program.Expr{Op: program.OpConst, Const: new(big.Int).Lsh(big.NewInt(1), bit), Bits: 128}},
			{Op: program.StAssert, X: field(2, 1, 128)},
		}
		prog.Tables = []program.Table{{
			Name: "t", Actions: []int{0}, Next: make([]program.Node, 1), Counter: program.None, Meter: program.None, Profile: program.None,
			Default: &program.DefaultEntry{Call: program.Call{}, ConstAction: true, ConstEntry: true},
		}}
		prog.Ingress = program.Node{Kind: program.NodeTable}
		p, err := New(prog, Options{})
		if err != nil {
			t.Fatal(err)
		}
		if process(p, []byte{1, 2}); p.Stats().AssertionFailed != 0 {
			t.Errorf("bit %d is set, and the assertion fails", bit)
		}
	}
}

// TestDivision divides, which p4c allows of constants only.
func TestDivision(t *testing.T) {
	prog := tiny()
	prog.Parser.States[0].Ops = []program.Stmt{{Op: program.StExtract, Head: 0}}
	prog.Deparser = []int{0}
	prog.Actions[0].Body = []program.Stmt{
		{Op: program.StAssign, Dst: field(2, 0, 16), X: binaryOf(program.OpMod, field(0, 0, 8), field(0, 1, 8), 8)},
		{Op: program.StAssign, Dst: field(0, 0, 8), X: binaryOf(program.OpDiv, field(0, 0, 8), field(0, 1, 8), 8)},
		{Op: program.StAssign, Dst: field(0, 1, 8), X: field(2, 0, 16)},
	}
	prog.Tables = []program.Table{{
		Name: "t", Actions: []int{0}, Next: make([]program.Node, 1), Counter: program.None, Meter: program.None, Profile: program.None,
		Default: &program.DefaultEntry{Call: program.Call{}, ConstAction: true, ConstEntry: true},
	}}
	prog.Ingress = program.Node{Kind: program.NodeTable}
	p, err := New(prog, Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range [][4]byte{{200, 7, 28, 4}, {5, 9, 0, 5}, {5, 0, 0, 0}} {
		if out := process(p, c[:2]); out[0].frame[0] != c[2] || out[0].frame[1] != c[3] {
			t.Errorf("%d by %d: %v", c[0], c[1], out[0].frame)
		}
	}
	if p.Stats().DivisionByZero != 2 {
		t.Errorf("%+v", p.Stats())
	}
}
