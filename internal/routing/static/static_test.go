package static

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/mcrdma/mcrdma/internal/routing"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// The scripts: "topology" reads a file, "routes", "neighbors" and "hops" ask.
func TestScripts(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		if filepath.Ext(path) != ".txt" {
			return
		}
		var topo *Topology
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			down := Down{}
			if d.HasArg("down") {
				for _, end := range strings.Split(argument(t, d, "down"), ";") {
					sw, port, _ := strings.Cut(end, "/")
					var number uint32
					if _, err := fmt.Sscan(port, &number); err != nil {
						t.Fatal(err)
					}
					id, err := topo.LinkAt(sw, number)
					if err != nil {
						t.Fatal(err)
					}
					down[id] = true
				}
			}
			var b strings.Builder
			switch d.Cmd {
			case "topology":
				var err error
				if topo, err = Parse([]byte(d.Input)); err != nil {
					return err.Error()
				}
				return fmt.Sprintf("%d switches, %d hosts, %d links", len(topo.Switches()), len(topo.Hosts()), len(topo.Links()))
			case "routes":
				routes, err := topo.Routes(argument(t, d, "at"), down)
				for _, r := range routes {
					fmt.Fprintln(&b, r)
				}
				return b.String() + message(err)
			case "neighbors":
				list, err := topo.Neighbors(argument(t, d, "at"), down)
				for _, n := range list {
					fmt.Fprintln(&b, n.Addr, "port", n.Port, n.MAC)
				}
				return b.String() + message(err)
			case "hops":
				hops, err := topo.Hops(argument(t, d, "at"), netip.MustParseAddr(argument(t, d, "to")), down)
				for _, h := range hops {
					fmt.Fprintln(&b, h.Node, h.NextHop)
				}
				return b.String() + message(err)
			}
			t.Fatalf("%s: unknown command %q", d.Pos, d.Cmd)
			return ""
		})
	})
}

func argument(t *testing.T, d *datadriven.TestData, key string) (v string) {
	d.ScanArgs(t, key, &v)
	return v
}

