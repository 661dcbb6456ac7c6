package planning

import (
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/mcrdma/mcrdma/internal/topology"
	"github.com/mcrdma/mcrdma/pkg/bifurcation"
)

// fabric is three leaves with two hosts each, and two spines. leaf3 is not
// programmable.
func fabric(t testing.TB) *Fabric {
	t.Helper()
	var b strings.Builder
	b.WriteString("switches:\n  - {name: spine1, address: 10.255.1.1}\n  - {name: spine2, address: 10.255.1.2}\n")
	for i := 1; i <= 3; i++ {
		fmt.Fprintf(&b, "  - {name: leaf%d, address: 10.255.0.%[1]d, prefixes: [10.%[1]d.0.0/24], programmable: %t}\n", i, i < 3)
	}
	b.WriteString("hosts:\n")
	for i := range 6 {
		fmt.Fprintf(&b, "  - {name: h%d, address: 10.%d.0.%d}\n", i+1, i/2+1, i%2+11)
	}
	b.WriteString("links:\n")
	for i := range 6 {
		fmt.Fprintf(&b, "  - {a: {node: h%d}, b: {node: leaf%d, port: %d}}\n", i+1, i/2+1, i%2+1)
	}
	for leaf := 1; leaf <= 3; leaf++ {
		for spine := 1; spine <= 2; spine++ {
			fmt.Fprintf(&b, "  - {a: {node: spine%d, port: %d}, b: {node: leaf%[2]d, port: %d}}\n", spine, leaf, 8+spine)
		}
	}
	top, err := topology.Parse([]byte(b.String()), "fabric.yaml")
	if err != nil {
		t.Fatal(err)
	}
	return NewFabric(top)
}

func ip(s string) netip.Addr { return netip.MustParseAddr(s) }

func TestFabric(t *testing.T) {
	f := fabric(t)
	if got := f.Uplinks(ip("10.3.0.11")); !slices.Equal(got, []bifurcation.Switch{"leaf3"}) {
		t.Errorf("h5 is at %v", got)
	}
	if got := f.Uplinks(ip("10.3.0.99")); got != nil {
		t.Errorf("an address without a host is at %v", got)
	}
	if f.Programmable("leaf3") || !f.Programmable("leaf1") || f.Programmable("leaf9") {
		t.Error("programmable")
	}
	two := f.NextHops("leaf1", ip("10.2.0.11"))
	want := []bifurcation.Link{{Hop: bifurcation.Hop{NextHop: 9, Port: 9}, To: "spine1"}, {Hop: bifurcation.Hop{NextHop: 10, Port: 10}, To: "spine2"}}
	if !slices.Equal(two, want) {
		t.Errorf("%v", two)
	}
	if got := f.NextHops("leaf2", ip("10.2.0.11")); len(got) != 1 || got[0].To != "" || got[0].Port != 1 {
		t.Errorf("%v", got)
	}
	if got := f.NextHops("leaf1", ip("172.16.0.1")); len(got) != 0 {
		t.Errorf("to an unknown address: %v", got)
	}
	if f.Peer("leaf1", 9) != "spine1" || f.Peer("spine1", 1) != "leaf1" || f.Peer("leaf1", 1) != "h1" || f.Peer("leaf1", 99) != "" {
		t.Error("peers")
	}

	for what, why := range map[string]string{
		"leaf1": "is not A:B", ":": "is not A:B", "leaf1:leaf2": "no link between", "leaf1:99": "no link at port 99",
		"leaf9:spine1": `no switch or host "leaf9"`, "leaf1:x": `no switch or host "x"`, "h1:1": "no link at port 1 of switch h1",
	} {
		if err := f.LinkDown(what); err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("%s: %v, want %s", what, err, why)
		}
	}
	for _, what := range []string{"spine1:leaf1", "h5:leaf3"} {
		if err := f.LinkDown(what); err != nil {
			t.Error(err)
		}
	}
	if got := f.NextHops("leaf1", ip("10.2.0.11")); !slices.Equal(got, want[1:]) {
		t.Errorf("with a link down: %v", got)
	}
	if got := f.Uplinks(ip("10.3.0.11")); len(got) != 0 {
		t.Errorf("h5 is at %v", got)
	}
	if err := f.LinkDown("leaf1:10"); err != nil {
		t.Error(err)
	}
	if got := f.NextHops("leaf1", ip("10.2.0.11")); len(got) != 0 {
		t.Errorf("with both links down: %v", got)
	}
}

func group(source string, receivers ...string) Group {
	return Group{Name: "g", Source: source, Receivers: receivers}
}

func TestPlanFails(t *testing.T) {
	for _, c := range []struct {
		g             Group
		reason, words string
		down          []string
	}{
		{g: group("h9", "h1"), reason: "INVALID", words: `source: "h9" is neither a host`},
		{g: group("h1", "leaf1"), reason: "INVALID", words: `"leaf1" is a switch`},
		{g: group("h1", "10.1.0.99"), reason: "INVALID", words: "receivers: the topology has no host with address 10.1.0.99"},
		{g: Group{Source: "h1", Receivers: []string{"h2"}, Address: "x"}, reason: "INVALID", words: `address: "x"`},
		{g: Group{Source: "h1", Receivers: []string{"h2"}, Regions: new(-1)}, reason: "INVALID", words: "-1 regions"},
		{g: Group{Source: "h1", Receivers: []string{"h2"}, Regions: new(17)}, reason: "INVALID", words: "17 regions: a receiver has 0 to 16"},
		{g: group("h1"), reason: "NO_RECEIVERS"},
		{g: group("h1", "h2", "10.1.0.12"), reason: "DUPLICATE_ADDRESS", words: "h2 (10.1.0.12)"},
		{g: group("h1", "h1"), reason: "SENDER_RECEIVES", words: "h1 (10.1.0.11)"},
		{g: group("h6", "h1", "h5"), reason: "NO_MERGE_POINT", words: "leaf3 is not programmable"},
		{g: group("h1", "h3"), reason: "NO_ROUTE", down: []string{"leaf1:9", "leaf1:10"}},
	} {
		f := fabric(t)
		for _, d := range c.down {
			if err := f.LinkDown(d); err != nil {
				t.Fatal(err)
			}
		}
		r := Plan(f, []Group{c.g, group("h1", "h2")}, Options{})
		p := r.Groups[0]
		if r.Failed != 1 || p.Reason != c.reason || !strings.Contains(p.Error, c.words) || p.Steps != nil || len(r.Groups[1].Steps) == 0 {
			t.Errorf("%v: %d failed, %s, %s", c.g, r.Failed, p.Reason, p.Error)
		}
	}
}

