package library

import (
	"bytes"
	"errors"
	"flag"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/pkg/mcrdma"
)

var seedFlag = flag.Uint64("library.seed", 0, "of random tests; 0: another one each time")

func newSeed(t *testing.T) *rand.Rand {
	seed := *seedFlag
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("-library.seed=%d", seed)
	return rand.New(rand.NewPCG(seed, 1))
}

// A writer writes again and again until it is stopped.
type writer struct {
	tm   *team
	stop chan struct{}
	wg   sync.WaitGroup
	n    int
	err  error
}

func (tm *team) keepWriting(size int) *writer {
	w := &writer{tm: tm, stop: make(chan struct{})}
	w.wg.Go(func() {
		for w.err == nil {
			select {
			case <-w.stop:
				return
			default:
			}
			w.err = tm.g.Write(tm.t.Context(), mcrdma.At{}, tm.mem.Slice(0, size))
			w.n++
		}
	})
	return w
}

func (w *writer) end() {
	w.tm.t.Helper()
	close(w.stop)
	w.wg.Wait()
	if w.err != nil {
		w.tm.t.Errorf("after %d writes: %v", w.n, w.err)
	}
}

// TestKilled: a receiver's application dies while the sender writes: it is taken out,
// and the writing goes on.
func TestKilled(t *testing.T) {
	ways(t, func(t *testing.T, l *lab, cfg mcrdma.GroupConfig) {
		tm := l.group("s", l.hosts[0], l.hosts[1:], 1<<20, 0, cfg)
		w := tm.keepWriting(100_000)
		eventually(t, "writing", func() bool { return tm.g.Info().Stats.Completed > 5 })
		before := time.Now()
		l.hosts[2].kill()
		e := event(t, tm.g.Events(), mcrdma.EventRemoved)
		if e.Address != l.hosts[2].addr.String() || e.Host != l.hosts[2].name {
			t.Errorf("%+v", e)
		}
		t.Logf("%v after %v", e, time.Since(before))
		seen := tm.g.Info().Stats.Completed
		eventually(t, "it goes on", func() bool { return tm.g.Info().Stats.Completed > seen+5 })
		t.Logf("went on after %v", time.Since(before))
		w.end()
		tm.apps = slices.Delete(tm.apps, 1, 2)
		tm.same(100_000)
		info := tm.g.Info()
		if len(info.Members) != 2 {
			t.Errorf("%+v", info.Members)
		}
		if info.Path == mcrdma.PathSwitch && info.Formation != 1 {
			t.Errorf("formation %d: the sender's queue pair has not survived", info.Formation)
		}
		tm.close()
	})
}

// TestLeaves: a member closes while the sender writes.
func TestLeaves(t *testing.T) {
	ways(t, func(t *testing.T, l *lab, cfg mcrdma.GroupConfig) {
		tm := l.group("s", l.hosts[0], l.hosts[1:], 1<<20, 0, cfg)
		w := tm.keepWriting(50_000)
		eventually(t, "writing", func() bool { return tm.g.Info().Stats.Completed > 5 })
		l.must(tm.apps[0].m.Close())
		event(t, tm.g.Events(), mcrdma.EventRemoved)
		seen := tm.g.Info().Stats.Completed
		eventually(t, "it goes on", func() bool { return tm.g.Info().Stats.Completed > seen+5 })
		w.end()
		tm.apps = tm.apps[1:]
		tm.same(50_000)
		tm.close()
	})
}

// TestMinSize: too few are left: sender and receivers learn of it.
func TestMinSize(t *testing.T) {
	ways(t, func(t *testing.T, l *lab, cfg mcrdma.GroupConfig) {
		cfg.MinSize = 4
		tm := l.group("s", l.hosts[0], l.hosts[1:], 1<<20, 0, cfg)
		l.must(tm.apps[0].m.Close())
		event(t, tm.g.Events(), mcrdma.EventFailed)
		if err := tm.g.Write(t.Context(), mcrdma.At{}); !errors.Is(err, mcrdma.ErrMinSize) {
			t.Error(err)
		}
		for _, a := range tm.apps[1:] {
			if _, err := a.m.Recv(t.Context()); err == nil || t.Context().Err() != nil {
				t.Error(err)
			}
		}
	})
}

