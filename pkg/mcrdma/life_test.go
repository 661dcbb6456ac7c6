package mcrdma

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
)

// event returns the next event of a type.
func event(t *testing.T, c <-chan Event, typ EventType) Event {
	t.Helper()
	timeout := time.After(20 * time.Second)
	for {
		select {
		case e, ok := <-c:
			if !ok {
				t.Fatalf("no more events, and no %v", typ)
			}
			if e.Type == typ {
				return e
			}
		case <-timeout:
			t.Fatalf("no event %v", typ)
		}
	}
}

// kill ends an application as a crash does: nothing is told to anybody.
func (c *Client) kill() {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	_ = c.dev.Close()
	c.cancel()
}

// TestWriteCancelled: a WRITE whose caller gives up goes on.
func TestWriteCancelled(t *testing.T) {
	onPaths(t, func(t *testing.T, r *rig) {
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- r.g.WriteImm(ctx, At{}, 1, r.mem.Slice(0, 1000)) }()
		eventually(t, "posted", func() bool { return r.g.Info().Stats.Posts > 0 })
		cancel()
		wants(t, "cancelled", <-done, context.Canceled, "it goes on")
		wants(t, "the memory is still used", r.mem.Close(), ErrBusy, "1 operations")
		r.post(0)
		if err := r.g.Write(t.Context(), At{0, 5000}, r.mem.Slice(5000, 1000)); err != nil {
			t.Fatal(err)
		}
		r.recv(Received{N: 1000, Imm: 1, HasImm: true, Kind: OpWriteImm}, nil)
		r.same(0, 1000)
		if err := errors.Join(r.g.Close(t.Context()), r.mem.Close()); err != nil {
			t.Error(err)
		}
	})
}

