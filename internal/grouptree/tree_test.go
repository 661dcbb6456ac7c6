package grouptree

import (
	"bytes"
	"context"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"go.uber.org/goleak"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var testKey = Key{Source: netip.MustParseAddr("10.1.0.1"), ID: 2049}

// TestScripts: fabrics, and what is drawn of their trees.
func TestScripts(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		var f *fabric
		var tree *Tree
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			var b strings.Builder
			var err error
			switch d.Cmd {
			case "fabric":
				f = parseFabric(t, d.Input)
				return ""
			case "collect":
				tree = nil
				var first []string
				for _, a := range d.CmdArgs {
					if a.Key == "from" {
						first = a.Vals
					}
				}
				ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
				defer cancel()
				if tree, err = Collect(ctx, asked(f), testKey, first, nil, Limits{}); err == nil {
					err = tree.Text(&b, TextOptions{Now: noon})
				}
			case "text":
				err = tree.Text(&b, TextOptions{Now: noon, Color: true})
			case "named":
				err = tree.Text(&b, TextOptions{Now: noon, Names: map[string]string{"10.2.0.11": "h3"}})
			case "dot":
				err = tree.DOT(&b)
			case "svg":
				err = tree.SVG(&b)
			case "json":
				e := json.NewEncoder(&b)
				e.SetIndent("", "  ")
				err = e.Encode(tree)
			default:
				t.Fatalf("no command %q", d.Cmd)
			}
			if err != nil {
				return "error: " + err.Error() + "\n"
			}
			return b.String()
		})
	})
}

func TestErrors(t *testing.T) {
	f := parseFabric(t, "agent a peers=b\nagent b")
	if _, err := Collect(t.Context(), asked(f), testKey, []string{"A"}, nil, Limits{}); !errors.Is(err, ErrNoGroup) {
		t.Error(err)
	}
	f.agents["B"].steps = []*mcrdmav1.Step{{Group: &mcrdmav1.GroupKey{Source: "10.1.0.1", McId: 1}, Root: true}}
	if _, err := Collect(t.Context(), asked(f), testKey, []string{"A"}, nil, Limits{}); !errors.Is(err, ErrNoGroup) {
		t.Error("another group was taken for it:", err)
	}
	if _, err := Collect(t.Context(), asked(f), testKey, []string{"X"}, nil, Limits{}); err == nil || errors.Is(err, ErrNoGroup) {
		t.Error(err)
	}
	if _, err := Collect(t.Context(), asked(f), testKey, nil, nil, Limits{}); err == nil {
		t.Error("a group was found without agents")
	}
}

// TestDirectory: addresses that no agent knows can be given.
func TestDirectory(t *testing.T) {
	f := parseFabric(t, `
		agent torA
		step 10.2.0.11 root
		copy 10.2.0.11 ports=9 next=torB to=10.2.0.11,10.2.0.12
		agent torB
		step 10.2.0.11 holders=torA
		copy 10.2.0.11 ports=1 last qpn=1
		copy 10.2.0.12 ports=2 last qpn=1
		group receivers=10.2.0.11:1,10.2.0.12:1`)
	f.agents["TORA"].group, f.agents["TORB"].group = f.agents["TORB"].group, nil
	without, err := Collect(t.Context(), asked(f), testKey, []string{"TORA"}, nil, Limits{})
	if err != nil || without.OK() || !strings.Contains(fmt.Sprint(without.All()), "--agent torB=HOST:PORT") {
		t.Errorf("%v, %v", without.All(), err)
	}
	with, err := Collect(t.Context(), asked(f), testKey, []string{"TORA"}, map[string]string{"torB": "TORB"}, Limits{})
	if err != nil || !with.OK() {
		t.Errorf("%v, %v", with.All(), err)
	}
}

