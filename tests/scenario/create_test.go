package scenario

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/pkg/mcrdma"
)

// Groups are created, or refused with a clear error, and nothing is left.
func TestCreate(t *testing.T) {
	everywhere(t, []story{
		{"created", created},
		{"refused by a receiver", refused},
		{"a receiver does not listen", noListener},
		{"a receiver ends while it is asked", endsAsked},
		{"no such host", noSuchHost},
		{"a daemon does not run", noDaemon},
		{"the sender's own daemon stays away", ownDaemonAway},
		{"receivers start later", startLater},
		{"receivers do not start in time", neverStart},
		{"two groups at once", twoGroups},
	})
}

// Slow steps of creating a group run in parallel.
func TestCreateInSeries(t *testing.T) {
	bySwitches(t, []story{{"slow switches", slowSwitches}, {"slow disks", slowDisks}})
}

// Where switches cannot copy, hosts relay, and Info says why; or the creation fails.
func TestFallBack(t *testing.T) {
	bySwitches(t, []story{
		{"agent away", agentAway},
		{"switches are required", switchesRequired},
		{"mode off", modeOff},
	})
	byHosts(t, []story{{"switches are required", switchesRequired}})
}

// fails checks the error of a call and the host that it names.
func (l *lab) fails(err error, want error, host string) {
	l.t.Helper()
	if remote, ok := errors.AsType[*mcrdma.Error](err); !errors.Is(err, want) || host != "" && (!ok || remote.Host != host) {
		l.t.Errorf("%v, want %v of %q", err, want, host)
	}
}

// because returns an error of that reason, for fails.
func because(r mcrdmav1.Reason) error { return &mcrdma.Error{Reason: r} }

// create makes the first host's application create a group with all others.
func (l *lab) create(cfg mcrdma.GroupConfig) error {
	l.t.Helper()
	a := l.hosts[0].app
	if a == nil {
		a = l.hosts[0].run()
	}
	g, err := a.client.Create(l.t.Context(), groupTo(cfg, l.others()...))
	if err == nil {
		err = errors.Join(errors.New("it was created"), g.Close(l.t.Context()))
	}
	return err
}

func created(l *lab, cfg mcrdma.GroupConfig) {
	tm := l.group(cfg, l.others()...)
	info := tm.g.Info()
	if info.Path != l.path() || len(info.Members) != 3 || info.Formation != 1 || len(info.Why) == 0 || info.MinSize != 2 {
		l.t.Errorf("%+v", info)
	}
	for range 3 {
		tm.write()
	}
	if s := tm.g.Info().Stats; s.Operations != 3 || s.Completed != 3 || s.Bytes != 3*size || s.Replayed != 0 {
		l.t.Errorf("%+v", s)
	}
	tm.close()
}

// inSeries returns how many times that long it takes to create a group.
func inSeries(l *lab, cfg mcrdma.GroupConfig, each time.Duration) int {
	for _, h := range l.others() {
		h.receive()
	}
	a, begun := l.hosts[0].run(), time.Now()
	g, err := a.client.Create(l.t.Context(), groupTo(cfg, l.others()...))
	took := time.Since(begun)
	l.must(err)
	l.must(g.Close(l.t.Context()))
	return int((took + each/2) / each)
}

// slowSwitches: all switches are written in parallel, in three calls: entries without dependencies,
// entries that use these, and the match. The sender's switch has counters read before.
func slowSwitches(l *lab, cfg mcrdma.GroupConfig) {
	for _, n := range l.switches {
		n.slow.Store(int64(100 * time.Millisecond))
		defer n.slow.Store(0)
	}
	if n := inSeries(l, cfg, 100*time.Millisecond); n != 4 {
		l.t.Errorf("%d calls to switches in series, want 4", n)
	}
}

// slowDisks: the beginning of a formation is stored while it is formed, and then its completion,
// here and at the members.
func slowDisks(l *lab, cfg mcrdma.GroupConfig) {
	for _, h := range l.hosts {
		h.disk.setLatency(100 * time.Millisecond)
		defer h.disk.setLatency(0)
	}
	if n := inSeries(l, cfg, 100*time.Millisecond); n != 2 {
		l.t.Errorf("%d durable writes in series, want 2", n)
	}
}

func refused(l *lab, cfg mcrdma.GroupConfig) {
	for _, h := range l.others() {
		h.run().listen(func(r *mcrdma.Request) error {
			if r.Sender != "h1" || r.Program != "h1" {
				l.t.Errorf("%+v", r)
			}
			if h.name == "h3" {
				return errors.New("it is not wanted here")
			}
			return nil
		})
	}
	err := l.create(cfg)
	l.fails(err, mcrdma.ErrDenied, "h3")
	if !strings.Contains(err.Error(), "it is not wanted here") {
		l.t.Errorf("%v", err)
	}
	l.noGroups("after a refusal")
}

func noListener(l *lab, cfg mcrdma.GroupConfig) {
	l.hosts[1].receive()
	l.hosts[2].run()
	l.hosts[3].receive()
	l.fails(l.create(cfg), because(mcrdmav1.Reason_NO_SERVICE), "h3")
	l.noGroups("after an error")
}

// endsAsked: an application that ends is one that does not listen, and the sender's group is not closed.
func endsAsked(l *lab, cfg mcrdma.GroupConfig) {
	l.hosts[1].receive()
	l.hosts[3].receive()
	a := l.hosts[2].run()
	a.listen(func(*mcrdma.Request) error {
		time.Sleep(500 * time.Millisecond)
		return nil
	})
	l.wg.Go(func() {
		time.Sleep(100 * time.Millisecond)
		a.close()
	})
	l.fails(l.create(cfg), mcrdma.ErrUnreachable, "h3")
	time.Sleep(time.Second)
	l.noGroups("after an error")
}

