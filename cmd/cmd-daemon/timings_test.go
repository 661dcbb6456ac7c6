package main

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/mcrdma/mcrdma/pkg/mcrdma"
)

func TestSummary(t *testing.T) {
	var took []time.Duration
	for i := range 200 { // 200, 199, … 1 us
		took = append(took, time.Duration(200-i)*time.Microsecond)
	}
	want := phaseTimes{Phase: "x", Times: 200, Min: 1, Avg: 100.5, P50: 100, P99: 198, Max: 200}
	if d := cmp.Diff(want, summary("x", took)); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff(phaseTimes{"x", 1, 0.1, 0.1, 0.1, 0.1, 0.1}, summary("x", []time.Duration{199})); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff(phaseTimes{"x", 3, 1, 2, 2, 3, 3}, summary("x", []time.Duration{3000, 1000, 2000})); d != "" {
		t.Error(d)
	}
}

// TestLost: a lost receiver is an error, with the reason if it is known.
func TestLost(t *testing.T) {
	if err := lost(nil); err != nil {
		t.Error(err)
	}
	err := lost([]mcrdma.Departure{{Peer: mcrdma.Peer{Host: "h2", Address: "10.0.0.2"}, Why: "its host is silent"}, {Peer: mcrdma.Peer{Address: "10.0.0.3"}}})
	if want := "receiver h2 was lost: its host is silent\nreceiver 10.0.0.3 was lost: cmd-daemon's log says why"; err == nil || err.Error() != want {
		t.Errorf("%v, want %s", err, want)
	}
}

// TestTimings: phases are in the order in which they first occurred, and warm-up groups are not
// shown.
func TestTimings(t *testing.T) {
	tm := &timings{phases: map[string][]time.Duration{}, paths: map[string]int{"relay": 1}}
	tm.add("a", 1)
	tm.add("only before", 1)
	tm.add("b", 1)
	tm.reset()
	tm.groups, tm.paths["switch"], tm.paths["relay"] = 3, 2, 1
	tm.add("b", time.Millisecond)
	tm.add("a", time.Second)
	r := tm.report(mcrdma.GroupConfig{Service: "s"})
	if len(r.Phases) != 2 || r.Phases[0].Phase != "a" || r.Phases[1].Max != 1000 {
		t.Errorf("%+v", r)
	}
	if s := tm.pathText(); s != "1 group by hosts, 2 groups by switches" {
		t.Error(s)
	}
	if d := cmp.Diff([]any{"b", 1, int64(1000), int64(1000), int64(1000), int64(1000), int64(1000)}, r.rows()[1]); d != "" {
		t.Error(d)
	}
}
