package bifurcation

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"testing"
)

func TestAhead(t *testing.T) {
	fabric := &Topology{}
	for _, s := range []Switch{"a", "p"} {
		must(fabric.AddSwitch(s, true))
	}
	for _, s := range []Switch{"x", "y"} {
		must(fabric.AddSwitch(s, false))
	}
	must(fabric.Connect("a", "x"))
	must(fabric.Connect("x", "y"))
	must(fabric.Connect("x", "p"))
	must(fabric.Connect("y", "p"))
	must(fabric.AddHost(addr(1), "p"))
	must(fabric.AddHost(addr(2), "y"))
	must(fabric.SetRoute("x", addr(2), "y", "p"))

	r, err := Ahead(fabric, "a", addr(2))
	if err != nil || !r.Direct || !slices.Equal(r.Next, []Switch{"p"}) || !slices.Equal(r.Hops, []Hop{{1, 1}}) {
		t.Errorf("%+v, %v", r, err)
	}
	for _, c := range []struct {
		at   Switch
		to   []Switch
		want error
	}{
		{"x", []Switch{"a"}, ErrLoop},      // back to where it began
		{"x", []Switch{"y", "p"}, ErrLoop}, // between those that are looked through
		{"x", nil, ErrNoRoute},
		{"a", nil, ErrNoRoute},
	} {
		must(fabric.SetRoute("y", addr(1), "x"))
		must(fabric.SetRoute(c.at, addr(1), c.to...))
		if r, err := Ahead(fabric, "a", addr(1)); !errors.Is(err, c.want) || r.Hops != nil {
			t.Errorf("%v: %+v, %v; want %v", c, r, err, c.want)
		}
	}
}

// TestManyPaths: a ladder of 60 rungs has 2^60 paths, and is planned all the same.
func TestManyPaths(t *testing.T) {
	for _, prog := range []bool{true, false} {
		fabric := &Topology{}
		name := func(i, side int) Switch { return Switch(fmt.Sprintf("s%d.%d", i, side)) }
		must(fabric.AddSwitch("first", true))
		must(fabric.AddSwitch("last", true))
		for i := range 60 {
			for side := range 2 {
				must(fabric.AddSwitch(name(i, side), prog))
				for before := range 2 {
					if i > 0 {
						must(fabric.Connect(name(i-1, before), name(i, side)))
					}
				}
			}
		}
		for side := range 2 {
			must(fabric.Connect("first", name(0, side)))
			must(fabric.Connect(name(59, side), "last"))
		}
		must(fabric.AddHost(addr(1), "first"))
		must(fabric.AddHost(addr(2), "last"))
		must(fabric.AddHost(addr(3), "last"))
		p, err := Plan(fabric, groupOf([]netip.Addr{addr(1), addr(2), addr(3)}), 0)
		if err != nil {
			t.Fatal(err)
		}
		rules := 0
		for _, s := range p.Steps {
			if !s.Rules.Empty() {
				rules++
			}
		}
		if rules != 1 || p.Steps[0].At != "last" {
			t.Errorf("rules at %d switches, the first step at %q", rules, p.Steps[0].At)
		}
	}
}