// TestNoReceive: for longer than a stall is suspected, one member has no receive posted.
// It is not taken out, and gets its message when it has one.
func TestNoReceive(t *testing.T) {
	ways(t, func(t *testing.T, l *lab, cfg mcrdma.GroupConfig) {
		tm := l.group("s", l.hosts[0], l.hosts[1:], 1<<20, 1<<20, cfg)
		done := make(chan error, 1)
		go func() { done <- tm.g.Send(t.Context(), tm.mem.Slice(0, 50_000)) }()
		for _, a := range tm.apps[1:] {
			l.must(a.m.PostRecv(a.mem.Slice(a.region, 50_000)))
		}
		eventually(t, "stalls were reported", func() bool { return tm.g.Info().Stats.Stalls >= 3 })
		l.must(tm.apps[0].m.PostRecv(tm.apps[0].mem.Slice(1<<20, 50_000)))
		l.must(<-done)
		tm.recv(mcrdma.Received{N: 50_000, Kind: mcrdma.OpSend}, tm.mem.Bytes()[:50_000])
		if n := len(tm.g.Info().Members); n != 3 {
			t.Errorf("%d members are left", n)
		}
		tm.close()
	})
}

// TestTooLong: a receive that is too short costs its member the membership.
func TestTooLong(t *testing.T) {
	ways(t, func(t *testing.T, l *lab, cfg mcrdma.GroupConfig) {
		tm := l.group("s", l.hosts[0], l.hosts[1:], 1<<20, 1<<20, cfg)
		for i, a := range tm.apps {
			n := 50_000
			if i == 1 {
				n--
			}
			l.must(a.m.PostRecv(a.mem.Slice(a.region, n)))
		}
		l.must(tm.g.Send(t.Context(), tm.mem.Slice(0, 50_000)))
		if _, err := tm.apps[1].m.Recv(t.Context()); !errors.Is(err, mcrdma.ErrInvalid) {
			t.Error(err)
		}
		left := tm.apps[1].m
		tm.apps = slices.Delete(tm.apps, 1, 2)
		tm.recv(mcrdma.Received{N: 50_000, Kind: mcrdma.OpSend}, tm.mem.Bytes()[:50_000])
		if i := tm.g.Info(); len(i.Members) != 2 {
			t.Errorf("%d members are left, in formation %d, the one that left: %v; %+v", len(i.Members), i.Formation, left.Err(), i.Stats)
			for len(tm.g.Events()) > 0 {
				t.Error(<-tm.g.Events())
			}
		}
		tm.close()
	})
}

// TestClosedWhileAway: the sender closes while the daemons of the others are not there. The
// others learn of it when these are back, and none takes the sender for lost.
func TestClosedWhileAway(t *testing.T) {
	ways(t, func(t *testing.T, l *lab, cfg mcrdma.GroupConfig) {
		tm := l.group("s", l.hosts[0], l.hosts[1:], 1<<20, 0, cfg)
		l.must(tm.g.Write(t.Context(), mcrdma.At{}, tm.mem.Slice(0, 1000)))
		away := l.hosts[:3] // and one is there: it learns of it by the sender's daemon, when that is back
		for _, h := range away {
			h.stop()
		}
		l.must(tm.g.Close(t.Context()))
		for _, h := range away {
			h.start(nil)
		}
		for _, a := range tm.apps {
			if _, err := a.m.Recv(t.Context()); !errors.Is(err, mcrdma.ErrClosed) {
				t.Errorf("%s: %v", a.h.name, err)
			}
		}
	})
}

