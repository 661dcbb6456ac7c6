package health

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"go.uber.org/goleak"
	"pgregory.net/rapid"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestScripts runs testdata. Commands are "tracker [interval=] [dead-after=]
// [grace=]", "add", "remove", "answered", "refused" of addresses, "step at=", and
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
			case "step":
				return changes(tr.Step(now))
			case "run": // a step each interval, and addresses answer before each
				var ms int
				d.ScanArgs(t, "until", &ms)
				var out strings.Builder
				for end := base.Add(time.Duration(ms) * time.Millisecond); now.Before(end); {
					now = now.Add(100 * time.Millisecond)
					for _, a := range addrs {
						tr.Answered(a, now)
					}
					if c := changes(tr.Step(now)); c != "-\n" {
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
					if c := changes(tr.Step(now)); c != "-\n" {
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

// TestProperties: whatever happens, a peer that answers every interval is never blamed by
// steps, one that never answers is gone in time, and none comes back from Gone without
// being added.
func TestProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cfg := Config{Interval: 100 * time.Millisecond, DeadAfter: time.Second, Grace: 3 * time.Second}
		tr := New(cfg)
		base := time.Unix(1000, 0)
		now := base
		good, dead, odd := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("10.0.0.3")
		for _, a := range []netip.Addr{good, dead, odd} {
			tr.Add(a, now)
		}
		var held time.Duration // how long steps were held up
		wasGone, paused := false, false
		for range rapid.IntRange(1, 200).Draw(t, "steps") {
			pause := cfg.Interval
			if paused = !paused && rapid.IntRange(0, 20).Draw(t, "held up") == 0; paused {
				pause = time.Duration(rapid.IntRange(400, 5000).Draw(t, "ms")) * time.Millisecond
				held += pause
			}
			now = now.Add(pause)
			if !paused {
				tr.Answered(good, now)
			}
			switch rapid.IntRange(0, 3).Draw(t, "odd") {
			case 0:
				tr.Answered(odd, now)
			case 1:
				tr.Refused(odd, now)
			}
			for _, c := range tr.Step(now) {
				if c.Addr == good {
					t.Fatalf("%v is %v at %v", good, c.State, now.Sub(base))
				}
				if c.Addr == odd && wasGone {
					t.Fatalf("%v came back as %v", odd, c.State)
				}
				wasGone = wasGone || c.Addr == odd && c.State == Gone
			}
			if now.Sub(base)-held > cfg.DeadAfter && tr.State(dead) != Gone {
				t.Fatalf("%v is %v after %v", dead, tr.State(dead), now.Sub(base))
			}
		}
	})
}