func message(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func TestLoad(t *testing.T) {
	name := filepath.Join(t.TempDir(), "fabric.yaml")
	if _, err := Load(name); !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte("switches:\n- {name: a, colour: 10.0.0.1}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := Load(name)
	var fault *Error
	if !errors.As(err, &fault) || fault.Line != 2 || !strings.HasPrefix(err.Error(), name+":2: ") {
		t.Fatal(err)
	}
	if _, err := Parse(make([]byte, MaxFile+1)); err == nil {
		t.Fatal("a file beyond all bounds passed")
	}
}

func TestSource(t *testing.T) {
	topo, err := Parse([]byte(`
switches: [{name: l1, address: 10.255.0.1}, {name: l2, address: 10.255.0.2}, {name: s1, address: 10.255.1.1}, {name: s2, address: 10.255.1.2, mac: "02:00:00:00:00:05"}]
hosts: [{name: h, address: 10.1.0.1}]
links:
- {a: {node: l1, port: 1}, b: {node: s1, port: 1}}
- {a: {node: l1, port: 2}, b: {node: s2, port: 1}}
- {a: {node: l2, port: 1}, b: {node: s1, port: 2}}
- {a: {node: l2, port: 2}, b: {node: s2, port: 2}}
- {a: {node: l2, port: 3}, b: {node: h}}
`))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := topo.Source("h"); !errors.Is(err, ErrUnknown) {
		t.Fatalf("a host's view: %v", err)
	}
	src, err := topo.Source("l1")
	if err != nil {
		t.Fatal(err)
	}
	var s routing.Source = src
	w := s.Watch()
	if d, err := w.Next(t.Context()); err != nil || len(d.Routes) != 4 || len(d.Neighbors) != 1 {
		t.Fatalf("%+v, %v", d, err)
	}
	h := netip.MustParseAddr("10.1.0.1")
	if r, ok := s.Lookup(h); !ok || r.Hops.String() != "{10.255.1.1 via 1, 10.255.1.2 via 2}" {
		t.Fatal(r, ok)
	}
	for range 2 { // the second time changes nothing
		if err := src.SetLink(1, false); err != nil {
			t.Fatal(err)
		}
	}
	d, err := w.Next(t.Context())
	if err != nil || len(d.Lost) != 1 || len(d.Routes) != 3 {
		t.Fatalf("%+v, %v", d, err)
	}
	if r, _ := s.Lookup(h); r.Hops.String() != "{10.255.1.1 via 1}" {
		t.Fatal(r)
	}
	if err := src.SetLink(4, false); err != nil {
		t.Fatal(err)
	}
	if r, ok := s.Lookup(h); !ok || len(r.Hops) != 0 {
		t.Fatal(r, ok)
	}
	if err := src.SetLink(5, true); !errors.Is(err, ErrUnknown) {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

// Next hops on random fabrics, checked against all-pairs distances computed in
// another way: a hop is correct exactly if it leads one link nearer.
func TestHopsAreShortest(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(2, 9).Draw(t, "switches")
		var b strings.Builder
		fmt.Fprintln(&b, "switches:")
		for i := range n {
			fmt.Fprintf(&b, "- {name: s%d, address: 10.255.0.%d}\n", i, i+1)
		}
		fmt.Fprint(&b, "links:\n")
		type pair struct{ a, b int }
		var links []pair
		down := Down{}
		for i := range rapid.IntRange(1, 20).Draw(t, "links") {
			x, y := rapid.IntRange(0, n-1).Draw(t, "a"), rapid.IntRange(0, n-2).Draw(t, "b")
			if y >= x {
				y++
			}
			fmt.Fprintf(&b, "- {a: {node: s%d, port: %d}, b: {node: s%d, port: %d}}\n", x, i+1, y, i+1)
			links = append(links, pair{x, y})
			if rapid.IntRange(0, 4).Draw(t, "down") == 0 {
				down[i] = true
			}
		}
		topo, err := Parse([]byte(b.String()))
		if err != nil {
			t.Fatal(err)
		}
		const far = 1000
		dist := make([][]int, n)
		for i := range dist {
			dist[i] = slices.Repeat([]int{far}, n)
			dist[i][i] = 0
		}
		for i, l := range links {
			if !down[i] {
				dist[l.a][l.b], dist[l.b][l.a] = 1, 1
			}
		}
		for k := range n {
			for i := range n {
				for j := range n {
					dist[i][j] = min(dist[i][j], dist[i][k]+dist[k][j])
				}
			}
		}
		for i := range n {
			for j := range n {
				hops, err := topo.Hops(fmt.Sprintf("s%d", i), netip.AddrFrom4([4]byte{10, 255, 0, byte(j + 1)}), down)
				if err != nil {
					t.Fatal(err)
				}
				got, want := map[int]bool{}, map[int]bool{}
				for _, h := range hops {
					got[h.Link] = true
				}
				for id, l := range links {
					other := l.b
					if l.b == i {
						other = l.a
					}
					if (l.a == i || l.b == i) && !down[id] && dist[i][j] < far && dist[other][j] == dist[i][j]-1 {
						want[id] = true
					}
				}
				if !maps.Equal(got, want) {
					t.Fatalf("s%d to s%d by links %v, want %v", i, j, got, want)
				}
			}
		}
	})
}

// Any bytes: no panic, no hang; errors have text, and what passes can be asked.
func FuzzParse(f *testing.F) {
	for _, name := range []string{"testdata/fabric.txt", "testdata/errors.txt"} {
		data, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		for _, part := range strings.Split(string(data), "topology\n")[1:] {
			input, _, _ := strings.Cut(part, "\n----")
			f.Add([]byte(input))
		}
	}
	f.Add([]byte("switches: [{name: a, address: 10.0.0.1, prefixes: [&x 10.1.0.0/16]}, {name: b, prefixes: [*x]}]"))
	f.Add([]byte("a: &a [*a]"))
	f.Fuzz(func(t *testing.T, data []byte) {
		topo, err := Parse(data)
		if err != nil {
			if strings.Contains(err.Error(), "YAML") {
				t.Fatalf("error speaks of Go types: %v", err)
			}
			return
		}
		for i, sw := range topo.Switches() {
			if i == 5 {
				break
			}
			if _, err := topo.Routes(sw.Name, nil); err != nil {
				t.Fatal(err)
			}
		}
	})
}

func BenchmarkRoutes(b *testing.B) {
	var y strings.Builder // 32 leaves of 32 hosts, 16 spines
	fmt.Fprintln(&y, "switches:")
	for l := range 32 {
		fmt.Fprintf(&y, "- {name: l%d, address: 10.255.0.%d, prefixes: [10.1.%d.0/24]}\n", l, l+1, l)
	}
	for s := range 16 {
		fmt.Fprintf(&y, "- {name: s%d, address: 10.255.1.%d}\n", s, s+1)
	}
	fmt.Fprintln(&y, "hosts:")
	for h := range 32 * 32 {
		fmt.Fprintf(&y, "- {name: h%d, address: 10.1.%d.%d}\n", h, h/32, h%32+1)
	}
	fmt.Fprintln(&y, "links:")
	for h := range 32 * 32 {
		fmt.Fprintf(&y, "- {a: {node: h%d}, b: {node: l%d, port: %d}}\n", h, h/32, h%32+1)
	}
	for l := range 32 {
		for s := range 16 {
			fmt.Fprintf(&y, "- {a: {node: l%d, port: %d}, b: {node: s%d, port: %d}}\n", l, s+100, s, l+1)
		}
	}
	topo, err := Parse([]byte(y.String()))
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := topo.Routes("l0", nil); err != nil {
			b.Fatal(err)
		}
	}
}
