package scenario

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/mcrdma/mcrdma/pkg/mcrdma"
)

// Applications and hosts die; the others get their names, and continue.
func TestDeath(t *testing.T) {
	everywhere(t, []story{
		{"a receiver's application dies", receiverDies},
		{"a receiver's host goes silent", receiverSilent},
		{"a receiver is silent for a moment", receiverSilentShortly},
		{"the sender's application dies", senderDies},
		{"the sender's host goes silent", senderSilent},
		{"too few are left", tooFew},
		{"all receivers die", allDie},
		{"no receiver is ready", noneReady},
		{"a daemon restarts while no receiver is ready", restartsNoneReady},
		{"two die at once", twoDie},
		{"a receiver dies and comes back", diesAndComesBack},
	})
	byHosts(t, []story{{"a receiver's host goes silent, over TCP", func(l *lab, cfg mcrdma.GroupConfig) {
		cfg.Transport = "tcp"
		receiverSilent(l, cfg)
	}}})
}

// removed waits until a receiver is removed, and checks that the others continue.
func (tm *team) removed(a *app) mcrdma.Event {
	tm.l.t.Helper()
	e := tm.event(mcrdma.EventRemoved)
	if e.Host != a.h.name || e.Address != a.h.addr.String() || e.Text == "" {
		tm.l.t.Errorf("%+v, want %s", e, a.h.name)
	}
	tm.without(a)
	return e
}

// members checks the number of a group's receivers.
func (tm *team) members(n int) {
	tm.l.t.Helper()
	if i := tm.g.Info(); len(i.Members) != n || i.Path != tm.l.path() {
		tm.l.t.Errorf("%d members are left by %v: %+v", len(i.Members), i.Path, i)
	}
}

func receiverDies(l *lab, cfg mcrdma.GroupConfig) {
	tm := l.group(cfg, l.others()...)
	tm.write()
	tm.apps[1].kill()
	tm.removed(tm.apps[1])
	tm.write()
	tm.members(2)
	if why := tm.g.Info().Why; strings.Contains(why[0], "3") {
		l.t.Errorf("two receivers are left: %q", why)
	}
	tm.close()
}

func receiverSilent(l *lab, cfg mcrdma.GroupConfig) {
	tm := l.group(cfg, l.others()...)
	tm.write()
	lost := tm.apps[1]
	lost.h.silence(true)
	done := make(chan error, 1)
	l.wg.Go(func() { done <- tm.tryWrite(l.t.Context()) }) // it completes without the lost one
	begun := time.Now()
	tm.removed(lost)
	l.must(<-done)
	if took := time.Since(begun); took > time.Second {
		l.t.Errorf("written after %v", took)
	}
	tm.same()
	tm.members(2)
	time.Sleep(10 * time.Second)
	lost.h.silence(false)
	lost.ends(mcrdma.ErrRemoved)
	tm.write()
	tm.close()
}

// receiverSilentShortly: packets in flight arrive late.
func receiverSilentShortly(l *lab, cfg mcrdma.GroupConfig) {
	tm := l.group(cfg, l.others()...)
	tm.write()
	h := tm.apps[1].h
	h.silence(true)
	l.wg.Go(func() {
		time.Sleep(100 * time.Millisecond)
		h.silence(false)
	})
	tm.write()
	time.Sleep(5 * time.Second)
	tm.members(3)
	tm.close()
}

// TestFrozen: an application stops answering packets, and its host runs.
func TestFrozen(t *testing.T) {
	bySwitches(t, []story{{"a receiver's application freezes", func(l *lab, cfg mcrdma.GroupConfig) {
		tm := l.group(cfg, l.others()...)
		tm.write()
		frozen := tm.apps[1]
		frozen.h.cable.Cut(true)
		begun := time.Now()
		l.must(tm.tryWrite(l.t.Context()))
		if took := time.Since(begun); took > 650*time.Millisecond { // as in docs/failures.md
			l.t.Errorf("the write took %v", took)
		}
		if e := tm.removed(frozen); !strings.Contains(e.Text, "acknowledges nothing") {
			l.t.Errorf("%+v", e)
		}
		tm.same()
		tm.members(2)
		frozen.h.cable.Cut(false)
		frozen.ends(mcrdma.ErrRemoved)
		tm.write()
		tm.close()
	}}})
}

// TestAllFrozen: what all receivers have in common blames none, although not all answer again at the same time.
func TestAllFrozen(t *testing.T) {
	var list []story
	for _, frozen := range []int{600, 650, 700, 750, 800} {
		for _, more := range []int{0, 100, 200} {
			list = append(list, story{fmt.Sprintf("all freeze for %d ms, one for %d ms more", frozen, more), func(l *lab, cfg mcrdma.GroupConfig) {
				tm := l.group(cfg, l.others()...)
				tm.write()
				for _, a := range tm.apps {
					a.h.cable.Cut(true)
				}
				l.wg.Go(func() {
					time.Sleep(time.Duration(frozen) * time.Millisecond)
					tm.apps[0].h.cable.Cut(false)
					tm.apps[1].h.cable.Cut(false)
					time.Sleep(time.Duration(more) * time.Millisecond)
					tm.apps[2].h.cable.Cut(false)
				})
				tm.write()
				tm.members(3)
				tm.close()
			}})
		}
	}
	bySwitches(t, list)
}

