package fabric

import (
	"fmt"
	"testing"

	"github.com/mcrdma/mcrdma/internal/testenv"
)

// A groupCase is sets of hosts in a fabric that become groups.
type groupCase struct {
	name string
	spec Spec
	sets [][]string // the sender first
	most int        // copies of a packet on one wire
}

// TestGroups: groups of 2, 3 and 7 receivers in other racks and in the sender's own.
func TestGroups(t *testing.T) {
	groups(t,
		groupCase{"figure3", Figure3(), [][]string{{"A1", "B1", "D1"}, {"A1", "D1", "A2"}, {"C2", "A1", "B2", "D1"},
			{"B1", "A1", "A2", "B2", "C1", "C2", "D1", "D2"}}, 3},
		groupCase{"leafspine", LeafSpine(3, 2, 3), [][]string{{"h1-1", "h2-1", "h3-1"}, {"h1-1", "h2-1", "h2-2", "h3-1"}}, 1})
}

func TestGroupsWithoutRace(t *testing.T) {
	testenv.WithoutRace(t, long)
	groups(t,
		groupCase{"fattree", FatTree(4), [][]string{{"h1-1-1", "h1-1-2", "h1-2-1"}, {"h1-1-1", "h2-1-1", "h3-2-2", "h3-2-1"},
			{"h4-2-2", "h1-1-1", "h1-1-2", "h1-2-1", "h2-1-1", "h3-1-2", "h4-1-1", "h4-2-1"}}, 1})
}

func groups(t *testing.T, cases ...groupCase) {
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			f := Start(t, c.spec)
			var all []*Group
			check := func(g *Group) {
				f.CheckDelivery(g)
				f.CheckAcks(g)
				f.CheckFlows(g)
				f.CheckDelivery(g)
				f.CheckAcks(g)
				if p := f.Problems(g); p != nil {
					t.Error(p)
				}
				if most := f.Walk(g, 5).Most(); most > c.most {
					t.Errorf("group from %s: %d copies on one wire, want %d at most", g.Sender, most, c.most)
				}
			}
			for _, s := range c.sets {
				t.Run(fmt.Sprint(s), func(t *testing.T) {
					g := f.Group(s[0], s[1:]...)
					f.Install(g)
					check(g)
					f.CheckTrees(0)
					f.Remove(g)
					f.CheckLeftovers(0)
				})
				all = append(all, f.Group(s[0], s[1:]...))
			}
			for _, g := range all {
				f.Install(g)
			}
			for i, g := range all {
				check(g)
				f.Remove(g)
				f.CheckTrees(0)
				for _, o := range all[i+1:] {
					f.CheckDelivery(o)
				}
			}
			f.CheckLeftovers(0)
		})
	}
}
