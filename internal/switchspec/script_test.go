package switchspec

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	"github.com/mcrdma/mcrdma/pkg/bifurcation"
)

// TestScripts runs testdata: "have" and "want" set the two states, a line for each
// entity, and print what changes lead from one to the other.
func TestScripts(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		var have, want State
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			s := &State{}
			for line := range strings.Lines(d.Input) {
				e, err := parse(line)
				if err == nil {
					err = s.Put(e)
				}
				if err != nil {
					return err.Error() + "\n"
				}
			}
			switch d.Cmd {
			case "have":
				have = *s
				return ""
			case "want":
				want = *s
				out := lines(slices.Values(Diff(&have, &want)))
				if err := want.Check(); err != nil {
					out += err.Error() + "\n"
				}
				return out
			}
			t.Fatalf("no such command: %s", d.Cmd)
			return ""
		})
	})
}

func parse(line string) (Entity, error) {
	kind, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
	scan := func(args ...any) error {
		_, err := fmt.Sscan(strings.ReplaceAll(rest, "/", " "), args...)
		return err
	}
	var a, b string
	ip := func(s string) netip.Addr { x, _ := netip.ParseAddr(s); return x }
	switch kind {
	case "pre": // ID port/instance…
		var g PREGroup
		words := strings.Fields(rest)
		if _, err := fmt.Sscan(words[0], &g.ID); err != nil {
			return nil, err
		}
		for _, w := range words[1:] {
			var r PREReplica
			if _, err := fmt.Sscanf(w, "%d/%d", &r.Port, &r.Instance); err != nil {
				return nil, err
			}
			g.Replicas = append(g.Replicas, r)
		}
		return g, nil
	case "branch": // group/rid dst next-hop
		var r Replica
		err := scan(&r.Group, &r.RID, &a, &r.NextHop)
		r.Dst = ip(a)
		return r, err
	case "receiver": // group/rid dst QPN next-hop
		r := Replica{Rewrite: bifurcation.Rewrite{Last: true}}
		err := scan(&r.Group, &r.RID, &a, &r.QPN, &r.NextHop)
		r.Dst = ip(a)
		return r, err
	case "region": // group/rid rkey first last offset rkey
		var r Region
		err := scan(&r.Group, &r.RID, &r.RKey, &r.First, &r.Last, &r.Offset, &r.NewRKey)
		return r, err
	case "match": // src MC_ID dst group first-PRE PRE-groups
		var m Match
		err := scan(&a, &m.MCID, &b, &m.Group, &m.FirstPRE, &m.PREGroups)
		m.Src, m.Dst = ip(a), ip(b)
		return m, err
	case "merge": // slot members epoch
		g := MergeGroup{Source: ip("10.0.0.1")}
		err := scan(&g.Slot, &g.Members, &g.Epoch)
		return g, err
	case "member": // src dst slot index
		m := MergeMember{DestQP: 77}
		err := scan(&a, &b, &m.Slot, &m.Index)
		m.Src, m.Dst = ip(a), ip(b)
		return m, err
	case "neighbor": // next-hop
		var n Neighbor
		err := scan(&n.NextHop)
		return n, err
	case "hop": // next-hop port
		var h NextHop
		err := scan(&h.ID, &h.Port)
		return h, err
	case "route": // dst next-hop, of /32
		r := Route{To: ToNextHop}
		err := scan(&a, &r.Number)
		r.Dst = netip.PrefixFrom(ip(a), 32)
		return r, err
	}
	return nil, fmt.Errorf("no such entity: %s", kind)
}
