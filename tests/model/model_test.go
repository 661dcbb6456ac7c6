package main

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	"github.com/mcrdma/mcrdma/internal/testenv"
	"github.com/mcrdma/mcrdma/pkg/ackmerge"
	"github.com/mcrdma/mcrdma/pkg/rocev2"
)

// parallel is why tests only run without the race detector.
const parallel = "the race detector sees what runs in parallel in TestModel and TestRandom"

func check(t *testing.T, b *bound) *result {
	t.Helper()
	r := explore(b)
	t.Logf("%s: %d states, %d transitions", b.name, r.States, r.Transitions)
	if r.Violation != nil {
		t.Fatalf("%s: %s\n%s", b.name, r.Violation.What, r.Violation.Trace(b))
	}
	if r.Completed == 0 {
		t.Errorf("%s: no state in which the work has completed", b.name)
	}
	return r
}

func testBounds() []bound {
	if os.Getenv("MCRDMA_LONG") != "" {
		return small
	}
	return tiny
}

// TestModel explores some bounds with the race detector, and all without it.
func TestModel(t *testing.T) {
	bounds := testBounds()
	if testenv.Race {
		bounds = bounds[:3]
	}
	for _, b := range bounds {
		check(t, &b)
	}
}

// TestProgramWithoutRace merges by the compiled program.
func TestProgramWithoutRace(t *testing.T) {
	testenv.WithoutRace(t, parallel)
	for _, b := range testBounds()[:5] {
		b.merger = newP4Merger
		check(t, &b)
	}
}

// TestKernelWithoutRace merges by the bytecode in the kernel; it visits as many states, on as many
// paths, as the model.
func TestKernelWithoutRace(t *testing.T) {
	testenv.WithoutRace(t, parallel)
	if _, err := newKernelMerger(); err != nil {
		testenv.Skip(t, "%v", err)
	}
	bounds := tiny[:3] // an answer takes 50 µs through the kernel's interface, and the other bounds have hundreds of thousands
	if os.Getenv("MCRDMA_LONG") != "" {
		bounds = small
	}
	for _, b := range bounds {
		sameAsModel(t, b, newKernelMerger)
	}
}

// TestProgramIsTheModelWithoutRace: both explorations visit as many states, on as many paths.
func TestProgramIsTheModelWithoutRace(t *testing.T) {
	testenv.WithoutRace(t, parallel)
	sameAsModel(t, bound{name: "1 loss", faults: faults{losses: 1, restarts: 1, removals: 1}, relearn: true}, newP4Merger)
}

func sameAsModel(t *testing.T, b bound, merger func() (merger, error)) {
	t.Helper()
	want := explore(&b)
	b.merger = merger
	if got := check(t, &b); got.States != want.States || got.Transitions != want.Transitions {
		t.Errorf("the model has %d states and %d transitions, the program %d and %d", want.States, want.Transitions, got.States, got.Transitions)
	}
}

// mistakes are the mistakes that the exploration must find, each with the property that it breaks.
var mistakes = []struct {
	name   string
	v      variant
	breaks string
	faults faults
	learn  bool
}{
	{"plain < on PSNs", variant{plainLess: true}, "", faults{losses: 1}, false},
	{"NAK passed on unmodified", variant{rawNAK: true}, "S1", faults{losses: 2}, false},
	{"epoch ignored", variant{noEpoch: true}, "", faults{losses: 1, restarts: 1}, true},
	{"minimum over members that are gone", variant{allSlots: true}, "L1", faults{losses: 1, deaths: 1, removals: 1}, false},
	{"no window", variant{noWindow: true}, "L1", faults{losses: 1, reorderings: 1}, false},
	{"window behind what was told", variant{behind: true}, "L1", faults{}, false},
	{"records of any distance after a restart", variant{noSpread: true}, "S1", faults{restarts: 1, lies: 1}, true},
	{"PSNs compared two by two", variant{pairwise: true}, "S1", faults{lies: 2}, false},
	{"ACK of a retransmission suppressed", variant{noRepeat: true}, "L1", faults{losses: 1}, false},
}

func (v variant) bound(name string, f faults, learn bool) *bound {
	return &bound{name: name, faults: f, relearn: learn, merger: func() (merger, error) { return v, nil }}
}

// TestMistakes: the exploration finds each, and the shortest path to it is a script that reproduces
// it.
func TestMistakes(t *testing.T) {
	for _, m := range mistakes {
		b := m.v.bound(m.name, m.faults, m.learn)
		r := explore(b)
		if r.Violation == nil {
			t.Errorf("%s: not found in %d states", m.name, r.States)
			continue
		}
		trace := r.Violation.Trace(b)
		t.Logf("%s: found after %d states: %s\n%s", m.name, r.States, r.Violation.What, trace)
		if !strings.HasPrefix(r.Violation.What, m.breaks) || strings.Contains(trace, errImpossible.Error()) {
			t.Errorf("%s: breaks %q, expected %q", m.name, r.Violation.What, m.breaks)
		}
		for _, a := range r.Violation.Actions {
			if again, err := parseAction(a.String()); err != nil || again != a {
				t.Errorf("%v reads back as %v: %v", a, again, err)
			}
		}
	}
}

