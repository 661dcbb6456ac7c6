package topology

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	"pgregory.net/rapid"
)

// TestErrors: every fault is reported, with its line and field.
func TestErrors(t *testing.T) {
	datadriven.RunTest(t, "testdata/errors.txt", func(t *testing.T, d *datadriven.TestData) string {
		if _, err := Parse([]byte(d.Input), "fabric.yaml"); err != nil {
			return err.Error()
		}
		return "none"
	})
}

func TestLoad(t *testing.T) {
	name := filepath.Join(t.TempDir(), "fabric.yaml")
	if _, err := Load(name); !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte("switches:\n- {name: a, color: 10.0.0.1}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := Load(name)
	var fault *Error
	if !errors.As(err, &fault) || fault.Line != 2 || !strings.HasPrefix(err.Error(), name+":2: ") {
		t.Fatal(err)
	}
	if _, err := Parse(make([]byte, format.MaxBytes+1), "fabric.yaml"); err == nil {
		t.Fatal("a file beyond all bounds passed")
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
		topo, err := Parse([]byte(b.String()), "fabric.yaml")
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
	for _, name := range []string{"../routing/static/testdata/fabric.txt", "testdata/errors.txt"} {
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
		topo, err := Parse(data, "fabric.yaml")
		if err != nil {
			if strings.Contains(err.Error(), "topology.") {
				t.Fatalf("an error speaks of Go types: %v", err)
			}
			return
		}
		for _, n := range topo.Nodes()[1:min(5, len(topo.Nodes()))] {
			topo.HopsTo(topo.Nodes()[0], n, nil)
		}
	})
}

// TestJSON: a topology that a program writes as JSON is read as it was.
func TestJSON(t *testing.T) {
	data, err := os.ReadFile("../lab/racks.yaml")
	if err != nil {
		t.Fatal(err)
	}
	one, err := Parse(data, "racks.yaml")
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(&Topology{Switches: one.Switches, Hosts: one.Hosts, Links: []Link{{A: End{Node: "torA", Port: 9}, B: End{Node: "torB", Port: 9}}}})
	if err != nil {
		t.Fatal(err)
	}
	again, err := Parse(text, "racks.json")
	if err != nil || !slices.EqualFunc(again.Switches, one.Switches, func(a, b Switch) bool { return reflect.DeepEqual(a, b) }) ||
		!slices.Equal(again.Hosts, one.Hosts) || again.Links[0].B.Address != one.Switches[1].Address || again.Links[0].A.MAC != one.Switches[0].MAC {
		t.Errorf("%s: %+v, %v", text, again, err)
	}
}
