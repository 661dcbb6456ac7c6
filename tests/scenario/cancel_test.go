package scenario

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/mcrdma/mcrdma/internal/testenv"
	"github.com/mcrdma/mcrdma/pkg/mcrdma"
	"github.com/mcrdma/mcrdma/tests/memnet"
)

// A caller cancels a call at any time: it gets its context's error and nothing is left, or the call
// was completed.
func TestCancel(t *testing.T) {
	everywhere(t, []story{
		{"creation", cancelCreate},
		{"a receiver joins", cancelAdd},
		{"closing", cancelClose},
		{"the application ends during the creation", diesCreating},
		{"a receiver's application ends during the creation", receiverDiesCreating},
		{"a receiver's application restarts during the creation", receiverRestartsCreating},
		{"connections break during the creation", connectionsBreak},
		{"a host is silent during the creation", silentCreating},
		{"listening and dialing", cancelDial},
	})
}

// stride is the distance between points of a sweep: the race detector, which makes everything ten
// times slower, does not need all of them.
func stride() int {
	if testenv.Race {
		return 5
	}
	return 1
}

// upTo calls f with increasing times until it reports that the time was enough.
func (l *lab) upTo(most time.Duration, f func(d time.Duration) bool) {
	l.t.Helper()
	for d := time.Duration(0); ; d += time.Duration(stride()) * memnet.Latency {
		if d > most {
			l.t.Errorf("after %v it still is not done", d)
		}
		if f(d) || l.t.Failed() {
			return
		}
	}
}

func cancelCreate(l *lab, cfg mcrdma.GroupConfig) {
	for _, h := range l.others() {
		h.receive()
	}
	a := l.hosts[0].run()
	l.upTo(50*time.Millisecond, func(d time.Duration) bool {
		ctx, cancel := context.WithTimeout(l.t.Context(), d)
		defer cancel()
		g, err := a.client.Create(ctx, groupTo(cfg, l.others()...))
		if err == nil {
			l.must(g.Close(l.t.Context()))
		} else if !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, mcrdma.ErrTimeout) {
			l.t.Errorf("given up after %v: %v", d, err)
		}
		l.noGroups("a creation that was given up after " + d.String())
		return err == nil
	})
}

func cancelAdd(l *lab, cfg mcrdma.GroupConfig) {
	l.upTo(100*time.Millisecond, func(d time.Duration) bool {
		tm := l.group(cfg, l.hosts[1], l.hosts[2])
		spare := l.hosts[3].receive()
		ctx, cancel := context.WithTimeout(l.t.Context(), d)
		defer cancel()
		_, err := tm.g.Add(ctx, "h4")
		if err != nil && !errors.Is(err, context.DeadlineExceeded) {
			l.t.Errorf("given up after %v: %v", d, err)
		}
		time.Sleep(time.Second)
		if n := len(tm.g.Info().Members); n == 3 { // it continues, as documented
			spare.accept()
			tm.apps = append(tm.apps, spare)
		} else if err == nil {
			l.t.Errorf("%d members", n)
		}
		tm.write()
		tm.close()
		for _, h := range l.hosts {
			h.app.close()
		}
		return err == nil
	})
}

func cancelClose(l *lab, cfg mcrdma.GroupConfig) {
	l.upTo(50*time.Millisecond, func(d time.Duration) bool {
		tm := l.group(cfg, l.others()...)
		tm.write()
		ctx, cancel := context.WithTimeout(l.t.Context(), d)
		defer cancel()
		err := tm.g.Close(ctx)
		for _, a := range tm.apps {
			a.ends(mcrdma.ErrClosed)
		}
		for _, h := range l.hosts {
			h.app.close()
		}
		return err == nil
	})
}

func diesCreating(l *lab, cfg mcrdma.GroupConfig) {
	for _, h := range l.others() {
		h.receive()
	}
	l.upTo(50*time.Millisecond, func(d time.Duration) bool {
		a := l.hosts[0].run()
		done := make(chan error, 1)
		l.wg.Go(func() {
			_, err := a.client.Create(l.t.Context(), groupTo(cfg, l.others()...))
			done <- err
		})
		time.Sleep(d)
		a.kill()
		begun := time.Now()
		created := <-done == nil
		if took := time.Since(begun); took > 4*time.Second {
			l.t.Errorf("%v after the beginning, Create does not end for %v", d, took)
		}
		l.noGroups("the application has died " + d.String() + " after it began to create a group")
		return created
	})
}

func receiverDiesCreating(l *lab, cfg mcrdma.GroupConfig) {
	l.hosts[1].receive()
	l.hosts[3].receive()
	a := l.hosts[0].run()
	l.upTo(50*time.Millisecond, func(d time.Duration) bool {
		r := l.hosts[2].receive()
		l.wg.Go(func() {
			time.Sleep(d)
			r.kill()
		})
		ctx, cancel := context.WithTimeout(l.t.Context(), time.Minute)
		defer cancel()
		begun := time.Now()
		g, err := a.client.Create(ctx, groupTo(cfg, l.others()...))
		switch {
		case err == nil:
			if e := l.event(g.Events(), mcrdma.EventRemoved); e.Host != "h3" {
				l.t.Errorf("%v", e)
			}
			l.must(g.Close(l.t.Context()))
		case !errors.Is(err, mcrdma.ErrUnreachable) && !errors.Is(err, mcrdma.ErrTimeout) && !errors.Is(err, mcrdma.ErrFailed):
			l.t.Errorf("died after %v: %v", d, err)
		}
		if took := time.Since(begun); took > time.Second {
			l.t.Errorf("died after %v: it is waited for, for %v", d, took)
		}
		time.Sleep(time.Second)
		l.noGroups("a receiver has died " + d.String() + " after a creation began")
		return err == nil
	})
}