// TestSuspects: where hosts relay, a failure of connections tells less than the switch's counters.
func TestSuspects(t *testing.T) {
	byHosts(t, []story{
		{"two receivers' applications freeze", twoFreeze},
		{"connections break now and then", breaksNowAndThen},
	})
}

// twoFreeze: either of the two may be suspected first, again and again. They are removed.
func twoFreeze(l *lab, cfg mcrdma.GroupConfig) {
	cfg.MinSize = 1
	for _, delay := range []time.Duration{0, 50 * time.Millisecond, 200 * time.Millisecond} {
		tm := l.group(cfg, l.others()...)
		tm.write()
		frozen := tm.apps[:2]
		frozen[0].h.cable.Cut(true)
		done := make(chan error, 1)
		l.wg.Go(func() { done <- tm.tryWrite(l.t.Context()) })
		time.Sleep(delay)
		frozen[1].h.cable.Cut(true)
		l.must(<-done)
		tm.apps = tm.apps[2:]
		tm.same()
		tm.members(1)
		for _, a := range frozen {
			a.h.cable.Cut(false)
			a.ends(mcrdma.ErrRemoved)
			a.close()
		}
		tm.close()
		tm.apps[0].close()
		tm.sender.close()
	}
}

// breaksNowAndThen: a receiver is not removed for failures that are far apart.
func breaksNowAndThen(l *lab, cfg mcrdma.GroupConfig) {
	tm := l.group(cfg, l.others()...)
	h := tm.apps[1].h
	for range 5 {
		tm.write()
		h.cable.Cut(true)
		l.wg.Go(func() {
			time.Sleep(1500 * time.Millisecond)
			h.cable.Cut(false)
		})
		tm.write()
		time.Sleep(time.Minute)
	}
	tm.members(3)
	tm.close()
}

// TestDoubleFailures: a second receiver fails while the first is being found or removed, which waits for
// the second one's daemon. The queue pair's retries are enough for both. Where hosts relay, a formation
// waits for a silent host until it counts as dead.
func TestDoubleFailures(t *testing.T) {
	type failure struct {
		name string
		do   func(*app)
		undo func(*app)
	}
	killed := failure{"is killed", (*app).kill, func(*app) {}}
	silent := failure{"goes silent", func(a *app) { a.h.silence(true) }, func(a *app) { a.h.silence(false) }}
	frozen := failure{"freezes", func(a *app) { a.h.cable.Cut(true) }, func(a *app) { a.h.cable.Cut(false) }}
	gone := failure{"is killed with its daemon", func(a *app) { a.h.crash(); a.kill() }, func(a *app) { a.h.start() }}
	type double struct {
		first, second failure
		delay         time.Duration
	}
	stories := func(most time.Duration, list ...double) (out []story) {
		for _, c := range list {
			out = append(out, story{fmt.Sprintf("one %s, and after %v one %s", c.first.name, c.delay, c.second.name), func(l *lab, cfg mcrdma.GroupConfig) {
				l.wait, cfg.MinSize = leases, 1
				tm := l.group(cfg, l.others()...)
				tm.write()
				first, second := tm.apps[0], tm.apps[1]
				c.first.do(first)
				begun, done := time.Now(), make(chan error, 1)
				l.wg.Go(func() { done <- tm.tryWrite(l.t.Context()) })
				time.Sleep(c.delay)
				c.second.do(second)
				l.must(<-done)
				tm.apps = tm.apps[2:]
				tm.write()
				if took := time.Since(begun); took > most {
					l.t.Errorf("the writes took %v", took)
				}
				tm.members(1)
				c.first.undo(first)
				c.second.undo(second)
				tm.close()
			}})
		}
		return out
	}
	const soon, later = 200 * time.Millisecond, 400 * time.Millisecond
	bySwitches(t, stories(1074*time.Millisecond, double{killed, gone, 0}, double{silent, gone, 0}, double{silent, gone, soon}, double{gone, silent, 0},
		double{gone, silent, soon}, double{gone, killed, soon}, double{frozen, silent, soon},
		double{silent, frozen, later}, double{silent, gone, later}, double{frozen, frozen, later}, double{frozen, gone, later}))
	byHosts(t, stories(1250*time.Millisecond, double{killed, silent, 0}, double{silent, killed, 0}, double{silent, gone, 0}, double{silent, gone, soon},
		double{gone, silent, 0}))
	byHosts(t, append(stories(250*time.Millisecond, double{killed, gone, 0}, double{gone, gone, 0}, double{gone, gone, 50 * time.Millisecond}),
		story{"one is killed, and the daemon of another restarts", killedAndRestarted}))
}

