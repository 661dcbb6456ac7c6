package program

import (
	"encoding/json"
	"errors"
	"maps"
	"math/big"
	"math/rand/v2"
	"slices"
	"testing"
)

// FuzzLoad feeds any text.
func FuzzLoad(f *testing.F) {
	for _, name := range samples(f) {
		f.Add(compact(f, name))
	}
	f.Fuzz(func(t *testing.T, text []byte) { checkLoad(t, text) })
}

// compact returns a sample without its places in the source, which are most of it.
func compact(t testing.TB, name string) []byte {
	var tree any
	if err := json.Unmarshal(readSample(t, name), &tree); err != nil {
		t.Fatal(err)
	}
	strip(tree)
	text, err := json.Marshal(tree)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func strip(tree any) {
	switch n := tree.(type) {
	case map[string]any:
		delete(n, "source_info")
		for _, v := range n {
			strip(v)
		}
	case []any:
		for _, v := range n {
			strip(v)
		}
	}
}

// FuzzLoadEdited changes values of a good program's JSON: it takes them away, puts
// others of the same program in their place, or values that are hard to handle.
func FuzzLoadEdited(f *testing.F) {
	var trees [][]byte
	for i, name := range samples(f) {
		trees = append(trees, compact(f, name))
		for seed := range uint64(20) {
			f.Add(uint8(i), uint8(1+seed%3), seed)
		}
	}
	f.Fuzz(func(t *testing.T, sample, edits uint8, seed uint64) {
		var tree any
		if err := json.Unmarshal(trees[int(sample)%len(trees)], &tree); err != nil {
			t.Fatal(err)
		}
		rng := rand.New(rand.NewPCG(seed, 0))
		for range edits {
			tree = disturb(rng, tree)
		}
		text, err := json.Marshal(tree)
		if err != nil {
			t.Fatal(err)
		}
		checkLoad(t, text)
	})
}

// spot is a place in a tree: how to read and write the value there.
type spot struct {
	value  any
	set    func(any)
	remove func()
}

func spots(tree any, list []spot) []spot {
	switch n := tree.(type) {
	case map[string]any:
		for _, k := range slices.Sorted(maps.Keys(n)) { // so that a seed means the same each time
			v := n[k]
			list = append(list, spot{v, func(v any) { n[k] = v }, func() { delete(n, k) }})
			list = spots(v, list)
		}
	case []any:
		for i, v := range n {
			list = append(list, spot{v, func(v any) { n[i] = v }, func() { n[i] = nil }})
			list = spots(v, list)
		}
	}
	return list
}

func disturb(rng *rand.Rand, tree any) any {
	list := spots(tree, nil)
	if len(list) == 0 {
		return tree
	}
	s := list[rng.IntN(len(list))]
	nasty := []any{
		nil, true, false, 0, 1, -1, 2, 64, 65, 1 << 30, 1e300, 0.5, "", "0x", "0x0", "-0x1", "0xffffffffffffffffff",
		"default", "$valid$", "scalars", "ingress", "expression", "header_stack", []any{}, map[string]any{},
	}
	switch rng.IntN(4) {
	case 0:
		s.remove()
	case 1:
		s.set(nasty[rng.IntN(len(nasty))])
	case 2: // a copy: a value must not come to contain itself
		text, err := json.Marshal(list[rng.IntN(len(list))].value)
		if err != nil {
			return tree
		}
		var v any
		if json.Unmarshal(text, &v) == nil {
			s.set(v)
		}
	case 3: // of the same kind, so that it stays well-formed
		other := list[rng.IntN(len(list))].value
		if _, ok := s.value.(string); ok {
			if o, ok := other.(string); ok {
				s.set(o)
			}
		}
		if _, ok := s.value.(float64); ok {
			s.set(float64(rng.IntN(40)))
		}
	}
	return tree
}

// checkLoad checks that a text is refused with a proper error, or gives a program
// whose parts all refer to what exists.
func checkLoad(t *testing.T, text []byte) {
	p, err := Load(text)
	if err != nil {
		var e *LoadError
		if p != nil || !errors.As(err, &e) || e.Construct == "" || e.Reason == "" || len(err.Error()) > 1000 ||
			errors.Is(err, ErrInvalid) == errors.Is(err, ErrUnsupported) {
			t.Fatalf("error %#v", err)
		}
		return
	}
	if p.String() == "" { // which looks up every index
		t.Fatal("no text")
	}
	for _, a := range p.Actions {
		checkBody(t, p, a.Body, a.Params, false)
	}
	for _, s := range p.Parser.States {
		checkBody(t, p, s.Ops, nil, true)
		for _, c := range s.Cases {
			if c.Next < Accept || c.Next >= len(p.Parser.States) {
				t.Fatalf("state %s goes to %d", s.Name, c.Next)
			}
			if !c.Default && c.ValueSet == None && len(c.Values) != len(s.Key) {
				t.Fatalf("state %s compares %d of %d", s.Name, len(c.Values), len(s.Key))
			}
		}
	}
	for _, tab := range p.Tables {
		checkTable(t, p, &tab)
	}
	cells := 0
	for _, r := range p.Registers {
		cells += r.Size * r.Bits
	}
	if cells > 8*maxState {
		t.Fatalf("registers of %d bits", cells)
	}
}

func checkBody(t *testing.T, p *Program, body []Stmt, params []Param, parser bool) {
	for i, s := range body {
		if (s.Op == StJump || s.Op == StJumpIfZero) && (s.N < 0 || s.N > len(body)) {
			t.Fatalf("statement %d jumps to %d", i, s.N)
		}
		if s.Op >= StExtract && !parser {
			t.Fatalf("%v in an action", s.Op)
		}
		for _, e := range append([]*Expr{s.Dst, s.X, s.Y}, s.Exprs...) {
			checkExpr(t, p, e, params, parser)
		}
	}
}

func checkExpr(t *testing.T, p *Program, e *Expr, params []Param, parser bool) {
	if e == nil {
		return
	}
	if e.Op == OpParam && e.Index >= len(params) || e.Op == OpLookahead && !parser || e.Bool && e.Bits != 1 {
		t.Fatalf("expression %+v", e)
	}
	for _, sub := range []*Expr{e.Left, e.Right, e.Cond} {
		checkExpr(t, p, sub, params, parser)
	}
}

func checkTable(t *testing.T, p *Program, tab *Table) {
	if !tab.HitMiss && len(tab.Next) != len(tab.Actions) {
		t.Fatalf("table %s: %d next for %d actions", tab.Name, len(tab.Next), len(tab.Actions))
	}
	calls := []Call{}
	if tab.Default != nil {
		calls = append(calls, tab.Default.Call)
	}
	for _, e := range tab.Entries {
		calls = append(calls, e.Call)
		for i, k := range e.Key {
			for _, v := range []*big.Int{k.Value, k.Mask, k.High} {
				if v != nil && (v.Sign() < 0 || v.BitLen() > tab.Key[i].Bits) {
					t.Fatalf("table %s: key %v", tab.Name, v)
				}
			}
		}
	}
	for _, c := range calls {
		params := p.Actions[c.Action].Params
		if len(params) != len(c.Args) {
			t.Fatalf("table %s: %d arguments for %d parameters", tab.Name, len(c.Args), len(params))
		}
		for i, a := range c.Args {
			if a.Sign() < 0 || a.BitLen() > params[i].Bits {
				t.Fatalf("table %s: argument %v", tab.Name, a)
			}
		}
	}
}
