package connmgr

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/internal/testenv"
	"github.com/mcrdma/mcrdma/pkg/qp"
)

// TestStall: the switch's counters show which receiver is to blame if all answer beats.
func TestStall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 4, withSwitch)
		r.receivers()
		a := r.host(1).app("")
		f := a.create(a.request()).GetFormation()
		req := &mcrdmav1.ReportStallRequest{Token: a.token, Group: f.GetGroup(), Formation: 1}
		// No receiver answers, or all do: none is to blame.
		count := func(add map[string]*mcrdmav1.MemberCounters) func(context.Context, string, any) error {
			return func(_ context.Context, method string, _ any) error {
				if method == "Get" {
					r.sw.mu.Lock()
					defer r.sw.mu.Unlock()
					for addr, c := range add {
						x := r.sw.counters[addr]
						if x == nil {
							x = &mcrdmav1.MemberCounters{}
							r.sw.counters[addr] = x
						}
						x.Acks += c.GetAcks()
						x.RnrNaks += c.GetRnrNaks()
						x.SequenceNaks += c.GetSequenceNaks()
						x.Cnps += c.GetCnps()
					}
				}
				return nil
			}
		}
		one := &mcrdmav1.MemberCounters{Acks: 1}
		// A stall is reported every 500 ms; since is when it began.
		report := func(since time.Duration) []string {
			res, err := a.rpc.ReportStall(t.Context(), &mcrdmav1.ReportStallRequest{Token: a.token, Group: f.GetGroup(), Formation: 1, Since: durationpb.New(since)})
			if err != nil {
				t.Error(err)
			}
			return res.GetSuspects()
		}
		for name, add := range map[string]map[string]*mcrdmav1.MemberCounters{
			"none": {}, "all": {"127.9.0.2": one, "127.9.0.3": one, "127.9.0.4": one},
			"in other ways": {"127.9.0.2": one, "127.9.0.3": {RnrNaks: 1}, "127.9.0.4": {SequenceNaks: 1}},
		} {
			r.sw.set(count(add), nil)
			for i := range 4 {
				if s := report(time.Duration(i+1) * 500 * time.Millisecond); len(s) > 0 {
					t.Errorf("%s: %v", name, s)
				}
				r.pass(500 * time.Millisecond)
			}
		}
		// Who is not ready for long is to blame only while the stall continues.
		late := &mcrdmav1.MemberCounters{RnrNaks: 1}
		r.sw.set(count(map[string]*mcrdmav1.MemberCounters{"127.9.0.2": late, "127.9.0.3": late, "127.9.0.4": late}), nil)
		r.pass(10 * time.Second)
		if s := report(11 * time.Second); len(s) > 0 {
			t.Errorf("the sender goes on: %v", s)
		}
		r.pass(10 * time.Second)
		// A CNP is no answer.
		r.sw.set(count(map[string]*mcrdmav1.MemberCounters{"127.9.0.2": one, "127.9.0.4": one, "127.9.0.3": {Cnps: 1}}), nil)
		r.pass(time.Second)
		// Who has answered before a stall was reported is still, too, and no report follows.
		if s := report(0); len(s) > 0 {
			t.Errorf("the sender goes on: %v", s)
		}
		r.pass(10 * time.Second)
		r.sw.mu.Lock()
		r.sw.counters["127.9.0.3"].Acks++ // without that, the sender would not have gone on
		r.sw.mu.Unlock()
		// The next stall begins, and reports of it come every 100 ms. No receiver is to blame
		// before there was time to answer.
		begun := time.Now()
		ended := make(chan []string, 1)
		var suspects []string
		for len(suspects) == 0 && time.Since(begun) < 10*time.Second {
			go func() {
				if s := report(time.Since(begun)); len(s) > 0 {
					select {
					case ended <- s:
					default:
					}
				}
			}()
			select {
			case suspects = <-ended:
			case <-time.After(100 * time.Millisecond):
			}
		}
		timeout := qp.AckTimeout(ackTimeout(time.Second))
		if took, least := time.Since(begun), fruitless(time.Second, timeout); took < least || took > least+timeout {
			t.Errorf("blamed after %v, and one answer may be lost until %v", took, least)
		}
		if !slices.Equal(suspects, []string{"127.9.0.3"}) {
			t.Errorf("blamed: %v", suspects)
		}
		if c := a.waitChange(removed); c.GetHost() != "h3" || !strings.Contains(c.GetText(), "acknowledges nothing") {
			t.Errorf("%v", c)
		}
		r.until("the switch goes on without", func() bool { return r.atSwitch() == "2 4" })
		// What the agent cannot say is no error.
		r.sw.set(func(_ context.Context, method string, _ any) error {
			if method == "Get" {
				return refused(codes.Unavailable, "NOT_READY", "busy")
			}
			return nil
		}, nil)
		if s := report(time.Second); len(s) > 0 {
			t.Errorf("%v", s)
		}
		req.Formation = 2
		_, err := a.rpc.ReportStall(t.Context(), req)
		if reason, _, _ := reasonOf(err); reason != "STALE" {
			t.Errorf("%v", err)
		}
	})
}