// killedAndRestarted: an application that runs is waited for, until its daemon is back.
func killedAndRestarted(l *lab, cfg mcrdma.GroupConfig) {
	tm := l.group(cfg, l.others()...)
	tm.write()
	tm.apps[0].kill()
	h := tm.apps[1].h
	h.crash()
	l.wg.Go(func() {
		time.Sleep(5 * time.Second)
		h.start()
	})
	tm.apps = tm.apps[1:]
	tm.write()
	tm.members(2)
	tm.close()
}

func senderDies(l *lab, cfg mcrdma.GroupConfig) {
	tm := l.group(cfg, l.others()...)
	tm.write()
	begun := time.Now()
	tm.sender.kill()
	for _, a := range tm.apps {
		a.ends(mcrdma.ErrSenderLost)
	}
	if took := time.Since(begun); took > time.Second {
		l.t.Errorf("noticed after %v", took)
	}
	l.noGroups("after the sender's death")
}

func senderSilent(l *lab, cfg mcrdma.GroupConfig) {
	l.wait = leases // remains of a broken-off request wait for the agents' next sync
	tm := l.group(cfg, l.others()...)
	tm.write()
	tm.sender.h.silence(true)
	for _, a := range tm.apps {
		a.ends(mcrdma.ErrSenderLost)
	}
	tm.sender.h.silence(false)
	tm.event(mcrdma.EventFailed)
	l.noGroups("after the sender's silence")
}

func tooFew(l *lab, cfg mcrdma.GroupConfig) {
	cfg.MinSize = 4
	tm := l.group(cfg, l.others()...)
	tm.write()
	tm.apps[1].kill()
	tm.event(mcrdma.EventFailed)
	l.fails(tm.g.Err(), mcrdma.ErrMinSize, "")
	l.fails(tm.tryWrite(l.t.Context()), mcrdma.ErrMinSize, "")
	tm.without(tm.apps[1])
	for _, a := range tm.apps {
		ctx, cancel := context.WithTimeout(l.t.Context(), time.Minute)
		if _, err := a.m.Recv(ctx); err == nil || ctx.Err() != nil {
			l.t.Errorf("%s: %v", a.h.name, err)
		}
		cancel()
	}
	l.noGroups("after a group's failure")
}

func allDie(l *lab, cfg mcrdma.GroupConfig) {
	cfg.MinSize = 1
	tm := l.group(cfg, l.others()...)
	tm.write()
	for _, a := range tm.apps {
		a.kill()
	}
	tm.event(mcrdma.EventFailed)
	l.fails(tm.g.Err(), mcrdma.ErrMinSize, "")
	l.noGroups("after a group's failure")
}

// noneReady: no receiver has posted a receive, wherever it is. They are removed, and the group fails.
func noneReady(l *lab, cfg mcrdma.GroupConfig) {
	for _, hosts := range [][]*host{l.others(), l.hosts[1:2], l.hosts[len(l.hosts)-1:]} {
		tm := l.group(cfg, hosts...)
		tm.write()
		ctx, cancel := context.WithTimeout(l.t.Context(), 20*time.Second)
		l.fails(tm.g.Send(ctx, tm.sender.mem.Slice(0, 100)), mcrdma.ErrMinSize, "")
		cancel()
		for _, a := range tm.apps {
			a.ends(mcrdma.ErrRemoved, mcrdma.ErrMinSize)
			a.close()
		}
		tm.sender.close()
	}
}

// restartsNoneReady: in a stall, too, a daemon that does not run has a grace, unless its host's application is dead.
func restartsNoneReady(l *lab, cfg mcrdma.GroupConfig) {
	tm := l.group(cfg, l.others()...)
	tm.write()
	l.wg.Go(func() {
		time.Sleep(time.Second)
		l.hosts[2].crash()
		time.Sleep(2 * time.Second)
		l.hosts[2].start()
		for _, a := range tm.apps {
			l.must(a.m.PostRecv(a.mem.Slice(size, 100)))
		}
	})
	l.must(tm.g.Send(l.t.Context(), tm.sender.mem.Slice(0, 100)))
	tm.resumed(l.hosts[2])
	tm.members(3)
	for _, a := range tm.apps {
		_, err := a.m.Recv(l.t.Context())
		l.must(err)
	}
	tm.close()
}

func twoDie(l *lab, cfg mcrdma.GroupConfig) {
	tm := l.group(cfg, l.others()...)
	tm.write()
	left := tm.apps[2]
	tm.apps[0].kill()
	tm.apps[1].kill()
	for range 2 {
		tm.event(mcrdma.EventRemoved)
	}
	tm.apps = []*app{left}
	tm.write()
	tm.members(1)
	tm.close()
}

func diesAndComesBack(l *lab, cfg mcrdma.GroupConfig) {
	tm := l.group(cfg, l.others()...)
	h := tm.apps[2].h
	tm.apps[2].kill()
	tm.removed(tm.apps[2])
	again := h.receive()
	tm.add(h.name)
	again.accept()
	tm.apps = append(tm.apps, again)
	tm.write()
	tm.members(3)
	tm.close()
}
