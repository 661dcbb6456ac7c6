package scenario

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/mcrdma/mcrdma/pkg/mcrdma"
)

// The unicast connection between a sender and each member: what it survives, and what ends it.
func TestUnicast(t *testing.T) {
	everywhere(t, []story{
		{"the group is formed anew", unicastReformed},
		{"all daemons are away", unicastWithoutDaemons},
		{"connections are lost", unicastLost},
		{"a member dies and comes back", unicastRemoved},
		{"a member leaves, and the group is closed", unicastEnds},
	})
}

// unicasts returns the sender's connections with all receivers.
func (tm *team) unicasts() (list []*mcrdma.Unicast) {
	tm.l.t.Helper()
	for _, a := range tm.apps {
		u, err := tm.g.Unicast(a.h.name)
		tm.l.must(err)
		list = append(list, u)
	}
	return list
}

// talk makes each receiver send a message to the sender, and the sender read it back from there.
func (tm *team) talk(n int) {
	tm.l.t.Helper()
	ctx, cancel := context.WithTimeout(tm.l.t.Context(), time.Minute)
	defer cancel()
	for i, u := range tm.unicasts() {
		a, mem := tm.apps[i], tm.sender.mem
		tm.l.must(a.m.SetCounter(0, uint64(n)))
		tm.l.must(u.WaitCounter(ctx, 0, uint64(n)))
		mem.Bytes()[size] = byte(n + i)
		tm.l.must(u.Write(ctx, mcrdma.At{Offset: size - 1}, mem.Slice(size, 1)))
		tm.l.must(u.Read(ctx, mcrdma.At{Offset: size - 1}, mem.Slice(size+1, 1)))
		if got := mem.Bytes()[size+1]; got != byte(n+i) || a.m.Region(0)[size-1] != byte(n+i) {
			tm.l.t.Errorf("%s has byte %d; it was read as %d, and is %d", a.h.name, a.m.Region(0)[size-1], got, byte(n+i))
		}
		a.m.Region(0) // for the race detector: later writes come after this
		tm.l.must(u.Send(ctx, mem.Slice(size, 1)))
		r, err := a.m.Recv(ctx)
		if err != nil || !r.Unicast || r.N != 1 {
			tm.l.t.Errorf("%s: %+v, %v", a.h.name, r, err)
		}
		tm.l.must(a.m.Send(ctx, []byte(a.h.name)))
		if r, err = u.Recv(ctx); err != nil || string(r.Bytes()) != a.h.name {
			tm.l.t.Errorf("of %s: %q, %v", a.h.name, r.Bytes(), err)
		}
	}
}

// unicastReformed: the group is re-formed, in one lab from switches to hosts. Operations in flight
// on the unicast connections continue.
func unicastReformed(l *lab, cfg mcrdma.GroupConfig) {
	tm := l.group(cfg, l.hosts[1], l.hosts[2])
	tm.write()
	tm.talk(1)
	before := tm.unicasts()
	var wg sync.WaitGroup
	stop := make(chan struct{})
	for i, u := range before {
		wg.Go(func() {
			for n := uint64(2); ; n++ {
				select {
				case <-stop:
					return
				case <-time.After(time.Millisecond):
				}
				if err := errors.Join(tm.apps[i].m.SetCounter(0, n), u.WaitCounter(l.t.Context(), 0, n), u.Write(l.t.Context(), mcrdma.At{})); err != nil {
					l.t.Errorf("counter %d: %v", n, err)
					return
				}
			}
		})
	}
	spare := l.hosts[3].receive()
	tm.add("h4")
	spare.accept()
	u, err := tm.g.Unicast("h4")
	l.must(err)
	for _, m := range tm.g.View().Members {
		if m.Host == "h4" && (m.From == 0 || u.Peer() != m) {
			l.t.Errorf("the connection is with %+v, and the view has %+v", u.Peer(), m)
		}
	}
	close(stop)
	wg.Wait()
	tm.apps = append(tm.apps, spare)
	for i, u := range tm.unicasts()[:2] {
		if u != before[i] {
			l.t.Error("the connection is another one")
		}
	}
	tm.write()
	tm.talk(100_000)
	tm.close()
}

func unicastWithoutDaemons(l *lab, cfg mcrdma.GroupConfig) {
	tm := l.group(cfg, l.others()...)
	tm.talk(1)
	for _, h := range l.hosts {
		h.crash()
	}
	tm.talk(2)
	for _, a := range tm.apps { // the connections are established again; where hosts relay, the group would wait for daemons
		if len(l.switches) > 0 {
			l.net.Break(tm.sender.h.appProcess(), a.h.appProcess())
		}
	}
	for i, u := range tm.unicasts() {
		l.must(tm.apps[i].m.SetCounter(0, 3))
		l.must(u.WaitCounter(l.t.Context(), 0, 3))
	}
	tm.talk(4)
	for _, h := range l.hosts {
		h.start()
	}
	for _, h := range l.hosts {
		tm.resumed(h)
	}
	tm.talk(5)
	tm.write()
	tm.close()
}

