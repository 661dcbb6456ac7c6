package switchagent

import (
	"bytes"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/internal/failure"
	"github.com/mcrdma/mcrdma/internal/p4rt"
	"github.com/mcrdma/mcrdma/internal/softswitch"
	"github.com/mcrdma/mcrdma/internal/softswitch/pipeline"
	"github.com/mcrdma/mcrdma/internal/softswitch/pre"
	"github.com/mcrdma/mcrdma/internal/switchagent/config"
	"github.com/mcrdma/mcrdma/internal/switchagent/links"
	"github.com/mcrdma/mcrdma/internal/switchspec"
	"github.com/mcrdma/mcrdma/tests/memnet"
)

// TestHealth: an agent serves while it controls its switch: not before the switch is
// there, nor while it is away or another agent has it.
func TestHealth(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLine(t, 1)
		n := l.nodes[0]
		n.sw.close()
		l.launch(1)
		w, err := healthpb.NewHealthClient(l.conn(1)).Watch(within(t, 10*time.Minute), &healthpb.HealthCheckRequest{})
		if err != nil {
			t.Fatal(err)
		}
		expect := func(when string, want healthpb.HealthCheckResponse_ServingStatus) {
			t.Helper()
			res, err := w.Recv()
			if err != nil || res.GetStatus() != want {
				t.Fatalf("%s: %v, %v", when, res, err)
			}
			if why := n.agent.waitsFor(); (why == "") != (want == healthpb.HealthCheckResponse_SERVING) { // /readyz
				t.Errorf("%s: %q", when, why)
			}
		}
		expect("without a switch", healthpb.HealthCheckResponse_NOT_SERVING)
		for range 2 {
			n.sw, _ = l.startSwitch(n.p4)
			expect("with its switch", healthpb.HealthCheckResponse_SERVING)
			if !isReady(n.agent) {
				t.Error("it serves, and is not ready")
			}
			n.sw.close()
			expect("its switch has gone", healthpb.HealthCheckResponse_NOT_SERVING)
		}
		n.sw, _ = l.startSwitch(n.p4)
		expect("with its switch", healthpb.HealthCheckResponse_SERVING)
		_, end := l.control(1)
		expect("another controller has its switch", healthpb.HealthCheckResponse_NOT_SERVING)
		end()
		expect("the other controller has gone", healthpb.HealthCheckResponse_SERVING)
	})
}

