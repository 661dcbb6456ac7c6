package health

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"go.uber.org/goleak"
	"pgregory.net/rapid"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestScripts runs testdata. Commands are "tracker [interval=] [dead-after=]
// [grace=]", "add", "remove", "answered", "refused", "acked [ago=]", "busy [over]", "patience" of addresses, "tick at=", and
// "blame [spare-down]". Time is in milliseconds.
func TestScripts(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		var tr *Tracker
		base := time.Unix(1000, 0)
		now := base
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			if d.HasArg("at") {
				var ms int
				d.ScanArgs(t, "at", &ms)
				now = base.Add(time.Duration(ms) * time.Millisecond)
			}
			var addrs []netip.Addr
			for _, f := range strings.Fields(d.Input) {
				addrs = append(addrs, netip.MustParseAddr("10.0.0."+f))
			}
			each := func(f func(netip.Addr)) string {
				for _, a := range addrs {
					f(a)
				}
				return states(tr)
			}
			switch d.Cmd {
			case "tracker":
				tr = New(Config{Interval: 100 * time.Millisecond, DeadAfter: time.Second, Grace: 10 * time.Second})
				return ""
			case "add":
				return each(func(a netip.Addr) { tr.Add(a, now) })
			case "remove":
				return each(tr.Remove)
			case "answered":
				return each(func(a netip.Addr) { tr.Answered(a, now) })
			case "refused":
				return each(func(a netip.Addr) { tr.Refused(a, now) })
			case "acked":
				var ago int
				d.MaybeScanArgs(t, "ago", &ago)
				return each(func(a netip.Addr) { tr.Acknowledged(a, now, time.Duration(ago)*time.Millisecond) })
			case "busy":
				return each(func(a netip.Addr) { tr.Busy(a, !d.HasArg("over")) })
			case "patience":
				return fmt.Sprintln(tr.Patience(addrs))
			case "tick":
				return changes(tr.Tick(now, false))
			case "run": // a tick each interval, and addresses answer before each
				var ms int
				d.ScanArgs(t, "until", &ms)
				var out strings.Builder
				for end := base.Add(time.Duration(ms) * time.Millisecond); now.Before(end); {
					now = now.Add(100 * time.Millisecond)
					for _, a := range addrs {
						tr.Answered(a, now)
					}
					if c := changes(tr.Tick(now, false)); c != "-\n" {
						fmt.Fprintf(&out, "%v: %s", now.Sub(base), c)
					}
				}
				return out.String()
			case "refusing": // the same, and addresses refuse
				var ms int
				d.ScanArgs(t, "until", &ms)
				var out strings.Builder
				for end := base.Add(time.Duration(ms) * time.Millisecond); now.Before(end); {
					now = now.Add(100 * time.Millisecond)
					for _, a := range addrs {
						tr.Refused(a, now)
					}
					if c := changes(tr.Tick(now, false)); c != "-\n" {
						fmt.Fprintf(&out, "%v: %s", now.Sub(base), c)
					}
				}
				return out.String()
			case "blame":
				return changes(tr.Blame(addrs, now, !d.HasArg("spare-down"))) + states(tr)
			}
			t.Fatalf("unknown command %s", d.Cmd)
			return ""
		})
	})
}

func states(t *Tracker) string {
	var out strings.Builder
	for _, a := range t.Peers() {
		fmt.Fprintf(&out, "%v %v\n", a, t.State(a))
	}
	return out.String()
}

func changes(list []Change) string {
	if len(list) == 0 {
		return "-\n"
	}
	var out strings.Builder
	for _, c := range list {
		fmt.Fprintf(&out, "%v is %v after %v\n", c.Addr, c.State, c.For)
	}
	return out.String()
}

