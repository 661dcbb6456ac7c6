package scenario

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/mcrdma/mcrdma/pkg/mcrdma"
)

// A process is killed at each of its durable writes, before and after it, and is restarted soon.
// The requested change has been made and works, or there was an error and nothing is left.
func TestKilledAtEachWrite(t *testing.T) {
	for _, switches := range []bool{true, false} {
		victims := []string{"h1", "h2", "h3", "h4"}
		name := "relay"
		if switches {
			victims, name = append(victims, "leaf1", "leaf2"), "switch"
		}
		for _, v := range victims {
			t.Run(name+"/"+v, func(t *testing.T) {
				t.Parallel()
				inVirtualTime(t, switches, func(l *lab) {
					for _, after := range []bool{false, true} {
						l.killedAtEach(v, after)
					}
				})
			})
		}
	}
}

// A killer kills a process at one of its writes.
type killer struct {
	l     *lab
	name  string // of the host or switch
	disk  *disk
	over  chan struct{} // closed when no more must be killed
	dead  chan struct{} // closed when the process was killed
	alive chan struct{} // closed when it is back, or nothing was killed

	mu    sync.Mutex
	count int
}

// arm makes a process be killed at its nth write from now on, and restarted.
func (l *lab) arm(name string, n int, after bool) *killer {
	k := &killer{l: l, name: name, over: make(chan struct{}), dead: make(chan struct{}), alive: make(chan struct{})}
	process, restart := "", func() {}
	for _, h := range l.hosts {
		if h.name == name {
			process, k.disk, restart = h.process(), h.disk, func() { h.crash(); h.start() }
		}
	}
	for _, s := range l.switches {
		if s.name == name {
			process, k.disk, restart = name+"/agent", s.disk, func() { s.crash(); s.start() }
		}
	}
	k.disk.onWrite(func(done bool) bool {
		k.mu.Lock()
		defer k.mu.Unlock()
		if k.killed() {
			return true
		}
		if !done {
			k.count++
		}
		if k.count < n || done != after {
			return false
		}
		close(k.dead) // before others can see the effects
		l.net.Kill(process)
		return true
	})
	l.wg.Go(func() {
		defer close(k.alive)
		select {
		case <-k.dead:
		case <-k.over:
			return
		}
		time.Sleep(200 * time.Millisecond)
		k.disk.onWrite(nil)
		restart()
	})
	return k
}

// end disarms it, and reports whether it has killed the process.
func (k *killer) end() bool {
	k.disk.onWrite(nil)
	close(k.over)
	<-k.alive
	return k.killed()
}

func (k *killer) killed() bool {
	select {
	case <-k.dead:
		return true
	default:
		return false
	}
}

func (l *lab) killedAtEach(victim string, after bool) {
	n := 1
	l.wait = leases
	for ; ; n += stride() {
		l.linksUp()
		k := l.arm(victim, n, after)
		stays, leaves, joins := l.hosts[1], l.hosts[2], l.hosts[3]
		if victim == "leaf2" { // it makes copies only for two receivers behind it
			stays, leaves = leaves, stays
		}
		l.life(k, stays, leaves, joins)
		for _, h := range l.hosts {
			h.app.close()
		}
		killed := k.end()
		l.nothingLeft(fmt.Sprintf("%s was killed at write %d, after it: %v: afterward", victim, n, after), true)
		if l.t.Failed() {
			l.t.Fatalf("this was %s, killed at write %d, after it: %v", victim, n, after)
		}
		if !killed {
			break
		}
	}
	if n < 3 {
		l.t.Errorf("%s makes %d writes only", victim, n-1)
	}
	l.t.Logf("%s was killed at up to %d writes", victim, n-1)
}