func noSuchHost(l *lab, cfg mcrdma.GroupConfig) {
	cfg.Receivers = []string{"missing"}
	_, err := l.hosts[0].run().client.Create(l.t.Context(), groupTo(cfg))
	l.fails(err, because(mcrdmav1.Reason_NO_SUCH_HOST), "")
}

func noDaemon(l *lab, cfg mcrdma.GroupConfig) {
	l.hosts[1].receive()
	l.hosts[2].stop()
	l.hosts[3].receive()
	l.fails(l.create(cfg), mcrdma.ErrUnreachable, "h3")
	l.hosts[2].start()
	l.noGroups("after an error")
}

// ownDaemonAway: a creation does not wait for longer than the daemon keeps sessions.
func ownDaemonAway(l *lab, cfg mcrdma.GroupConfig) {
	for _, h := range l.others() {
		h.receive()
	}
	l.hosts[0].run()
	l.hosts[0].stop()
	ctx, cancel := context.WithTimeout(l.t.Context(), time.Minute)
	defer cancel()
	begun := time.Now()
	_, err := l.hosts[0].app.client.Create(ctx, groupTo(cfg, l.others()...))
	if took := time.Since(begun); !errors.Is(err, mcrdma.ErrDaemon) || ctx.Err() != nil || took < 5*time.Second || took > 15*time.Second {
		l.t.Errorf("%v after %v", err, took)
	}
	l.hosts[0].start()
	l.eventually("the session is resumed", func() error {
		g, err := l.hosts[0].app.client.Create(l.t.Context(), groupTo(cfg, l.others()...))
		if err == nil {
			err = g.Close(l.t.Context())
		}
		return err
	})
}

func startLater(l *lab, cfg mcrdma.GroupConfig) {
	l.hosts[1].receive()
	l.hosts[3].stop()
	done := make(chan struct{})
	l.wg.Go(func() {
		defer close(done)
		time.Sleep(5 * time.Second)
		l.hosts[2].receive()
		time.Sleep(5 * time.Second)
		l.hosts[3].start()
		l.hosts[3].receive()
	})
	cfg.Wait = 20 * time.Second
	tm := &team{l: l, sender: l.hosts[0].run()}
	begun := time.Now()
	var err error
	tm.g, err = tm.sender.client.Create(l.t.Context(), groupTo(cfg, l.others()...))
	l.must(err)
	<-done
	if took := time.Since(begun); took < 10*time.Second || took > 12*time.Second {
		l.t.Errorf("created after %v", took)
	}
	for _, h := range l.others() {
		h.app.accept()
		tm.apps = append(tm.apps, h.app)
	}
	tm.write()
	tm.close()
}

func neverStart(l *lab, cfg mcrdma.GroupConfig) {
	l.hosts[1].receive()
	l.hosts[2].run()
	l.hosts[3].receive()
	cfg.Wait = 7 * time.Second
	begun := time.Now()
	l.fails(l.create(cfg), because(mcrdmav1.Reason_NO_SERVICE), "h3")
	if took := time.Since(begun); took < cfg.Wait || took > cfg.Wait+time.Second {
		l.t.Errorf("given up after %v", took)
	}
	l.noGroups("after an error")
}

func twoGroups(l *lab, cfg mcrdma.GroupConfig) {
	tm := l.group(cfg, l.others()...)
	other := &team{l: l, sender: tm.sender}
	for _, a := range tm.apps {
		other.apps = append(other.apps, &app{h: a.h, l: a.l})
	}
	other.create(groupTo(cfg, l.others()...))
	if tm.g.Info().ID == other.g.Info().ID {
		l.t.Error("both have one number")
	}
	tm.write()
	tm.close()
	other.write()
	other.close()
}

func agentAway(l *lab, cfg mcrdma.GroupConfig) {
	l.net.Bar(l.hosts[0].process(), l.switches[0].listen(), true)
	tm := l.group(cfg, l.others()...)
	info := tm.g.Info()
	why := strings.Join(info.Why, "\n")
	if info.Path != mcrdma.PathRelay || !strings.Contains(why, "leaf1") || !strings.Contains(why, "does not answer") {
		l.t.Errorf("%+v", info)
	}
	tm.write()
	l.net.Bar(l.hosts[0].process(), l.switches[0].listen(), false)
	if e := tm.event(mcrdma.EventReformed); e.Before != mcrdma.PathRelay || e.After != mcrdma.PathSwitch {
		l.t.Errorf("%v", e)
	}
	if info = tm.g.Info(); info.Path != mcrdma.PathSwitch || len(info.Members) != 3 || info.Formation < 2 {
		l.t.Errorf("%+v", info)
	}
	tm.write()
	tm.close()
}

func switchesRequired(l *lab, cfg mcrdma.GroupConfig) {
	for _, h := range l.others() {
		h.receive()
	}
	if len(l.switches) > 0 {
		l.switches[0].stop()
	}
	cfg.Mode = mcrdma.ModeRequire
	l.fails(l.create(cfg), mcrdma.ErrNoSwitch, "")
	if len(l.switches) > 0 {
		l.switches[0].start()
		l.switches[0].ready()
	}
	l.noGroups("after an error")
}

func modeOff(l *lab, cfg mcrdma.GroupConfig) {
	cfg.Mode = mcrdma.ModeOff
	tm := l.group(cfg, l.others()...)
	if info := tm.g.Info(); info.Path != mcrdma.PathRelay {
		l.t.Errorf("%+v", info)
	}
	for _, n := range l.switches {
		s, err := n.status()
		if err != nil || s.GetGroups() != 0 || s.GetSteps() != 0 {
			l.t.Errorf("%v, %v", s, err)
		}
	}
	tm.write()
	tm.close()
}