// TestAdversary: an observer that is not scheduled for up to several seconds at any time, peers
// that are not either, and a network that loses up to a fifth of the beats. A peer whose
// answers keep coming while only the observer is held up is never taken for dead, by ticks or
// in a stall; one that is dead is found within three times DeadAfter of the observer's own
// time; and a peer that is slow, but answers within half of DeadAfter, stays, too.
func TestAdversary(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cfg := Config{Interval: 50 * time.Millisecond, DeadAfter: time.Second, Grace: 10 * time.Second}
		rnd := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))
		stalls := rapid.Bool().Draw(t, "stalls")
		loss := 0.0
		if !stalls { // in a stall, five beats lost in a row are a reason to blame
			loss = rapid.Float64Range(0, 0.2).Draw(t, "loss")
		}
		busy := rapid.Float64Range(0, 0.3).Draw(t, "busy")
		dies := time.Duration(rapid.IntRange(0, 20).Draw(t, "dies")) * time.Second
		tr, base := New(cfg), time.Unix(1000, 0)
		living, slow, dead := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("10.0.0.3")
		all := []netip.Addr{living, slow, dead}
		now := base
		for _, a := range all {
			tr.Add(a, now)
		}
		type answer struct {
			from netip.Addr
			at   time.Time
		}
		var wire []answer
		var slowUntil time.Time
		var silent time.Duration // of the dead one, in the observer's own time
		due := now
		for now.Sub(base) < 40*time.Second {
			due = due.Add(cfg.Interval)
			now = due
			if rnd.Float64() < busy { // the observer is held up
				now = now.Add(time.Duration(rnd.Int64N(int64(100 * time.Millisecond))))
				if rnd.Float64() < 0.1 {
					now = now.Add(time.Duration(rnd.Int64N(int64(5 * time.Second))))
				}
			}
			due = now
			if now.After(slowUntil) && rnd.Float64() < 0.02 {
				slowUntil = now.Add(time.Duration(rnd.Int64N(int64(cfg.DeadAfter / 2))))
			}
			read := func() {
				wire = slices.DeleteFunc(wire, func(a answer) bool {
					if a.at.After(now) {
						return false
					}
					tr.Answered(a.from, now)
					return true
				})
			}
			first := rnd.IntN(2) == 0 // the answers that wait are read before or after the tick
			if first {
				read()
			}
			gone := tr.Tick(now, false)
			if stalls {
				gone = append(gone, tr.Blame([]netip.Addr{living, dead}, now, true)...)
			}
			if !first {
				read()
			}
			for _, c := range gone {
				if c.State == Gone && c.Addr != dead {
					t.Fatalf("%v is %v after %v at %v", c.Addr, c.State, c.For, now.Sub(base))
				}
			}
			if died := base.Add(dies); now.After(died) && tr.State(dead) != Gone {
				if silent += cfg.Interval; silent > 3*cfg.DeadAfter+cfg.DeadAfter/2+3*cfg.Interval {
					t.Fatalf("the dead one is %v after %v", tr.State(dead), silent)
				}
			}
			for _, a := range all { // beats go out
				at := now.Add(time.Duration(rnd.Int64N(int64(5 * time.Millisecond))))
				switch {
				case rnd.Float64() < loss, a == dead && now.Sub(base) >= dies:
					continue
				case a != living && at.Before(slowUntil):
					at = slowUntil
				}
				wire = append(wire, answer{a, at})
			}
		}
	})
}

// A peer that falls silent is one of the suspects exactly when SuspectIn says.
func TestSuspectIn(t *testing.T) {
	for _, slowest := range []time.Duration{0, 300 * time.Millisecond} { // the second makes the tracker patient
		tr := New(Config{Interval: 100 * time.Millisecond, DeadAfter: time.Second, Grace: 10 * time.Second})
		now := time.Unix(1000, 0)
		silent, lively := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")
		both := []netip.Addr{silent, lively}
		tr.Add(silent, now)
		tr.Add(lively, now)
		tick := func() {
			now = now.Add(100 * time.Millisecond)
			tr.Tick(now, false)
		}
		for range slowest / (100 * time.Millisecond) {
			tick()
		}
		tr.Answered(silent, now)
		tr.Answered(lively, now)
		in := tr.SuspectIn(both, now)
		if want := max(3*100*time.Millisecond, 8*slowest/4); in != want {
			t.Errorf("after a silence of %v: suspects in %v, and not in %v", slowest, in, want)
		}
		at := now.Add(in)
		for now.Add(100 * time.Millisecond).Before(at) {
			tick()
			tr.Answered(lively, now)
			if in := tr.SuspectIn([]netip.Addr{silent}, now); now.Add(in) != at {
				t.Errorf("suspects at %v, and not at %v", now.Add(in), at)
			}
		}
		if s := tr.Suspects(both, at.Add(-1), false); len(s) > 0 {
			t.Errorf("too early: %v", s)
		}
		if s := tr.Suspects(both, at, false); len(s) != 1 || s[0].Addr != silent {
			t.Errorf("%v", s)
		}
	}
}