// receiverRestartsCreating: GroupConfig.Wait also helps if a receiver ends at any time before the group has begun.
func receiverRestartsCreating(l *lab, cfg mcrdma.GroupConfig) {
	l.hosts[1].receive()
	l.hosts[3].receive()
	l.hosts[2].receive()
	a := l.hosts[0].run()
	cfg.Wait = 10 * time.Second
	for _, to := range [][]*host{l.others(), l.hosts[2:3]} {
		for _, end := range []func(*app){(*app).kill, (*app).close} {
			l.upTo(50*time.Millisecond, func(d time.Duration) bool { return restartsAfter(l, a, cfg, to, d, end) })
		}
	}
}

// restartsAfter ends and restarts a receiver d after the creation of a group began. It reports that this was too late.
func restartsAfter(l *lab, a *app, cfg mcrdma.GroupConfig, to []*host, d time.Duration, end func(*app)) bool {
	restarted := make(chan struct{})
	l.wg.Go(func() {
		defer close(restarted)
		time.Sleep(d)
		end(l.hosts[2].app)
		time.Sleep(2 * time.Second)
		l.hosts[2].receive()
	})
	begun := time.Now()
	g, err := a.client.Create(l.t.Context(), groupTo(cfg, to...))
	took := time.Since(begun)
	if err != nil {
		l.t.Errorf("ended after %v: %v after %v", d, err, took)
		<-restarted
		return true
	}
	_ = g.Close(l.t.Context()) // a group without receivers has failed
	<-restarted
	l.noGroups("a receiver was away, from " + d.String() + " after a creation began")
	return took < 2*time.Second
}

func connectionsBreak(l *lab, cfg mcrdma.GroupConfig) {
	l.wait = leases
	for _, h := range l.others() {
		h.receive()
	}
	a := l.hosts[0].run()
	processes := []string{"h1/app", "h1/daemon", "h3/daemon", "h3/app"}
	for _, n := range l.switches {
		processes = append(processes, n.name+"/agent")
	}
	for _, p := range processes {
		l.upTo(50*time.Millisecond, func(d time.Duration) bool {
			over := l.creating(a, cfg, d, func() { l.net.Reset(p) })
			l.noGroups(p + "'s connections broke " + d.String() + " after a creation began")
			return over
		})
	}
}

func silentCreating(l *lab, cfg mcrdma.GroupConfig) {
	l.wait = leases
	for _, h := range l.others() {
		h.receive()
	}
	a := l.hosts[0].run()
	l.upTo(50*time.Millisecond, func(d time.Duration) bool {
		over := l.creating(a, cfg, d, func() {
			l.hosts[2].silence(true)
			time.Sleep(3 * time.Second)
			l.hosts[2].silence(false)
		})
		l.noGroups("a receiver was silent " + d.String() + " after a creation began")
		return over
	})
}

// creating creates a group, and does something to it d after the beginning. The group works, or
// there is a clear error. It reports whether the creation was faster.
func (l *lab) creating(a *app, cfg mcrdma.GroupConfig, d time.Duration, do func()) bool {
	l.t.Helper()
	done := make(chan time.Duration)
	begun := time.Now()
	l.wg.Go(func() {
		time.Sleep(d)
		do()
		done <- time.Since(begun)
	})
	ctx, cancel := context.WithTimeout(l.t.Context(), 2*time.Minute)
	defer cancel()
	g, err := a.client.Create(ctx, groupTo(cfg, l.others()...))
	took := time.Since(begun)
	<-done
	if err == nil {
		if err = g.Write(ctx, mcrdma.At{}, a.mem.Slice(0, size)); err != nil {
			err = fmt.Errorf("writing: %w", err)
		}
		_ = g.Close(ctx)
	}
	if err != nil && (!clear(err) && !errors.Is(err, mcrdma.ErrUnreachable) || ctx.Err() != nil) {
		l.t.Errorf("after %v: %v", d, err)
	}
	time.Sleep(time.Second) // connections are back
	return took < d
}

func cancelDial(l *lab, _ mcrdma.GroupConfig) {
	h := l.hosts[1]
	a := h.run()
	for d := time.Duration(0); d < 5*time.Millisecond; d += memnet.Latency {
		ctx, cancel := context.WithTimeout(l.t.Context(), d)
		s, err := a.client.Listen(ctx, mcrdma.ListenConfig{Service: "s", Accept: func(*mcrdma.Request) (*mcrdma.Grant, error) { return nil, nil }})
		if err == nil {
			l.must(s.Close())
		}
		cancel()
	}
	a.listen(func(*mcrdma.Request) error { return nil }) // nothing is left of the other requests
}