// TestSwitchAway: an agent without its switch says so at once to a host that wants a group, and in its
// status. What is to be removed it takes note of. A switch that is back in a moment is waited for.
func TestSwitchAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLine(t, 1)
		n := l.nodes[0]
		var logged bytes.Buffer
		var busy atomic.Bool
		l.start(1, func(_ *config.Config, o *Options) {
			o.Logger = slog.New(slog.NewTextHandler(&logged, nil))
			o.Busy = func(time.Time) bool { return busy.Load() }
		})
		g, next := aGroup(hostAddr(1, 1), 0x800001, hostAddr(1, 2)), aGroup(hostAddr(1, 1), 0x800002, hostAddr(1, 2))
		l.install(1, g)
		n.sw.close()
		synctest.Wait()
		if d, _ := n.agent.driver.current(); !errors.Is(d.err, p4rt.ErrStreamLost) {
			t.Errorf("with a switch that has gone: %v", d.err)
		}
		back := make(chan error)
		go func() {
			_, err := l.groups(1).Install(t.Context(), &mcrdmav1.InstallRequest{Group: next})
			back <- err
		}()
		time.Sleep(lostGrace / 10)
		n.sw, _ = l.startSwitch(n.p4)
		if err := <-back; err != nil {
			t.Errorf("a switch that was away for a moment: %v", err)
		}
		n.sw.close()
		lost := time.Now().UTC().Format(time.DateTime)
		time.Sleep(5 * lostGrace)
		synctest.Wait()
		if again := strings.Count(logged.String(), "the switch is not connected"); again > 4 { // twice lost, and twice refused
			t.Errorf("it says %d times that its switch is away:\n%s", again, &logged)
		}
		within := func(what string, most time.Duration, f func() error) error {
			t.Helper()
			begun := time.Now()
			err := f()
			if took := time.Since(begun); took > most {
				t.Errorf("%s took %v", what, took)
			}
			return err
		}
		err := within("an install", 100*time.Millisecond, func() error {
			_, err := l.groups(1).Install(t.Context(), &mcrdmav1.InstallRequest{Group: aGroup(hostAddr(1, 1), 0x800003, hostAddr(1, 2))})
			return err
		})
		why := "the switch has not been connected to its agent since " + lost
		if e := failure.Read(err); e == nil || e.Reason != mcrdmav1.Reason_NOT_READY || !strings.HasPrefix(e.Text, why) {
			t.Errorf("%v", err)
		}
		if err := within("a remove", 100*time.Millisecond, func() error {
			_, err := l.groups(1).Remove(t.Context(), &mcrdmav1.RemoveRequest{Key: g.Key})
			return err
		}); err != nil {
			t.Errorf("%v", err)
		}
		s, err := mcrdmav1.NewSwitchStatusClient(l.conn(1)).GetStatus(t.Context(), &mcrdmav1.GetStatusRequest{})
		if err != nil || !strings.HasPrefix(s.GetWaitsFor(), why) {
			t.Errorf("%v, %v", s, err)
		}
		n.sw, _ = l.startSwitch(n.p4)
		time.Sleep(10 * time.Second)
		if why := n.agent.waitsFor(); why != "" {
			t.Errorf("with its switch: %s", why)
		}
		near, far := memnet.Pair("s3", "h3")
		if err := errors.Join(n.sw.Attach(3, near), far.Close()); err != nil {
			t.Error(err)
		}
		n.sw.Accelerate(softswitch.NoFastPath("it is a test"))
		time.Sleep(2 * time.Second) // it is asked again each second
		s, err = mcrdmav1.NewSwitchStatusClient(l.conn(1)).GetStatus(t.Context(), &mcrdmav1.GetStatusRequest{})
		if err != nil || s.GetP4Runtime().GetFastPath() != "off: it is a test" ||
			!slices.Equal(s.AllProblems(), []string{"the switch: port 3, s3, is down or has no link; set it and its other end up"}) {
			t.Errorf("what the switch says of itself: %v, %v", s, err)
		}
		hangs, going := make(chan struct{}), make(chan struct{})
		busy.Store(true)
		go n.sw.Do(func(*pipeline.Pipeline, *pre.Engine) { close(hangs); <-going })
		<-hangs
		time.Sleep(5 * time.Second)
		if d, _ := n.agent.driver.current(); d.err != nil {
			t.Errorf("the switch of a busy host is late: %v", d.err)
		}
		busy.Store(false)
		for _, most := range []time.Duration{5 * time.Second, 100 * time.Millisecond} {
			err = within("an install while the switch hangs", most, func() error {
				_, err := l.groups(1).Install(t.Context(), &mcrdmav1.InstallRequest{Group: aGroup(hostAddr(1, 1), 0x800003, hostAddr(1, 2))})
				return err
			})
			if e := failure.Read(err); e == nil || e.Reason != mcrdmav1.Reason_NOT_READY || !strings.HasSuffix(e.Text, p4rt.ErrSilent.Error()) {
				t.Errorf("an install while the switch hangs: %v", err)
			}
			time.Sleep(lostGrace)
		}
		s, errStatus := mcrdmav1.NewSwitchStatusClient(l.conn(1)).GetStatus(t.Context(), &mcrdmav1.GetStatusRequest{})
		if p := s.GetP4Runtime(); errStatus != nil || p.GetConnected() || !strings.HasSuffix(p.GetError(), p4rt.ErrSilent.Error()) {
			t.Errorf("with a switch that hangs: %v, %v", p, errStatus)
		}
		close(going)
		time.Sleep(10 * time.Second)
		if why := n.agent.waitsFor(); why != "" {
			t.Errorf("its switch answers again: %s", why)
		}
		l.remove(1, next)
		l.noLeftovers()
	})
}

// TestWaitsFor: an agent that has just started says what it waits for.
func TestWaitsFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLine(t, 2)
		n := l.launch(1, func(c *config.Config, _ *Options) {
			c.Routing.Settle = time.Second
			for i := range c.Ports {
				if p := &c.Ports[i]; p.Port == 101 {
					p.Hello, p.PeerMAC = true, switchspec.MAC{}
				}
			}
		})
		time.Sleep(500 * time.Millisecond)
		if got, want := n.agent.waitsFor(), "routes are being learned, for another 500ms (routing.settle)"; got != want {
			t.Errorf("%q, want %q", got, want)
		}
		time.Sleep(time.Second)
		if got, want := n.agent.waitsFor(), "the link of port 101 to sw2 is down, for which the agent waits for another 1.5s"; got != want {
			t.Errorf("%q, want %q", got, want)
		}
		time.Sleep(2 * time.Second)
		if got := n.agent.waitsFor(); got != "" {
			t.Errorf("%q", got)
		}
	})
}

// TestLinkProblems: a link that loses packets is the switch's problem, by its port.
func TestLinkProblems(t *testing.T) {
	got := linkProblems([]links.State{{Port: 8, State: links.Up}, {Port: 9, State: links.Up, Problem: "half of the hellos were lost"}})
	if !slices.Equal(got, []string{"port 9: half of the hellos were lost"}) {
		t.Errorf("%q", got)
	}
}

// TestPortsWithoutSwitch: an agent that has lost its switch says of no link that it is up, also before hellos are missed.
func TestPortsWithoutSwitch(t *testing.T) {
	for state, want := range map[string]string{links.Up: "unknown", links.Down: links.Down, links.Init: links.Init} {
		if got := portStatus(links.State{State: state}, false).GetState(); got != want {
			t.Errorf("%s: %s, want %s", state, got, want)
		}
		if got := portStatus(links.State{State: state}, true).GetState(); got != state {
			t.Errorf("%s is shown as %s", state, got)
		}
	}
}