// TestHanging: an agent that never answers holds nothing up beyond the deadline.
func TestHanging(t *testing.T) {
	f := parseFabric(t, `
		agent torA peers=torB
		step 10.2.0.11 root
		copy 10.2.0.11 ports=9 next=torB
		group receivers=10.2.0.11:1
		agent torB hangs`)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	tree, err := Collect(ctx, asked(f), testKey, []string{"TORA"}, nil, Limits{})
	if err != nil || tree.OK() {
		t.Errorf("%v, %v", tree, err)
	}
}

// endless is a fabric of liars: each switch names two more.
type endless struct{}

func (*endless) Status(_ context.Context, a string) (*mcrdmav1.GetStatusResponse, error) {
	s := &mcrdmav1.GetStatusResponse{Name: a}
	for _, x := range []string{"l", "r"} {
		s.Peers = append(s.Peers, &mcrdmav1.PeerStatus{Name: a + x, Agent: a + x, Branches: 1})
	}
	return s, nil
}

func (*endless) Steps(_ context.Context, a string, k *mcrdmav1.GroupKey) (*mcrdmav1.ListStepsResponse, error) {
	s := &mcrdmav1.Step{Group: k, Destination: "10.2.0.11", Root: a == "a", Holders: []string{a[:len(a)-1]}, Receivers: []string{"10.2.0.11"}}
	if len(a)%2 == 1 {
		for _, x := range []string{"l", "r"} {
			s.Copies = append(s.Copies, &mcrdmav1.Copy{Destination: "10.2.0.11", Ports: []uint32{1}, Next: []string{a + x}, Receivers: s.Receivers})
		}
	}
	return &mcrdmav1.ListStepsResponse{Steps: []*mcrdmav1.Step{s}}, nil
}

func (*endless) Group(context.Context, string, *mcrdmav1.GroupKey) (*mcrdmav1.GroupStatus, error) {
	return &mcrdmav1.GroupStatus{}, nil
}

// TestEndless: neither the search for a group nor following it goes on for ever.
func TestEndless(t *testing.T) {
	for _, limits := range []Limits{{}, {Agents: 5}, {Nodes: 7}, {Agents: 3, Nodes: 2}, {Agents: 1, Nodes: 1}} {
		tree, err := Collect(t.Context(), asked(&endless{}), testKey, []string{"a"}, nil, limits)
		if err != nil || !strings.Contains(fmt.Sprint(tree.Problems), "larger than is looked at") {
			t.Fatalf("%+v: %v, %v", limits, tree, err)
		}
		if limits.Nodes > 0 && len(tree.Nodes) > limits.Nodes {
			t.Errorf("%+v: %d nodes", limits, len(tree.Nodes))
		}
		draw(t, tree)
		_, err = Collect(t.Context(), asked(&endless{}), testKey, []string{"b"}, nil, limits) // has no root
		if err != nil && !errors.Is(err, ErrNoGroup) {
			t.Errorf("%+v: %v", limits, err)
		}
	}
}

