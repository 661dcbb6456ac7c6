package connmgr

import (
	"context"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/internal/failure"
)

// watch collects a daemon's events until the test ends.
func (a *app) watch() (kinds func() []string) {
	t := a.r.t
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	s, err := a.rpc.WatchEvents(ctx, &mcrdmav1.WatchEventsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	var list []string
	go func() {
		defer close(done)
		for {
			e, err := s.Recv()
			if err != nil {
				return
			}
			a.mu.Lock()
			list = append(list, strings.TrimSpace(e.GetKind()+" "+e.GetHost()))
			a.mu.Unlock()
		}
	}()
	t.Cleanup(func() { cancel(); <-done })
	kinds = func() []string {
		a.mu.Lock()
		defer a.mu.Unlock()
		return slices.Clone(list)
	}
	a.r.until("it watches", func() bool { return len(kinds()) > 0 })
	return kinds
}

// TestWatchEvents: who watches is told the life of groups and memberships, as root all, as
// another user the own.
func TestWatchEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 4, withSwitch)
		apps := r.receivers()
		a := r.host(1).app("")
		sender, receiver := a.watch(), apps[0].watch()
		r.net.SetUser("h1/other", 4711)
		other := &app{r: r, h: r.host(1), rpc: mcrdmav1.NewApplicationsClient(r.host(1).connect("passthrough:///"+r.host(1).m.Socket(), r.from("h1/other")))}
		none := other.watch()
		f := a.create(a.request()).GetFormation()
		r.host(4).kill()
		r.passUntil("h4 is removed", func() bool { return slices.Contains(sender(), "removed h4") })
		a.closeGroup(f.GetGroup())
		r.until("it has ended", func() bool { return slices.Contains(sender(), "ended") && slices.Contains(receiver(), "left") })
		if got := slices.DeleteFunc(sender(), func(s string) bool { return strings.HasPrefix(s, "agent") }); !slices.Equal(got, []string{"watching h1", "formed", "suspected h4", "removed h4", "ended"}) {
			t.Errorf("at the sender's host: %q", got)
		}
		if got := slices.DeleteFunc(receiver(), func(s string) bool { return strings.HasPrefix(s, "agent") }); !slices.Equal(got, []string{"watching h2", "joined", "left"}) {
			t.Errorf("at a receiver's host: %q", got)
		}
		if got := slices.DeleteFunc(none(), func(s string) bool { return strings.HasPrefix(s, "agent") }); !slices.Equal(got, []string{"watching h1"}) {
			t.Errorf("another user: %q", got)
		}
		// One that is lost just before the group is closed is removed, too: the switches may know it already.
		before, req := len(sender()), a.request()
		req.Receivers = []string{"h2", "h3"}
		f = a.create(req).GetFormation()
		r.sw.around(func(ctx context.Context, method string, call func(context.Context) error) error {
			if method == "Update" {
				<-ctx.Done()
			}
			return call(ctx)
		})
		r.host(3).kill()
		r.passUntil("the switches are to go on without h3", func() bool {
			r.sw.mu.Lock()
			defer r.sw.mu.Unlock()
			return r.sw.calls["Update"] == 2
		})
		a.closeGroup(f.GetGroup())
		r.until("it has ended", func() bool { return slices.Contains(sender()[before:], "ended") })
		if got := slices.DeleteFunc(sender()[before:], func(s string) bool { return strings.HasPrefix(s, "agent") }); !slices.Equal(got, []string{"formed", "suspected h3", "removed h3", "ended"}) {
			t.Errorf("at the end: %q", got)
		}
		r.sw.around(nil)
		r.sw.close()
		r.until("the agent's loss is told", func() bool { return slices.Contains(none(), "agent lost torA") })
	})
}

// TestListDevices: applications are asked for their counters. One that does not answer is
// listed, too, and holds up nothing; no application answers for another.
func TestListDevices(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 1)
		a, silent := r.host(1).app(""), r.host(1).app("")
		a.counters = &mcrdmav1.DeviceCounters{Driver: "softroce", Counters: []*mcrdmav1.DeviceCounter{{Name: "tx_packets", Value: 7}}}
		begun := time.Now()
		for range 2 * maxQueue / 100 {
			l, err := a.rpc.ListDevices(t.Context(), &mcrdmav1.ListDevicesRequest{})
			if err != nil || len(l.GetDevices()) != 2 {
				t.Fatal(l, err)
			}
			slices.SortFunc(l.Devices, func(x, y *mcrdmav1.DeviceInfo) int { return strings.Compare(x.GetError(), y.GetError()) })
			if d := l.Devices[0]; d.GetDevice().GetCounters()[0].GetValue() != 7 || d.GetError() != "" || d.GetProgram() != "test" {
				t.Errorf("%v", d)
			}
			if d := l.Devices[1]; d.GetDevice() != nil || !strings.Contains(d.GetError(), "has not answered") {
				t.Errorf("%v", d)
			}
		}
		if took := time.Since(begun); took > 2*maxQueue/100*countersTime+time.Second {
			t.Errorf("%v", took)
		}
		r.host(1).m.watched.mu.Lock()
		if n := len(r.host(1).m.watched.questions); n != 0 {
			t.Errorf("%d questions are left", n)
		}
		r.host(1).m.watched.mu.Unlock()
		answer := func(x *app, d *mcrdmav1.DeviceCounters) error {
			_, err := x.rpc.AnswerCounters(t.Context(), &mcrdmav1.AnswerCountersRequest{Token: x.token, Call: r.host(1).m.watched.calls, Device: d})
			return err
		}
		if err := answer(silent, a.counters); err != nil { // late, or of another's question: no matter
			t.Error(err)
		}
		for _, bad := range []*mcrdmav1.DeviceCounters{nil, {Counters: make([]*mcrdmav1.DeviceCounter, maxCounters+1)}} {
			for i := range bad.GetCounters() {
				bad.Counters[i] = &mcrdmav1.DeviceCounter{}
			}
			if err := answer(silent, bad); failure.Info(err).GetReason() != "INVALID" {
				t.Errorf("%d counters: %v", len(bad.GetCounters()), err)
			}
		}
	})
}