// unicastLost: operations in flight fail, and say so; later operations, and counters, use the next
// connection.
func unicastLost(l *lab, cfg mcrdma.GroupConfig) {
	tm := l.group(cfg, l.others()...)
	tm.talk(1)
	u, a := tm.unicasts()[0], tm.apps[0]
	var waits []*mcrdma.Pending
	for range 20 { // the member receives no message: some wait
		p, err := u.Post(l.t.Context(), mcrdma.Op{Kind: mcrdma.OpSend, Pieces: []mcrdma.Piece{tm.sender.mem.Slice(0, 10)}})
		l.must(err)
		waits = append(waits, p)
	}
	time.Sleep(time.Second)
	l.must(a.m.SetCounter(1, 7))
	l.net.Break(tm.sender.h.appProcess(), a.h.appProcess())
	l.must(a.m.SetCounter(2, 8))
	failed := 0
	for _, p := range waits {
		if err := p.Wait(l.t.Context()); err != nil {
			failed++
			l.fails(err, mcrdma.ErrUnreachable, a.h.name)
		}
	}
	if failed < 4 || failed > 12 {
		l.t.Errorf("%d of 20 messages failed, and up to 16 had a place", failed)
	}
	l.must(u.WaitCounter(l.t.Context(), 2, 8))
	if u.Counter(1) != 7 {
		l.t.Errorf("a counter is %d", u.Counter(1))
	}
	received := 0
	for rest, cancel := context.WithTimeout(l.t.Context(), time.Second); ; received++ {
		if _, err := a.m.Recv(rest); err != nil {
			cancel()
			break
		}
	}
	if received < 20-failed { // more: those that failed, too, may have arrived
		l.t.Errorf("%d of %d messages have arrived", received, 20-failed)
	}
	tm.talk(9)
	if i := tm.g.Info(); i.Formation != 1 && len(l.switches) > 0 { // hosts have relayed over such connections
		l.t.Errorf("formation %d", i.Formation)
	}
	tm.close()
}

// unicastRemoved: the connection ends when the member is removed; when its host is a member again,
// it has another one, with its own counters.
func unicastRemoved(l *lab, cfg mcrdma.GroupConfig) {
	tm := l.group(cfg, l.others()...)
	tm.talk(5)
	gone := tm.unicasts()[2]
	waits := make(chan error, 1)
	go func() { waits <- gone.WaitCounter(l.t.Context(), 0, 6) }()
	victim := tm.apps[2]
	victim.kill()
	tm.removed(victim)
	l.fails(<-waits, mcrdma.ErrRemoved, "")
	l.fails(gone.Write(l.t.Context(), mcrdma.At{}), mcrdma.ErrRemoved, "")
	l.fails(gone.Err(), mcrdma.ErrRemoved, "")
	_, err := tm.g.Unicast(victim.h.name)
	l.fails(err, mcrdma.ErrInvalid, "")
	tm.talk(7)
	again := victim.h.receive()
	tm.add(victim.h.name)
	again.accept()
	tm.apps = append(tm.apps, again)
	if u := tm.unicasts()[2]; u == gone || u.Counter(0) != 0 {
		l.t.Errorf("the counter is %d", u.Counter(0))
	}
	tm.talk(8)
	tm.close()
}

func unicastEnds(l *lab, cfg mcrdma.GroupConfig) {
	tm := l.group(cfg, l.others()...)
	tm.talk(1)
	all := tm.unicasts()
	leaver := tm.apps[0]
	l.must(leaver.m.Close())
	tm.removed(leaver)
	l.fails(all[0].WaitCounter(l.t.Context(), 0, 2), mcrdma.ErrRemoved, "")
	l.fails(leaver.m.SetCounter(0, 2), mcrdma.ErrClosed, "")
	l.fails(leaver.m.Send(l.t.Context(), []byte("too late")), mcrdma.ErrClosed, "")
	tm.talk(2)
	tm.close()
	_, err := all[1].Recv(l.t.Context())
	l.fails(err, mcrdma.ErrClosed, "")
	_, err = tm.g.Unicast("h3")
	l.fails(err, mcrdma.ErrClosed, "")
	l.fails(tm.apps[0].m.SetCounter(0, 3), mcrdma.ErrClosed, "")
}