// TestStallFollowed: a receiver that falls silent while a report of a stall is processed is
// taken out by that report, unless the switch counts its answers.
func TestStallFollowed(t *testing.T) {
	for _, alive := range []bool{false, true} {
		testenv.Bubble(t, fmt.Sprintf("alive %v", alive), func(t *testing.T) {
			r := newRig(t, 4, withSwitch)
			r.receivers()
			a := r.host(1).app("")
			f := a.create(a.request()).GetFormation()
			r.pass(time.Second)
			r.host(1).hang(r.host(3), true)
			r.pass(200 * time.Millisecond)
			gets := 0
			r.sw.set(func(_ context.Context, method string, _ any) error {
				if method != "Get" {
					return nil
				}
				gets++
				r.sw.mu.Lock()
				defer r.sw.mu.Unlock()
				for i := 2; i <= 4; i++ {
					if i != 3 || alive {
						r.sw.counters[hostAddr(i).String()] = &mcrdmav1.MemberCounters{Acks: uint64(gets)}
					}
				}
				return nil
			}, nil)
			res, err := a.rpc.ReportStall(t.Context(), &mcrdmav1.ReportStallRequest{Token: a.token, Group: f.GetGroup(), Formation: 1})
			if err != nil {
				t.Fatal(err)
			}
			got, want := strings.Join(res.GetSuspects(), " "), "127.9.0.3"
			if alive {
				want = ""
			}
			if got != want || !alive && gets != 2 {
				t.Errorf("blamed: %q after %d looks", got, gets)
			}
			if !alive {
				a.waitChange(removed)
			}
			r.host(1).hang(r.host(3), false)
		})
	}
}

// TestRefusal: the switch's counters show which receiver has refused an operation. The
// sender is told, and no receiver is taken out for that.
func TestRefusal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 4, withSwitch)
		r.receivers()
		a := r.host(1).app("")
		f := a.create(a.request()).GetFormation()
		report := func() []string {
			res, err := a.rpc.ReportStall(t.Context(), &mcrdmav1.ReportStallRequest{Token: a.token, Group: f.GetGroup(), Formation: 1, Refused: true})
			if err != nil {
				t.Fatal(err)
			}
			return res.GetSuspects()
		}
		if s := report(); len(s) > 0 {
			t.Errorf("no receiver has refused, but suspects are %v", s)
		}
		r.sw.mu.Lock()
		for addr, c := range map[string]*mcrdmav1.MemberCounters{"127.9.0.2": {Acks: 9, SequenceNaks: 1}, "127.9.0.3": {Acks: 9, FatalNaks: 1}, "127.9.0.4": {RnrNaks: 1}} {
			r.sw.counters[addr] = c
		}
		r.sw.mu.Unlock()
		if s := report(); len(s) != 1 || s[0] != "127.9.0.3" {
			t.Errorf("%v", s)
		}
		if c := a.waitChange(suspected); c.GetHost() != "h3" || !strings.Contains(c.GetText(), "fatal NAK") || !strings.Contains(c.GetText(), "torA") {
			t.Errorf("%v", c)
		}
		if got := r.atSwitch(); got != "2 3 4" {
			t.Errorf("at the switch: %s", got)
		}
		// What a check of a stall finds meanwhile is no answer to it.
		gate := make(chan struct{})
		r.sw.set(func(_ context.Context, method string, _ any) error {
			if method == "Get" {
				<-gate
			}
			return nil
		}, nil)
		r.host(1).hang(r.host(4), true)
		r.pass(300 * time.Millisecond)
		refusal := make(chan []string, 1)
		go func() { refusal <- report() }()
		synctest.Wait()
		res, err := a.rpc.ReportStall(t.Context(), &mcrdmav1.ReportStallRequest{Token: a.token, Group: f.GetGroup(), Formation: 1})
		if err != nil || !slices.Equal(res.GetSuspects(), []string{"127.9.0.4"}) {
			t.Errorf("a stall: %v, %v", res, err)
		}
		close(gate)
		if s := <-refusal; !slices.Equal(s, []string{"127.9.0.3"}) {
			t.Errorf("a refusal: %v", s)
		}
		r.host(1).hang(r.host(4), false)
		a.waitChange(removed)
		r.until("the switch goes on without", func() bool { return r.atSwitch() == "2 3" })
		a.closeGroup(f.GetGroup())
		r.wantNothing()
	})
}