// TestVariantIsTheModel: without mistakes the variant is ackmerge.Merge.
func TestVariantIsTheModel(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 7))
	for range 2000 {
		c := ackmerge.Config{Members: uint16(1 + rng.IntN(7)), Epoch: 1, InitialPSN: rocev2.PSN(0xfffff8 + rng.IntN(8)), Learn: rng.IntN(3) == 0}
		var s, v ackmerge.State
		for range 40 {
			a := ackmerge.Answer{Member: rng.IntN(3), PSN: c.InitialPSN.Add(rng.IntN(12) - 2), MSN: uint32(rng.IntN(9)),
				Syndrome: []rocev2.Syndrome{0x1f, 3, 0x60, 0x25, 0x62}[rng.IntN(5)]}
			if a.Member == 2 && rng.IntN(3) == 0 {
				a.PSN = a.PSN.Add(claims[rng.IntN(len(claims))])
			}
			want, wantVerdict := ackmerge.Merge(&c, &s, a, 0)
			got, verdict := variant{}.merge(&c, &v, a)
			if verdict != wantVerdict || verdict == ackmerge.Pass && got != want || v != s {
				t.Fatalf("%+v of %+v: %+v %v, expected %+v %v", a, c, got, verdict, want, wantVerdict)
			}
		}
	}
}

// TestLiteral: the paper's rule, by which an ACK is forwarded only if it is itself the smallest,
// keeps S1, but delays the sender. The delay is the mean number of answers that arrive between the
// one that raises the minimum and the one by which the sender gets it.
func TestLiteral(t *testing.T) {
	literal := variant{literal: true}
	if r := explore(literal.bound("literal", faults{losses: 1}, false)); r.Violation != nil && strings.HasPrefix(r.Violation.What, "S1") {
		t.Errorf("%s\n%s", r.Violation.What, r.Violation.Trace(literal.bound("", faults{losses: 1}, false)))
	}
	for _, members := range []int{2, 3} {
		ours, paper := lateness(variant{}, members), lateness(literal, members)
		t.Logf("%d members: the sender learns of a packet %.2f answers after the switch, by the paper's rule %.2f", members, ours, paper)
		if ours != 0 || paper <= 0 {
			t.Errorf("%d members: late by %.2f and %.2f answers", members, ours, paper)
		}
	}
}

func lateness(v variant, members int) float64 {
	rng := rand.New(rand.NewPCG(3, 3))
	c := ackmerge.Config{Members: uint16(1<<members - 1), Epoch: 1, InitialPSN: 0}
	var s ackmerge.State
	acked := make([]int, members)
	reached := []int{} // number of answers after which PSN i was acknowledged by all
	late, told, n := 0, 0, 0
	for range 100_000 {
		i := rng.IntN(members)
		if acked[i] > slices.Min(acked)+8 {
			continue
		}
		acked[i] += 1 + rng.IntN(4) // coalesced
		n++
		for len(reached) < slices.Min(acked) {
			reached = append(reached, n)
		}
		out, verdict := v.merge(&c, &s, ackmerge.Answer{Member: i, PSN: rocev2.PSN(acked[i] - 1), Syndrome: 0x1f})
		if verdict == ackmerge.Pass {
			for ; told <= int(out.PSN); told++ {
				late += n - reached[told]
			}
		}
	}
	return float64(late) / float64(told)
}

// TestScripts runs testdata: paths through the model, in the form of printed counterexamples, with
// the effect of each step. In a line, each member has what it has received, in parentheses the
// switch's record of that, held data, and its answers in flight.
//
//	run [losses=N] [duplicates=N] [reorderings=N] [early=N] [deaths=N] [removals=N] [restarts=N] [unready=N] [lies=N] [learn] [p4]
func TestScripts(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			b := &bound{relearn: d.HasArg("learn")}
			f := &b.faults
			for name, v := range map[string]*byte{"losses": &f.losses, "duplicates": &f.duplicates, "reorderings": &f.reorderings,
				"early": &f.earlyTimeouts, "deaths": &f.deaths, "removals": &f.removals, "restarts": &f.restarts, "unready": &f.unready, "lies": &f.lies} {
				n := 0
				d.MaybeScanArgs(t, name, &n)
				*v = byte(n)
			}
			if d.HasArg("p4") {
				b.merger = newP4Merger
			}
			var as []action
			for _, line := range strings.Split(strings.TrimSpace(d.Input), "\n") {
				a, err := parseAction(line)
				if err != nil {
					return fmt.Sprintln(err)
				}
				as = append(as, a)
			}
			text, _ := replay(b, as)
			return text
		})
	})
}