// life is the life of a group: it is created with two receivers; one leaves, another one joins; it
// is closed. If something fails, the process has been killed, and the step is tried again after the
// restart.
func (l *lab) life(k *killer, stays, leaves, joins *host) {
	for _, h := range l.others() {
		h.receive()
	}
	tm := &team{l: l, sender: l.hosts[0].run()}
	again := func(what string, f func(context.Context) error) {
		l.t.Helper()
		ctx, cancel := context.WithTimeout(l.t.Context(), 30*time.Second)
		defer cancel()
		err := f(ctx)
		if err == nil {
			return
		}
		if !k.killed() || ctx.Err() != nil || !clear(err) {
			l.t.Errorf("%s: %v (killed: %v)", what, err, k.killed())
		}
		<-k.alive
		time.Sleep(15 * time.Second) // longer than the grace
		if err := f(ctx); err != nil {
			l.t.Errorf("%s, again: %v, after %v", what, err, err)
		}
	}
	again("create", func(ctx context.Context) (err error) {
		tm.g, err = tm.sender.client.Create(ctx, groupTo(mcrdma.GroupConfig{MinSize: 2}, stays, leaves))
		return err
	})
	if tm.g == nil {
		return
	}
	if i := tm.g.Info(); !k.killed() && i.Path != l.path() {
		l.t.Errorf("%+v", i)
	}
	for _, h := range []*host{stays, leaves} {
		h.app.memberOf(tm.g)
		tm.apps = append(tm.apps, h.app)
	}
	ctx, cancel := context.WithTimeout(l.t.Context(), time.Minute)
	defer cancel()
	l.must(tm.tryWrite(ctx))
	tm.still(k)
	tm.same()
	l.must(leaves.app.m.Close())
	if !tm.leftAlone(k, leaves) {
		return
	}
	tm.write()
	again("add", func(ctx context.Context) error {
		_, err := tm.g.Add(ctx, joins.name)
		return err
	})
	joins.app.memberOf(tm.g)
	tm.apps = append(tm.apps, joins.app)
	tm.still(k)
	tm.write()
	l.must(tm.g.Close(l.t.Context()))
	for _, a := range tm.apps {
		ctx, cancel := context.WithTimeout(l.t.Context(), time.Minute)
		_, err := a.m.Recv(ctx)
		// A daemon that is killed after the group has ended does not know why it ended.
		if !errors.Is(err, mcrdma.ErrClosed) && !(k.killed() && errors.Is(err, mcrdma.ErrDaemon)) {
			l.t.Errorf("%s: %v", a.h.name, err)
		}
		cancel()
	}
}

// leftAlone waits until a leaving receiver has been removed. It returns false if the group has
// failed because the daemon of the only other receiver was down during a re-formation.
func (tm *team) leftAlone(k *killer, leaves *host) bool {
	tm.l.t.Helper()
	tm.apps = tm.apps[:1]
	for {
		select {
		case e := <-tm.g.Events():
			switch {
			case e.Type == mcrdma.EventRemoved && e.Host == leaves.name:
				return true
			case e.Type == mcrdma.EventFailed:
				if !k.killed() || !errors.Is(tm.g.Err(), mcrdma.ErrMinSize) {
					tm.l.t.Errorf("%v", e)
				}
				return false
			}
		case <-time.After(2 * time.Minute):
			tm.l.t.Fatalf("%s has left, and the group does not know", leaves.name)
		}
	}
}

// still checks that all receivers are members, except one whose daemon was killed during a
// re-formation, and those behind a switch whose agent was down so long that its links went down.
func (tm *team) still(k *killer) {
	tm.l.t.Helper()
	for _, a := range tm.apps {
		there := slices.ContainsFunc(tm.g.Info().Members, func(p mcrdma.Peer) bool { return p.Host == a.h.name })
		if !there && (!k.killed() || a.h.name != k.name && (len(tm.l.switches) == 0 || tm.l.switches[a.h.rack].name != k.name)) {
			tm.l.t.Errorf("%s is not in the group: %v", a.h.name, a.m.Err())
		}
		if !there {
			tm.without(a)
		}
	}
}

// memberOf accepts until it gets this group's membership: those of failed attempts arrive too. They
// end because the sender does not connect, because its daemon finds that no application has the
// group, or because the sender's library closes a group that it finds after its daemon's restart.
func (a *app) memberOf(g *mcrdma.Group) {
	a.h.l.t.Helper()
	for {
		a.accept()
		time.Sleep(100 * time.Millisecond)
		if a.m.Err() == nil && a.m.Info().ID == g.Info().ID {
			return
		}
		a.ends(mcrdma.ErrFailed, mcrdma.ErrSenderLost, mcrdma.ErrClosed)
	}
}

// clear reports whether an error is one of the package's.
func clear(err error) bool {
	for _, known := range []error{mcrdma.ErrDaemon, mcrdma.ErrUnreachable, mcrdma.ErrTimeout, mcrdma.ErrLimit, mcrdma.ErrClosed, mcrdma.ErrFailed} {
		if errors.Is(err, known) {
			return true
		}
	}
	return false
}