// TestStallInTurns: a sender whose device has many queue pairs sends a packet only now and then, and
// a receiver has time to answer it, whatever was not sent before. One that answers none is frozen,
// unless it answers in another group.
func TestStallInTurns(t *testing.T) {
	never := time.Hour
	for _, c := range []struct {
		name   string
		sent   time.Duration // when a packet is sent to the first group, which h2 and h4 answer at once
		answer time.Duration // when h3 does, whereupon the sender goes on
		other  bool          // h3 answers in another group
		out    bool
	}{
		{name: "asked at the end", sent: 260 * time.Millisecond, answer: 350 * time.Millisecond},
		{name: "answered before the others", sent: never, answer: 150 * time.Millisecond},
		{name: "frozen", sent: 130 * time.Millisecond, answer: never, out: true},
		{name: "slow", sent: 130 * time.Millisecond, answer: never, other: true},
	} {
		testenv.Bubble(t, c.name, func(t *testing.T) {
			r := newRig(t, 4, withSwitch)
			r.receivers()
			a := r.host(1).app("")
			first, other := a.create(a.request()).GetFormation(), a.create(a.request()).GetFormation()
			counts := map[uint32]*counted{first.GetMcId(): {}, other.GetMcId(): {}}
			r.sw.countBy(func(mcID uint32) *counted { return counts[mcID] })
			begun := time.Now()
			report := func(f *mcrdmav1.FormationInfo) {
				_, err := a.rpc.ReportStall(t.Context(), &mcrdmav1.ReportStallRequest{Token: a.token, Group: f.GetGroup(), Formation: 1,
					Since: durationpb.New(time.Since(begun) + 200*time.Millisecond)})
				if err != nil && t.Context().Err() == nil {
					t.Error(err)
				}
			}
			timeout := qp.AckTimeout(ackTimeout(time.Second)).Round(10 * time.Millisecond)
			for at := time.Duration(0); at < 2*time.Second; at += 10 * time.Millisecond {
				r.sw.mu.Lock()
				x := counts[first.GetMcId()]
				if since := at - c.sent; since >= 0 && since%timeout == 0 && at < c.answer {
					x.packets++
				}
				if since := at - c.sent; since >= 0 && since%timeout == 0 && at < c.answer || c.sent == never && at == 30*time.Millisecond {
					x.acks[2]++
					x.acks[4]++
				}
				if at == c.answer && c.sent != never {
					x.acks[3]++
				}
				if c.other {
					x := counts[other.GetMcId()]
					x.packets++
					for i := range x.acks {
						x.acks[i]++
					}
				}
				r.sw.mu.Unlock()
				if at%(100*time.Millisecond) == 0 && at < c.answer {
					go report(first)
					if c.other {
						go report(other)
					}
				}
				time.Sleep(10 * time.Millisecond)
			}
			if out := a.countChanges(removed) > 0; out != c.out {
				t.Errorf("taken out: %v; the switch has %s", out, r.atSwitch())
			}
		})
	}
}

// TestStallBesideSlow: h3 answers in another group only, and is slow. h4, which stops later, is found all the same.
func TestStallBesideSlow(t *testing.T) {
	for _, stops := range []time.Duration{400 * time.Millisecond, 500 * time.Millisecond, 600 * time.Millisecond, 700 * time.Millisecond} {
		testenv.Bubble(t, stops.String(), func(t *testing.T) {
			r := newRig(t, 4, withSwitch)
			r.receivers()
			a := r.host(1).app("")
			two := a.request()
			two.Receivers = []string{"h2", "h3"}
			first, other := a.create(a.request()).GetFormation(), a.create(two).GetFormation()
			x, y := &counted{}, &counted{}
			r.sw.countBy(func(mcID uint32) *counted {
				if mcID == other.GetMcId() {
					return y
				}
				return x
			})
			begun := time.Now()
			report := func(f *mcrdmav1.FormationInfo) {
				_, _ = a.rpc.ReportStall(t.Context(), &mcrdmav1.ReportStallRequest{Token: a.token, Group: f.GetGroup(), Formation: 1,
					Since: durationpb.New(time.Since(begun) + 200*time.Millisecond)})
			}
			timeout := qp.AckTimeout(ackTimeout(time.Second)).Round(10 * time.Millisecond)
			for at := time.Duration(0); at < stops+800*time.Millisecond; at += 10 * time.Millisecond {
				r.sw.mu.Lock()
				if at%timeout == 0 {
					x.packets++
					x.acks[2]++
					if at < stops {
						x.acks[4]++
					}
				}
				y.packets++
				y.acks[2]++
				y.acks[3]++
				r.sw.mu.Unlock()
				if at%(140*time.Millisecond) == 0 {
					go report(first)
					go report(other)
				}
				time.Sleep(10 * time.Millisecond)
			}
			if n := a.countChanges(removed); n != 1 || a.waitChange(removed).GetHost() != "h4" {
				t.Errorf("%d removed; the switch has %s", n, r.atSwitch())
			}
		})
	}
}