// TestDaemonsRestart: all daemons are stopped and started, one after the other, while the
// sender writes; the group is the same afterward.
func TestDaemonsRestart(t *testing.T) {
	ways(t, func(t *testing.T, l *lab, cfg mcrdma.GroupConfig) {
		tm := l.group("s", l.hosts[0], l.hosts[1:], 1<<20, 0, cfg)
		w := tm.keepWriting(50_000)
		for i, h := range l.hosts {
			seen := tm.g.Info().Stats.Completed
			eventually(t, "writing", func() bool { return tm.g.Info().Stats.Completed > seen+1 })
			h.stop()
			seen = tm.g.Info().Stats.Completed
			eventually(t, "writing without a daemon", func() bool { return tm.g.Info().Stats.Completed > seen+1 })
			h.start(nil)
			// A group that is closed before that is closed while the daemon's
			// applications are not connected to learn of it.
			if i == 0 {
				event(t, tm.g.Events(), mcrdma.EventResumed)
			} else {
				event(t, tm.apps[i-1].m.Events(), mcrdma.EventResumed)
			}
		}
		w.end()
		tm.same(50_000)
		if info := tm.g.Info(); len(info.Members) != 3 {
			t.Errorf("%d members are left, in formation %d", len(info.Members), info.Formation)
		}
		tm.close()
		// And new groups can be made.
		l.group("s2", l.hosts[0], l.hosts[1:], 1<<10, 0, cfg).close()
	})
}

// TestPathChanges: the group begins where hosts relay, because the agent isn't there; when
// it is, switches copy. Messages come once and in order all the time.
func TestPathChanges(t *testing.T) {
	l := newLab(t, true, 0)
	cfg := mcrdma.GroupConfig{Depth: 16}
	tm := l.group("s", l.hosts[0], l.hosts[1:], 1<<20, 64<<10, cfg)
	if info := tm.g.Info(); info.Path != mcrdma.PathRelay {
		t.Fatalf("%+v", info)
	}
	t.Logf("%q", tm.g.Info().Why)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	sent := 0
	wg.Go(func() { sent = tm.stream(stop) })
	ends := make(chan int, 3)
	for _, a := range tm.apps {
		wg.Go(func() { ends <- a.drink(tm.mem.Bytes()) })
	}
	eventually(t, "messages", func() bool { return tm.g.Info().Stats.Completed > 20 })
	l.hosts[0].away.Store(false)
	// stream writes the same bytes again and again. If some receivers had writes reported
	// that others lack, hosts relay these in a formation of its own first.
	for path := mcrdma.PathRelay; path != mcrdma.PathSwitch; {
		e := event(t, tm.g.Events(), mcrdma.EventReformed)
		t.Log(e)
		if e.Before != path {
			t.Fatalf("%v, and not from %v", e, path)
		}
		path = e.After
	}
	seen := tm.g.Info().Stats.Completed
	eventually(t, "messages", func() bool { return tm.g.Info().Stats.Completed > seen+20 })
	close(stop)
	wg.Wait()
	for range tm.apps {
		if n := <-ends; n != sent {
			t.Errorf("%d messages came of %d", n, sent)
		}
	}
	t.Logf("%d messages; %+v", sent, tm.g.Info().Stats)
}

const cup = 3000 // bytes of most messages of stream

// sizeOf is the size of stream's nth message: some are relayed in another way.
func sizeOf(n int) int {
	if n%5 == 0 {
		return 5 * cup
	}
	return cup
}

// stream sends numbered messages until it is stopped, and closes the group. It returns
// how many there were.
func (tm *team) stream(stop <-chan struct{}) (sent int) {
	done := 0
	for ; ; sent++ {
		select {
		case <-stop:
			if err := tm.g.Close(tm.t.Context()); err != nil || done != sent {
				tm.t.Errorf("%d of %d are done: %v", done, sent, err)
			}
			return sent
		default:
		}
		kind := mcrdma.OpSendImm
		if sent%3 == 0 {
			kind = mcrdma.OpWriteImm
		}
		size := sizeOf(sent)
		at := sent % 1000
		err := tm.g.Submit(tm.t.Context(), &mcrdma.Op{Kind: kind, Imm: uint32(sent), Pieces: []mcrdma.Piece{tm.mem.Slice(at, size)},
			Done: func(op *mcrdma.Op) {
				if op.Err != nil || op.Imm != uint32(done) {
					tm.t.Errorf("operation %d is done after %d: %v", op.Imm, done, op.Err)
				}
				done++
			}})
		if err != nil {
			tm.t.Errorf("message %d: %v", sent, err)
			return sent
		}
	}
}

