package planner

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/mcrdma/mcrdma/pkg/bifurcation"
)

// TestOrder: what is done at the same time, for each kind of change that succeeds.
func TestOrder(t *testing.T) {
	r := []bifurcation.Receiver{{Addr: netip.MustParseAddr("10.0.0.1"), QPN: 1}, {Addr: netip.MustParseAddr("10.0.0.2"), QPN: 2}}
	one, other := Branch{Next: "s1", Dst: r[0].Addr}, Branch{Next: "s2", Dst: r[1].Addr}
	held := Branches{one: r}
	for _, c := range []struct {
		name   string
		change Change
		want   [][]Kind
	}{
		{"nothing", Change{Copies: true}, [][]Kind{}},
		{"the record only", Change{Copies: true, Record: true}, [][]Kind{{Record}}},
		{"entries only", Change{Copies: true, Fresh: true, Record: true, Was: held, Next: held, Receivers: r}, [][]Kind{{Record, Turn}}},
		{"merging", Change{Copies: true, Fresh: true, Merging: true, Record: true, Was: held, Next: held, Receivers: r}, [][]Kind{{Record}, {Turn}}},
		{"merging only", Change{Copies: true, Merging: true}, [][]Kind{{Turn}}},
		{"no copies any more", Change{Fresh: true, Record: true}, [][]Kind{{Record}, {Route}, {Turn}}},
		{"no copies as before", Change{}, [][]Kind{{Route}}},
		{"a new branch", Change{Copies: true, Fresh: true, Next: held, Receivers: r}, [][]Kind{{Early, Hold}, {Turn}}},
		{"a new branch of a step that packets do not reach", Change{Copies: true, Fresh: true, Unreached: true, Record: true, Next: held, Receivers: r}, [][]Kind{{Record, Turn, Hold}}},
		{"a new branch of a merging that packets do not reach", Change{Copies: true, Fresh: true, Unreached: true, Merging: true, Record: true, Next: held, Receivers: r},
			[][]Kind{{Record, Hold}, {Turn}}},
		{"a new branch, the same entries", Change{Copies: true, Next: held, Receivers: r}, [][]Kind{{Hold}, {Turn}}},
		{"a new branch, no copies", Change{Fresh: true, Next: held, Receivers: r}, [][]Kind{{Hold}, {Route}, {Turn}}},
		{"told again", Change{Copies: true, Again: true, Was: held, Next: held, Receivers: r}, [][]Kind{{Hold}, {Turn}}},
		{"a branch that moves", Change{Copies: true, Fresh: true, Was: held, Next: Branches{other: r}, Receivers: r}, [][]Kind{{Early, Hold}, {Turn}, {Drain}, {Release}}},
		{"fewer receivers", Change{Copies: true, Fresh: true, Was: held, Next: Branches{one: r[:1]}, Receivers: r[:1]}, [][]Kind{{Early, Hold}, {Turn}}},
		{"receivers that move away", Change{Copies: true, Fresh: true, Was: held, Next: Branches{one: r[:1], other: r[1:]}, Receivers: r},
			[][]Kind{{Early, Hold}, {Turn}, {Drain}, {Hold}}},
		{"a branch that leaves with its receiver", Change{Copies: true, Fresh: true, Was: Branches{one: r[:1], other: r[1:]}, Next: Branches{one: r[:1]}, Receivers: r[:1]},
			[][]Kind{{Turn}, {Release}}},
		{"a branch that moves as members change", Change{Copies: true, Fresh: true, Merging: true, Was: held, Next: Branches{other: r[1:]}, Receivers: r[1:]},
			[][]Kind{{Early, Hold}, {Turn}, {Release}}},
	} {
		tr := Begin(c.change)
		got := [][]Kind{}
		for list := tr.Take(); len(list) > 0; list = tr.Take() {
			var kinds []Kind
			for _, a := range list {
				kinds = append(kinds, a.Kind)
				tr.Done(a.ID, nil)
			}
			got = append(got, kinds)
		}
		if tr.State() != Ended || tr.Err() != nil || tr.Behind() || !slices.EqualFunc(got, c.want, slices.Equal) {
			t.Errorf("%s: %v, want %v; state %v, %v", c.name, got, c.want, tr.State(), tr.Err())
		}
	}
}

// TestSame: receivers are the same if all that is known of them is.
func TestSame(t *testing.T) {
	is := bifurcation.Receiver{Addr: netip.MustParseAddr("10.0.0.1"), QPN: 1, Regions: []bifurcation.Region{{RKey: 1}}}
	if !Same(is, is) {
		t.Error("it is not itself")
	}
	for _, change := range []func(r *bifurcation.Receiver){
		func(r *bifurcation.Receiver) { r.Addr = netip.MustParseAddr("10.0.0.2") },
		func(r *bifurcation.Receiver) { r.QPN = 2 },
		func(r *bifurcation.Receiver) { r.Regions = nil },
	} {
		other := is
		if change(&other); Same(is, other) || Equal([]bifurcation.Receiver{is}, []bifurcation.Receiver{other}) {
			t.Errorf("%+v is %+v", other, is)
		}
	}
}