// draw draws a tree in all ways, and checks that what is XML or JSON is so.
func draw(t *testing.T, tree *Tree) {
	t.Helper()
	var svg bytes.Buffer
	for _, err := range []error{tree.Text(io.Discard, TextOptions{}), tree.DOT(io.Discard), tree.SVG(&svg)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	if _, err := json.Marshal(tree); err != nil {
		t.Fatal(err)
	}
	if strings.Contains(svg.String(), "NaN") || strings.Contains(svg.String(), "Inf") {
		t.Error("a place that is not a number")
	}
	for d := xml.NewDecoder(&svg); ; {
		if _, err := d.Token(); err == io.EOF {
			break
		} else if err != nil {
			t.Fatal(err)
		}
	}
}

// TestHostile: names that mean something in XML and DOT stay names.
func TestHostile(t *testing.T) {
	f := parseFabric(t, `
		agent x peers=y
		step 10.2.0.11 root
		copy 10.2.0.11 ports=9 next=y
		agent y`)
	for _, a := range f.agents {
		a.steps = append(a.steps, &mcrdmav1.Step{Group: f.key, Destination: "10.2.0.11", Problems: []string{"\"];\n</text><script>\\"}})
	}
	tree, err := Collect(t.Context(), asked(f), testKey, []string{"X"}, nil, Limits{})
	if err != nil {
		t.Fatal(err)
	}
	draw(t, tree)
	var dot strings.Builder
	if err := tree.DOT(&dot); err != nil || !strings.Contains(dot.String(), `\"]; </text><script>\\`) {
		t.Errorf("%s, %v", dot.String(), err)
	}
}

// TestLayout: boxes of a column do not overlap, and arrows go to the right.
func TestLayout(t *testing.T) {
	g := &graph{}
	for i := range 40 {
		g.boxes = append(g.boxes, &box{lines: []string{fmt.Sprint(i)}})
		for j := max(0, i-7); j < i; j += 3 {
			g.arrows = append(g.arrows, arrow{from: g.boxes[j], to: g.boxes[i]})
		}
	}
	l := newLayout(g, heightOf, boxGap)
	for _, c := range l.columns {
		for i := 1; i < len(c); i++ {
			half := 0.0
			for _, p := range c[i-1 : i+1] {
				if p.box != nil {
					half += heightOf(p.box) / 2
				}
			}
			if c[i].y-c[i-1].y < half+boxGap-1e-6 {
				t.Errorf("column %d: %v and %v", c[i].column, c[i-1].y, c[i].y)
			}
		}
	}
	for i, a := range g.arrows {
		if p := l.paths[i]; len(p) < 2 || p[0].box != a.from || p[len(p)-1].box != a.to {
			t.Errorf("arrow %d: %v", i, p)
		}
		for j, p := range l.paths[i] {
			if p.column != l.paths[i][0].column+j {
				t.Errorf("arrow %d passes column %d", i, p.column)
			}
		}
	}
}

func TestParseKey(t *testing.T) {
	for in, want := range map[string]string{
		"10.1.0.1/2049":            "10.1.0.1/2049",
		"10.1.0.1/0x801":           "10.1.0.1/0x000801",
		"10.1.0.1/0XfFfFfF":        "10.1.0.1/0xffffff",
		"10.1.0.1/281474976710656": "10.1.0.1/281474976710656",
		"10.1.0.1/0x1000000":       "not one from 0x1 to 0xffffff",
		"10.1.0.1/0x":              "not one from 0x1",
		"10.1.0.1/0x0":             "not one from 0x1",
		"10.1.0.1/0":               "not a number from 1",
		"10.1.0.1/-1":              "not a number from 1",
		"10.1.0.1/1_0":             "not a number from 1",
		"10.1.0.1/":                "not a number from 1",
		"10.1.0.1":                 "SOURCE/NUMBER",
		"10.1.0/5":                 "not an IPv4 address",
		"::1/5":                    "not an IPv4 address",
		"/5":                       "not an IPv4 address",
		"::ffff:10.1.0.1/05":       "not an IPv4 address",
	} {
		k, err := ParseKey(in)
		if got := fmt.Sprint(k, err); !strings.Contains(got, want) || err == nil && k.String() != want {
			t.Errorf("%q: %s, want %s", in, got, want)
		}
	}
}

func FuzzParseKey(f *testing.F) {
	for _, s := range []string{"10.1.0.1/2049", "10.1.0.1/0x801", "", "/", "0/0", "1.2.3.4/0x"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		k, err := ParseKey(s)
		if err != nil {
			return
		}
		if again, err := ParseKey(k.String()); err != nil || again != k || k.ID > maxID || !k.Source.Is4() {
			t.Errorf("%q: %v, then %v, %v", s, k, again, err)
		}
		if KeyOf(k.Proto()) != k.String() {
			t.Errorf("%q: %v", s, KeyOf(k.Proto()))
		}
	})
}