// drink receives what stream sends, until the group is closed.
func (a *app) drink(content []byte) (n int) {
	t := a.h.lab.t
	room := (a.mem.All().Len() - a.region) / (5 * cup)
	// Each receive is as long as the message that it is for, and no longer.
	post := func(n int) error {
		p := mcrdma.Piece{}
		if n%3 != 0 {
			p = a.mem.Slice(a.region+n%room*5*cup, sizeOf(n))
		}
		return a.m.PostRecv(p)
	}
	for i := range room {
		if err := post(i); err != nil {
			t.Error(err)
			return 0
		}
	}
	for ; ; n++ {
		got, err := a.m.Recv(t.Context())
		if err != nil {
			if !errors.Is(err, mcrdma.ErrClosed) {
				t.Errorf("%s: after %d messages: %v", a.h.name, n, err)
			}
			return n
		}
		size := sizeOf(n)
		if got.Imm != uint32(n) || got.N != size || (got.Kind == mcrdma.OpWriteImm) != (n%3 == 0) {
			t.Errorf("%s: %+v instead of message %d", a.h.name, got, n)
			return n
		}
		if got.Kind == mcrdma.OpSendImm && !bytes.Equal(got.Bytes(), content[n%1000:n%1000+size]) {
			t.Errorf("%s: the content of message %d differs", a.h.name, n)
			return n
		}
		if a.lag && n%10 == 0 {
			time.Sleep(5 * time.Millisecond) // the others are ahead then
		}
		if err := post(n + room); err != nil && !errors.Is(err, mcrdma.ErrClosed) {
			t.Error(err)
			return n
		}
	}
}

// TestOnceInOrder: the switches lose the group or all that they know, again and again,
// while one member is slow to post receives and so lacks messages that others have. They
// come once and in order all the same.
func TestOnceInOrder(t *testing.T) {
	for name, lose := range map[string]func(t *testing.T, l *lab, info mcrdma.Info){
		"group": func(t *testing.T, l *lab, info mcrdma.Info) {
			_, err := l.f.Groups("leaf1").Remove(t.Context(), &mcrdmav1.RemoveRequest{
				Key: &mcrdmav1.GroupKey{Source: info.ID.Source, McId: info.MCID}})
			l.must(err)
		},
		"switch": func(_ *testing.T, l *lab, _ mcrdma.Info) {
			l.f.StopSwitch("leaf1")
			l.f.StartSwitch("leaf1")
			l.f.Ready()
		},
	} {
		t.Run(name, func(t *testing.T) {
			rng := newSeed(t)
			l := newLab(t, true)
			tm := l.group("s", l.hosts[0], l.hosts[1:], 1<<20, 64<<10, mcrdma.GroupConfig{Depth: 8})
			stop := make(chan struct{})
			var wg sync.WaitGroup
			sent := 0
			wg.Go(func() { sent = tm.stream(stop) })
			ends := make(chan int, 3)
			for i, a := range tm.apps {
				a.lag = i == 1
				wg.Go(func() { ends <- a.drink(tm.mem.Bytes()) })
			}
			const rounds = 4
			for range rounds {
				before := tm.g.Info()
				more := 10 + rng.Uint64N(50)
				eventually(t, "messages", func() bool { return tm.g.Info().Stats.Completed > before.Stats.Completed+more })
				lose(t, l, before)
				if name == "group" {
					eventually(t, "another formation", func() bool { return tm.g.Info().Formation > before.Formation })
				}
			}
			seen := tm.g.Info().Stats.Completed
			eventually(t, "messages", func() bool { return tm.g.Info().Stats.Completed > seen+20 || tm.g.Err() != nil })
			close(stop)
			wg.Wait()
			for range tm.apps {
				if n := <-ends; n != sent {
					t.Errorf("%d messages came of %d", n, sent)
				}
			}
			info := tm.g.Info()
			t.Logf("%d messages, formation %d, %v; %+v", sent, info.Formation, info.Why, info.Stats)
		})
	}
}
