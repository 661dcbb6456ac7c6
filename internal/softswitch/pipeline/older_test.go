package pipeline

import (
	"math/big"
	"testing"

	"github.com/mcrdma/mcrdma/internal/softswitch/match"
	"github.com/mcrdma/mcrdma/internal/softswitch/program"
)

// TestJoinedKey looks a key of two parts up in a value set that has one.
func TestJoinedKey(t *testing.T) {
	v := newValueSet(&program.ValueSet{Name: "v", Bits: []int{16}})
	if err := v.Set([][]match.Field{{{Value: match.FromBig(big.NewInt(2<<13|5), 16)}}}); err != nil {
		t.Fatal(err)
	}
	c := &compiler{p: &Pipeline{state: &state{valueSets: []*ValueSet{v}}}}
	k := c.wordsCase(&program.Case{ValueSet: 0}, []int{3, 13})
	if !k.set.has([]uint64{2, 5}) || k.set.has([]uint64{5, 2}) || k.set.has([]uint64{2, 6}) {
		t.Error("the parts are joined in another way")
	}
	k = c.wordsCase(&program.Case{ValueSet: 0}, []int{16})
	if !k.set.has([]uint64{2<<13 | 5}) {
		t.Error("one part is not found")
	}
}

// TestEqualVarbits compares varbit fields as numbers, as bmv2 does, even if their lengths differ.
func TestEqualVarbits(t *testing.T) {
	prog := tiny()
	prog.Headers = append(prog.Headers, prog.Headers[1])
	p, err := New(prog, Options{})
	if err != nil {
		t.Fatal(err)
	}
	c := newCompiler(p, p.lay, prog)
	same := c.cond(&program.Expr{Op: program.OpEqVar, Left: field(1, 1, 64), Right: field(3, 1, 64), Bool: true})
	pk := p.pool.packet()
	p.fresh(pk)
	pk.buf = &buffer{b: []byte{0, 0, 7, 7, 0}}
	for _, x := range []struct {
		a, b uint64 // offset and length
		same bool
	}{{0, 0, true}, {2<<varOffset | 1, 0<<varOffset | 3, true}, {2<<varOffset | 1, 3<<varOffset | 1, true}, {2<<varOffset | 2, 3<<varOffset | 2, false},
		{0, 0<<varOffset | 2, true}, {0, varZeros | 4, true}, {2<<varOffset | 1, 0, false}} {
		pk.w[p.lay.heads[1].varb], pk.w[p.lay.heads[3].varb] = x.a, x.b
		if same(pk) != x.same {
			t.Errorf("%#x and %#x: %v", x.a, x.b, !x.same)
		}
	}
}