// TestPlanCounts: table use matches the steps, and sums are correct.
func TestPlanCounts(t *testing.T) {
	groups := []Group{group("h1", "h2", "h3", "h4"), group("h2", "h3", "h5"), group("h3", "h1", "h2")}
	groups[1].Regions = new(3)
	groups[2].Address = "h4"
	r := Plan(fabric(t), groups, Options{Sizes: map[string]int64{TableGroups: 1, TableReplicas: 100}})
	if r.Failed != 0 {
		t.Fatalf("%+v", r.Groups)
	}
	want := map[switchTable]int{}
	var copies, unicast float64
	for i, g := range r.Groups {
		copies, unicast = copies+g.Links.Group, unicast+g.Links.Unicast
		want[switchTable{g.MergePoint, TableMergeGroups}]++
		want[switchTable{g.MergePoint, TableMembers}] += len(g.Receivers)
		for _, s := range g.Steps {
			if s.PREGroups == 0 {
				continue
			}
			want[switchTable{s.Switch, TableGroups}]++
			want[switchTable{s.Switch, PREGroups}] += s.PREGroups
			want[switchTable{s.Switch, TableReplicas}] += len(s.Copies)
			for _, c := range s.Copies {
				want[switchTable{s.Switch, PREReplicas}] += len(c.In)
				if c.Last {
					want[switchTable{s.Switch, TableRegions}] += groups[i].regions()
				}
			}
		}
	}
	got := map[switchTable]int{}
	over := 0
	for _, u := range r.Use {
		got[switchTable{u.Switch, u.Table}] = u.Entries
		if u.Over() {
			over++
			if u.Table != TableGroups || u.Entries < 2 {
				t.Errorf("%+v is too small", u)
			}
		}
	}
	if !maps.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	if over == 0 || over != r.Over {
		t.Errorf("%d too small, %d reported", over, r.Over)
	}
	var each, eachUnicast float64
	for _, l := range r.Links.Each {
		each, eachUnicast = each+l.Group, eachUnicast+l.Unicast
	}
	if copies != r.Links.Group || unicast != r.Links.Unicast || each != copies || eachUnicast != unicast || copies >= unicast {
		t.Errorf("%v and %v copies, sums are %v and %v", each, copies, eachUnicast, unicast)
	}
	if g := r.Groups[2]; g.Address != "h4" || g.Steps[len(g.Steps)-1].To != "h4" {
		t.Errorf("connected to h4: %+v", g)
	}
}

func TestLoadGroups(t *testing.T) {
	file := filepath.Join(t.TempDir(), "groups.yaml")
	if _, err := LoadGroups(file); err == nil {
		t.Error("no file")
	}
	for text, want := range map[string]string{
		"": "groups: none", "groups: []": "groups: none", "groups: [{source: a, receiver: b}]": ":1: groups[0].receiver: unknown field",
		"groups: [{name: x}, {name: x}]": `:1: groups[1].name: "x" is taken already, in line 1`, "groups: [{name: x, regions: 17}]": ":1: groups[0].regions: 17: want 0 to 16",
		"groups: [{source: a}]\n---\nx: 1\n": "more than one document", "groups: 7": "groups: want a list",
	} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := LoadGroups(file); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), file) {
			t.Errorf("%q: %v, want %s", text, err, want)
		}
	}
	got, err := ParseGroups([]byte(`{"groups": [{"source": "a", "receivers": ["b", "c"], "regions": 0}, {"name": "n"}]}`), "groups.json")
	if err != nil || got[0].Name != "group 1" || got[0].regions() != 0 || got[1].regions() != 1 || len(got[0].Receivers) != 2 {
		t.Errorf("%+v, %v", got, err)
	}
}

func FuzzParseGroups(f *testing.F) {
	f.Add([]byte("groups:\n  - {name: a, source: h1, receivers: [h2, 10.2.0.11], address: h3, regions: 2}\n"))
	f.Add([]byte("groups: &a [{source: h1, receivers: [h1]}, *a]"))
	fab := fabric(f)
	f.Fuzz(func(t *testing.T, data []byte) {
		groups, err := ParseGroups(data, "groups.yaml")
		if err != nil {
			return
		}
		for i := range groups {
			groups[i].Regions = new(1) // their number takes the time
		}
		r := Plan(fab, groups, Options{})
		if len(r.Groups) != len(groups) {
			t.Errorf("%d plans of %d groups", len(r.Groups), len(groups))
		}
	})
}

func TestNumber(t *testing.T) {
	for x, want := range map[float64]string{0: "0", 1: "1", 10: "10", 0.5: "0.5", 1.0 / 3: "0.33", 2.999: "3", 100: "100"} {
		if got := Number(x); got != want {
			t.Errorf("%v: %s, want %s", x, got, want)
		}
	}
}