// TestSubmitWaits: more than Depth operations wait, for room or until their context
// ends; and Done may submit.
func TestSubmitWaits(t *testing.T) {
	r := newRig(t, 1, false, GroupConfig{Depth: 2})
	done := make(chan int, 10)
	op := func(n int) *Op {
		return &Op{Kind: OpSend, Pieces: []Piece{r.mem.Slice(0, 8)}, Done: func(*Op) { done <- n }}
	}
	for n := range 2 {
		if err := r.g.Submit(t.Context(), op(n)); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	wants(t, "no room", r.g.Submit(ctx, op(2)), context.DeadlineExceeded, "")
	waiting := make(chan error, 1)
	go func() { waiting <- r.g.Submit(t.Context(), op(3)) }()
	for range 3 {
		r.post(8)
	}
	if err := <-waiting; err != nil {
		t.Fatal(err)
	}
	for _, n := range []int{0, 1, 3} {
		if got := <-done; got != n {
			t.Fatalf("operation %d is done instead of %d", got, n)
		}
	}
	// A chain of operations, each of which is submitted by the one before.
	const chain = 100
	end := make(chan error, 1)
	n := 0
	next := &Op{Kind: OpWrite, Pieces: []Piece{r.mem.Slice(0, 8)}}
	next.Done = func(op *Op) {
		if n++; n == chain || op.Err != nil {
			end <- op.Err
		} else if err := r.g.Submit(context.Background(), op); err != nil {
			end <- err
		}
	}
	if err := r.g.Submit(t.Context(), next); err != nil {
		t.Fatal(err)
	}
	if err := <-end; err != nil {
		t.Fatal(err)
	}
}

// TestClose: Close waits for the operations under way, and receivers get all of them
// before they learn of the end.
func TestClose(t *testing.T) {
	onPaths(t, func(t *testing.T, r *rig) {
		for n := range 20 {
			op := &Op{Kind: OpSendImm, Imm: uint32(n), Pieces: []Piece{r.mem.Slice(0, n*1000)}, Done: func(*Op) {}}
			if err := r.g.Submit(t.Context(), op); err != nil {
				t.Fatal(err)
			}
		}
		closed := make(chan error, 1)
		go func() { closed <- r.g.Close(t.Context()) }()
		eventually(t, "closing", func() bool { return r.g.Submit(t.Context(), &Op{Done: func(*Op) {}}) != nil })
		wants(t, "submit while closing", r.g.Submit(t.Context(), &Op{Done: func(*Op) {}}), ErrClosed, "being closed")
		for _, o := range r.rs {
			for range 20 {
				if err := o.m.PostRecv(o.mem.Slice(regionSize, 20000)); err != nil {
					t.Fatal(err)
				}
			}
		}
		if err := <-closed; err != nil {
			t.Fatal(err)
		}
		for _, o := range r.rs {
			for n := range 20 {
				got, err := o.m.Recv(t.Context())
				if err != nil || got.Imm != uint32(n) {
					t.Fatalf("message %d: %+v, %v", n, got, err)
				}
			}
			_, err := o.m.Recv(t.Context())
			wants(t, "the end", err, ErrClosed, "the sender has closed")
			event(t, o.m.Events(), Closed)
			wants(t, "a receive after the end", o.m.PostRecv(Piece{}), ErrClosed, "")
			if err := errors.Join(o.m.Close(), o.mem.Close()); err != nil {
				t.Error(err)
			}
		}
		event(t, r.g.Events(), Closed)
		if _, more := <-r.g.Events(); more {
			t.Error("an event after the last")
		}
		wants(t, "a write after the end", r.g.Write(t.Context(), At{}), ErrClosed, "")
		if err := errors.Join(r.g.Close(t.Context()), r.mem.Close()); err != nil {
			t.Error(err)
		}
	})
}

// TestCloseCancelled: when Close may not wait, what is under way fails.
func TestCloseCancelled(t *testing.T) {
	onPaths(t, func(t *testing.T, r *rig) {
		var failed []error
		for range 5 {
			op := &Op{Kind: OpSend, Pieces: []Piece{r.mem.Slice(0, 9000)}, Done: func(op *Op) { failed = append(failed, op.Err) }}
			if err := r.g.Submit(t.Context(), op); err != nil {
				t.Fatal(err)
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
		defer cancel()
		wants(t, "close", r.g.Close(ctx), context.DeadlineExceeded, "under way")
		wants(t, "close again", r.g.Close(t.Context()), context.DeadlineExceeded, "under way")
		if len(failed) != 5 {
			t.Fatalf("%d operations have failed", len(failed))
		}
		for _, err := range failed {
			wants(t, "operation", err, ErrClosed, "")
		}
		for _, o := range r.rs {
			_, err := o.m.Recv(t.Context())
			wants(t, "receiver", err, ErrClosed, "")
		}
		if err := r.mem.Close(); err != nil {
			t.Error(err)
		}
		if r.w.group(r.g.id.wire()) != nil {
			t.Error("the daemon has the group")
		}
	})
}

// TestClientClose: a client's end ends all that it has.
func TestClientClose(t *testing.T) {
	onPaths(t, func(t *testing.T, r *rig) {
		var end error
		op := &Op{Kind: OpSend, Pieces: []Piece{r.mem.Slice(0, 9000)}, Done: func(op *Op) { end = op.Err }}
		if err := r.g.Submit(t.Context(), op); err != nil {
			t.Fatal(err)
		}
		if err := r.c.Close(); err != nil {
			t.Error(err)
		}
		wants(t, "operation", end, ErrClosed, "")
		wants(t, "group", r.g.Err(), ErrClosed, "")
		for i, o := range r.rs {
			if err := o.m.PostRecv(o.mem.Slice(regionSize, 10)); err != nil && !errors.Is(err, ErrClosed) {
				t.Error(err)
			}
			if err := o.c.Close(); err != nil {
				t.Error(err)
			}
			_, err := o.m.Recv(t.Context())
			wants(t, fmt.Sprint("receiver ", i), err, ErrClosed, "")
			_, err = o.l.Accept(t.Context())
			wants(t, "listener", err, ErrClosed, "")
		}
		r.w.mu.Lock()
		defer r.w.mu.Unlock()
		if len(r.w.groups) > 0 {
			t.Error("the daemon has groups")
		}
	})
}

// TestCreateCancelled: nothing is left of a group whose creation was given up.
func TestCreateCancelled(t *testing.T) {
	w, ds := newWorld(t, 3)
	src := ds[0].client()
	r1, r2 := ds[1].receiver(100, 0), ds[2].receiver(100, 0)
	w.hold = make(chan struct{})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		_, err := src.Create(ctx, GroupConfig{Service: "s", Receivers: []string{ds[1].address, ds[2].address}, Regions: []Region{{"r", 100}}})
		done <- err
	}()
	eventually(t, "prepared", func() bool {
		r2.c.mu.Lock()
		defer r2.c.mu.Unlock()
		return len(r2.c.members) > 0
	})
	cancel()
	wants(t, "create", <-done, context.Canceled, `"s"`)
	for _, r := range []*receiver{r1, r2} {
		eventually(t, "nothing is left", func() bool {
			r.c.mu.Lock()
			defer r.c.mu.Unlock()
			return len(r.c.members) == 0
		})
		if err := r.mem.Close(); err != nil {
			t.Error(err)
		}
	}
	if len(src.groups) > 0 || src.creating > 0 {
		t.Error(src.groups, src.creating)
	}
}

// A group whose creation is cancelled when the daemon has made it already is closed.
func TestCreateAnswerLost(t *testing.T) {
	w, ds := newWorld(t, 2)
	src, r := ds[0].client(), ds[1].receiver(100, 0)
	ctx, cancel := context.WithCancel(t.Context())
	w.lost = cancel
	_, err := src.Create(ctx, GroupConfig{Service: "s", Receivers: []string{ds[1].address}, Regions: []Region{{"r", 100}}})
	wants(t, "create", err, context.Canceled, `"s"`)
	eventually(t, "it is closed", func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return len(w.groups) == 0
	})
	eventually(t, "nothing is left", func() bool {
		r.c.mu.Lock()
		defer r.c.mu.Unlock()
		return len(r.c.members) == 0
	})
}

// TestStrangeGroup: a group of which the client knows nothing is closed, when the daemon
// says that there is one.
func TestStrangeGroup(t *testing.T) {
	r := newRig(t, 1, false, GroupConfig{})
	g := r.w.group(r.g.id.wire())
	r.c.mu.Lock()
	delete(r.c.groups, r.g.id)
	r.c.mu.Unlock()
	r.w.changed(g, mcrdmav1.GroupChanged_TYPE_SUSPECTED, "x", "")
	eventually(t, "it is closed", func() bool { return r.w.group(r.g.id.wire()) == nil })
	r.c.mu.Lock()
	r.c.groups[r.g.id] = r.g
	r.c.mu.Unlock()
}

// TestRemoved: a member leaves; the sender goes on, and is told.
func TestRemoved(t *testing.T) {
	for name, p := range paths {
		if p.receivers < 2 {
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, p.receivers, p.relay, p.cfg)
			var wg sync.WaitGroup
			wg.Go(func() {
				for n := range 200 {
					if err := r.g.Write(t.Context(), At{}, r.mem.Slice(0, 20000+n)); err != nil {
						t.Error(err)
						return
					}
				}
			})
			eventually(t, "writing", func() bool { return r.g.Info().Stats.Completed > 10 })
			if err := r.rs[0].m.Close(); err != nil {
				t.Fatal(err)
			}
			e := event(t, r.g.Events(), Removed)
			if e.Address != r.ds[0].address || e.Host != "host-"+r.ds[0].address {
				t.Errorf("%+v", e)
			}
			e = event(t, r.g.Events(), Reformed)
			if e.Formation != 2 || e.Before != PathRelay {
				t.Errorf("%+v", e)
			}
			wg.Wait()
			r.same(0, 20000)
			if info := r.g.Info(); len(info.Members) != p.receivers-1 || info.Members[0].Address != r.ds[1].address {
				t.Errorf("%+v", info)
			}
			event(t, r.rs[1].m.Events(), Reformed)
			if err := r.g.Close(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestKilled: a receiver's process dies where hosts relay: the others notice, and the
// sender goes on without it.
func TestKilled(t *testing.T) {
	for _, transport := range []string{"tcp", "rdma"} {
		t.Run(transport, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, 3, true, GroupConfig{Transport: transport})
			var wg sync.WaitGroup
			wg.Go(func() {
				for n := range 100 {
					if err := r.g.Write(t.Context(), At{}, r.mem.Slice(0, 100000+n)); err != nil {
						t.Error(err)
						return
					}
				}
			})
			eventually(t, "writing", func() bool { return r.g.Info().Stats.Completed > 10 })
			r.rs[1].c.kill()
			if e := event(t, r.g.Events(), Removed); e.Address != r.ds[1].address {
				t.Errorf("%+v", e)
			}
			wg.Wait()
			r.rs = slices.Delete(r.rs, 1, 2)
			r.same(0, 100000)
			if err := r.g.Close(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestMinSize: with too few left, the group fails, and all learn of it.
func TestMinSize(t *testing.T) {
	r := newRig(t, 2, true, GroupConfig{MinSize: 3})
	done := make(chan error, 1)
	op := &Op{Kind: OpSend, Pieces: []Piece{r.mem.Slice(0, 10)}, Done: func(op *Op) { done <- op.Err }}
	if err := r.g.Submit(t.Context(), op); err != nil {
		t.Fatal(err)
	}
	if err := r.rs[0].m.Close(); err != nil {
		t.Fatal(err)
	}
	wants(t, "operation", <-done, ErrMinSize, "too few")
	event(t, r.g.Events(), Failed)
	wants(t, "close", r.g.Close(t.Context()), ErrMinSize, "")
	wants(t, "write", r.g.Write(t.Context(), At{}), ErrMinSize, "")
	_, err := r.rs[1].m.Recv(t.Context())
	wants(t, "the other receiver", err, ErrClosed, "")
}

// TestTooLong: a message that doesn't fit a receive costs that receiver its membership,
// and the others nothing.
func TestTooLong(t *testing.T) {
	for name, p := range paths {
		for _, size := range []int{100, inlineMax + 1} {
			t.Run(fmt.Sprint(name, size), func(t *testing.T) {
				t.Parallel()
				r := newRig(t, p.receivers, p.relay, p.cfg)
				if err := r.rs[0].m.PostRecv(r.rs[0].mem.Slice(regionSize, size-1)); err != nil {
					t.Fatal(err)
				}
				for _, o := range r.rs[1:] {
					if err := o.m.PostRecv(o.mem.Slice(regionSize, size)); err != nil {
						t.Fatal(err)
					}
				}
				err := r.g.Send(t.Context(), r.mem.Slice(0, size))
				if len(r.rs) == 1 {
					wants(t, "alone", err, ErrMinSize, "")
				} else if err != nil {
					t.Fatal(err)
				}
				if n := len(r.g.Info().Members); err == nil && n != len(r.rs)-1 {
					t.Errorf("it is complete with %d members, one of which hasn't got it", n)
				}
				_, err = r.rs[0].m.Recv(t.Context())
				wants(t, "receiver", err, ErrTooLong, "")
				r.rs = r.rs[1:]
				r.recv(Received{N: size, Kind: OpSend}, r.mem.Bytes()[:size])
				r.src.w.hosts[r.ds[0].address].mu.Lock()
				defer r.src.w.hosts[r.ds[0].address].mu.Unlock()
				if left := r.ds[0].left; len(left) != 1 || !strings.Contains(left[0], "longer than the receive") {
					t.Errorf("left because of %q", left)
				}
			})
		}
	}
}

// TestReplay: some members have messages that others lack when the formation ends: those
// are not delivered to them again, and do not take receives that wait for others.
func TestReplay(t *testing.T) {
	for _, transport := range []string{"tcp", "rdma"} {
		t.Run(transport, func(t *testing.T) {
			t.Parallel()
			// By fan-out, and with a ring: the ahead one doesn't wait for the other.
			r := newRig(t, 2, true, GroupConfig{Transport: transport, Algorithm: "sequential"})
			sizes := []int{5, 50, 500}
			for n, size := range sizes {
				op := &Op{Kind: OpSendImm, Imm: uint32(n), Pieces: []Piece{r.mem.Slice(0, size)}, Done: func(*Op) {}}
				if err := r.g.Submit(t.Context(), op); err != nil {
					t.Fatal(err)
				}
			}
			ahead, behind := r.rs[0].m, r.rs[1].m
			for _, size := range sizes[:2] {
				if err := ahead.PostRecv(r.rs[0].mem.Slice(regionSize, size)); err != nil {
					t.Fatal(err)
				}
			}
			for n := range 2 {
				if got, err := ahead.Recv(t.Context()); err != nil || got.Imm != uint32(n) {
					t.Fatal(got, err)
				}
			}
			r.w.changed(r.w.group(r.g.id.wire()), mcrdmav1.GroupChanged_TYPE_REFORM, "", "for the test")
			event(t, r.g.Events(), Reformed)
			if err := ahead.PostRecv(r.rs[0].mem.Slice(regionSize, sizes[2])); err != nil {
				t.Fatal(err)
			}
			for _, size := range sizes {
				if err := behind.PostRecv(r.rs[1].mem.Slice(regionSize, size)); err != nil {
					t.Fatal(err)
				}
			}
			for n := range sizes {
				if got, err := behind.Recv(t.Context()); err != nil || got.Imm != uint32(n) || got.N != sizes[n] {
					t.Fatal(got, err)
				}
			}
			if got, err := ahead.Recv(t.Context()); err != nil || got.Imm != 2 || got.N != sizes[2] || !bytes.Equal(got.Bytes(), r.mem.Bytes()[:sizes[2]]) {
				t.Fatal(got, err)
			}
			if err := r.g.Close(t.Context()); err != nil {
				t.Fatal(err)
			}
			if s := r.g.Info().Stats; s.Replayed != 3 || s.Completed != 3 {
				t.Errorf("%+v", s)
			}
		})
	}
}

// TestDaemonRestarts: data goes on without the daemon; when it is back, all that needs it
// works again.
func TestDaemonRestarts(t *testing.T) {
	onPaths(t, func(t *testing.T, r *rig) {
		for _, d := range append(slices.Clone(r.ds), r.src) {
			d.stop()
		}
		for n := range 20 {
			if err := r.g.Write(t.Context(), At{}, r.mem.Slice(0, 1000+n)); err != nil {
				t.Fatal(err)
			}
		}
		r.same(0, 1000)
		gone, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		_, err := r.c.Create(gone, GroupConfig{Service: "s", Receivers: []string{"x"}})
		wants(t, "create without the daemon", err, ErrDaemon, "")
		for _, d := range append(slices.Clone(r.ds), r.src) {
			d.services = map[string]bool{}
			d.start()
		}
		event(t, r.g.Events(), Resumed)
		for _, d := range r.ds {
			eventually(t, "the service is offered again", func() bool {
				d.mu.Lock()
				defer d.mu.Unlock()
				return d.services["s"]
			})
		}
		r.w.changed(r.w.group(r.g.id.wire()), mcrdmav1.GroupChanged_TYPE_REFORM, "", "for the test")
		event(t, r.g.Events(), Reformed)
		fillRandom(r.mem.Bytes(), 5)
		if err := r.g.Write(t.Context(), At{}, r.mem.Slice(0, 1000)); err != nil {
			t.Fatal(err)
		}
		r.same(0, 1000)
		if err := r.g.Close(t.Context()); err != nil {
			t.Error(err)
		}
		for _, o := range r.rs {
			_, err := o.m.Recv(t.Context())
			wants(t, "receiver", err, ErrClosed, "")
		}
	})
}

// TestDaemonForgets: a daemon that comes back and knows nothing ends groups and members.
func TestDaemonForgets(t *testing.T) {
	r := newRig(t, 1, false, GroupConfig{})
	for _, d := range []*fakeDaemon{r.src, r.ds[0]} {
		d.stop()
	}
	r.w.mu.Lock()
	clear(r.w.groups)
	r.w.mu.Unlock()
	for _, d := range []*fakeDaemon{r.src, r.ds[0]} {
		d.session = nil
		d.start()
	}
	_, err := r.rs[0].m.Recv(t.Context())
	wants(t, "receiver", err, ErrDaemon, "no such group")
	event(t, r.g.Events(), Failed)
	wants(t, "sender", r.g.Err(), ErrDaemon, "no such group")
}

// TestDaemonGoneWhileReforming: the formation is made when the daemon is back.
func TestDaemonGoneWhileReforming(t *testing.T) {
	r := newRig(t, 2, true, GroupConfig{})
	r.src.stop()
	r.rs[0].c.kill()
	r.ds[0].stop()
	done := make(chan error, 1)
	go func() { done <- r.g.Write(t.Context(), At{}, r.mem.Slice(0, 1000)) }()
	eventually(t, "the formation has failed", func() bool {
		r.g.mu.Lock()
		defer r.g.mu.Unlock()
		return r.g.path == nil
	})
	r.src.start()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	r.rs = r.rs[1:]
	r.same(0, 1000)
	if err := r.g.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestStall: that nothing moves is reported, again and again, and not when nothing is
// under way.
func TestStall(t *testing.T) {
	onPaths(t, func(t *testing.T, r *rig) {
		if err := r.g.Write(t.Context(), At{}, r.mem.Slice(0, 10)); err != nil {
			t.Fatal(err)
		}
		r.g.watch(time.Now().Add(time.Hour))
		r.g.mu.Lock()
		stalled := r.g.stalled
		r.g.mu.Unlock()
		if !stalled.IsZero() {
			t.Error("a stall with nothing under way")
		}
		op := &Op{Kind: OpSend, Done: func(*Op) {}}
		began := time.Now()
		if err := r.g.Submit(t.Context(), op); err != nil {
			t.Fatal(err)
		}
		eventually(t, "two reports", func() bool { return r.w.stalls.Load() == 2 })
		if d := time.Since(began); d < 2*stallAfter {
			t.Errorf("two reports within %v", d)
		}
		r.post(0)
		if err := r.g.Close(t.Context()); err != nil {
			t.Error(err)
		}
		if got := r.g.Info().Stats.Stalls; got < 2 {
			t.Errorf("%d stalls", got)
		}
	})
}

// TestEvents: what the daemon says is told, and Info is kept true.
func TestEvents(t *testing.T) {
	r := newRig(t, 3, true, GroupConfig{})
	g := r.w.group(r.g.id.wire())
	a := r.ds[1].address
	for typ, want := range map[mcrdmav1.GroupChanged_Type]EventType{
		mcrdmav1.GroupChanged_TYPE_SUSPECTED: Suspected, mcrdmav1.GroupChanged_TYPE_RECOVERED: Recovered, mcrdmav1.GroupChanged_TYPE_ROUTE: Route,
		mcrdmav1.GroupChanged_TYPE_REMOVED: Removed,
	} {
		r.w.changed(g, typ, a, "so it is")
		if e := event(t, r.g.Events(), want); e.Address != a || e.Host != "host-"+a || e.Text != "so it is" || e.Formation != 1 || e.Time.IsZero() {
			t.Errorf("%+v", e)
		}
	}
	if m := r.g.Info().Members; len(m) != 2 || m[0].Address != r.ds[0].address || m[1].Address != r.ds[2].address {
		t.Errorf("%+v", m)
	}
	r.w.changed(g, mcrdmav1.GroupChanged_TYPE_REMOVED, a, "again")
	r.w.changed(g, mcrdmav1.GroupChanged_TYPE_ROUTE, "", "after that")
	if e := <-r.g.Events(); e.Type != Route {
		t.Errorf("%v is told twice", e)
	}
	for n := range 3 * kept {
		r.w.changed(g, mcrdmav1.GroupChanged_TYPE_ROUTE, "", fmt.Sprint(n))
	}
	eventually(t, "the queue is full", func() bool { return len(r.g.Events()) == kept })
	for {
		e := event(t, r.g.Events(), Route)
		if e.Text == fmt.Sprint(3*kept-1) {
			break // the newest is there
		}
	}
	r.w.changed(g, mcrdmav1.GroupChanged_TYPE_FAILED, "", "it is over")
	event(t, r.g.Events(), Failed)
	wants(t, "group", r.g.Err(), ErrMinSize, "it is over")
}

// TestLyingDaemon: what can't be is an error, and no hang.
func TestLyingDaemon(t *testing.T) {
	r := newRig(t, 1, false, GroupConfig{})
	r.w.haveLie = 3
	r.w.changed(r.w.group(r.g.id.wire()), mcrdmav1.GroupChanged_TYPE_REFORM, "", "for the test")
	event(t, r.g.Events(), Failed)
	wants(t, "group", r.g.Err(), ErrFailed, "receivers have 3 messages")
	_, err := r.rs[0].m.Recv(t.Context())
	if err == nil {
		t.Error("no error at the receiver")
	}
}
