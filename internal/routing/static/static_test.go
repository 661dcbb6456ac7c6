package static

import (
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	"go.uber.org/goleak"

	"github.com/mcrdma/mcrdma/internal/routing"
	"github.com/mcrdma/mcrdma/internal/topology"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// The scripts: "topology" reads a file, "routes", "neighbors" and "hops" ask.
func TestScripts(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		if filepath.Ext(path) != ".txt" {
			return
		}
		var topo *topology.Topology
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			down := topology.Down{}
			if d.HasArg("down") {
				for _, end := range strings.Split(argument(t, d, "down"), ";") {
					sw, port, _ := strings.Cut(end, "/")
					var number uint32
					if _, err := fmt.Sscan(port, &number); err != nil {
						t.Fatal(err)
					}
					p, err := topo.At(sw, number)
					if err != nil {
						t.Fatal(err)
					}
					down[p.Link] = true
				}
			}
			var b strings.Builder
			switch d.Cmd {
			case "topology":
				var err error
				if topo, err = topology.Parse([]byte(d.Input), "fabric.yaml"); err != nil {
					return err.Error()
				}
				return fmt.Sprintf("%d switches, %d hosts, %d links", len(topo.Switches), len(topo.Hosts), len(topo.Links))
			case "routes":
				routes, err := Routes(topo, argument(t, d, "at"), down)
				for _, r := range routes {
					fmt.Fprintln(&b, r)
				}
				return b.String() + message(err)
			case "neighbors":
				list, err := Neighbors(topo, argument(t, d, "at"), down)
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

func TestSource(t *testing.T) {
	topo, err := topology.Parse([]byte(`
switches: [{name: l1, address: 10.255.0.1}, {name: l2, address: 10.255.0.2, prefixes: [10.1.0.0/24]}, {name: s1, address: 10.255.1.1}, {name: s2, address: 10.255.1.2, mac: "02:00:00:00:00:05"}]
hosts: [{name: h, address: 10.1.0.1}]
links:
- {a: {node: l1, port: 1}, b: {node: s1, port: 1}}
- {a: {node: l1, port: 2}, b: {node: s2, port: 1}}
- {a: {node: l2, port: 1}, b: {node: s1, port: 2}}
- {a: {node: l2, port: 2}, b: {node: s2, port: 2}}
- {a: {node: l2, port: 3}, b: {node: h}}
`), "fabric.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Open(topo, "h"); !errors.Is(err, topology.ErrUnknown) {
		t.Fatalf("a host's view: %v", err)
	}
	src, err := Open(topo, "l1")
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
	if err := src.SetLink(5, true); !errors.Is(err, topology.ErrUnknown) {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
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
	topo, err := topology.Parse([]byte(y.String()), "fabric.yaml")
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Routes(topo, "l0", nil); err != nil {
			b.Fatal(err)
		}
	}
}
