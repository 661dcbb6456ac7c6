package mcrdma

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/internal/testenv"
)

// TestRemoved: a member leaves; the sender goes on, and gets an event.
func TestRemoved(t *testing.T) {
	for name, p := range paths {
		if p.receivers < 2 {
			continue
		}
		testenv.Bubble(t, name, func(t *testing.T) {
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
			e := event(t, r.g.Events(), EventRemoved)
			if e.Address != r.ds[0].address || e.Host != "host-"+r.ds[0].address {
				t.Errorf("%+v", e)
			}
			e = event(t, r.g.Events(), EventReformed)
			if e.Formation != 2 || e.Before != PathRelay {
				t.Errorf("%+v", e)
			}
			wg.Wait()
			r.same(0, 20000)
			if info := r.g.Info(); len(info.Members) != p.receivers-1 || info.Members[0].Address != r.ds[1].address {
				t.Errorf("%+v", info)
			}
			event(t, r.rs[1].m.Events(), EventReformed)
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
		testenv.Bubble(t, transport, func(t *testing.T) {
			r := newRig(t, 3, true, GroupConfig{Tuning: Tuning{Transport: transport}})
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
			if e := event(t, r.g.Events(), EventRemoved); e.Address != r.ds[1].address {
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
	synctest.Test(t, func(t *testing.T) {
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
		event(t, r.g.Events(), EventFailed)
		wants(t, "close", r.g.Close(t.Context()), ErrMinSize, "")
		wants(t, "write", r.g.Write(t.Context(), At{}), ErrMinSize, "")
		_, err := r.rs[1].m.Recv(t.Context())
		wants(t, "the other receiver", err, ErrClosed, "")
	})
}

// TestTooLong: a message that doesn't fit a receive costs that receiver its membership,
// and the others nothing.
func TestTooLong(t *testing.T) {
	for name, p := range paths {
		for _, size := range []int{100, inlineMax + 1} {
			testenv.Bubble(t, fmt.Sprint(name, size), func(t *testing.T) {
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
				wants(t, "receiver", err, ErrInvalid, "longer")
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
		testenv.Bubble(t, transport, func(t *testing.T) {
			// By fan-out, and with a ring: the ahead one doesn't wait for the other.
			r := newRig(t, 2, true, GroupConfig{Tuning: Tuning{Transport: transport, Algorithm: "sequential"}})
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
			event(t, r.g.Events(), EventReformed)
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
		event(t, r.g.Events(), EventResumed)
		for _, d := range r.ds {
			eventually(t, "the service is offered again", func() bool {
				d.mu.Lock()
				defer d.mu.Unlock()
				return d.services["s"]
			})
		}
		r.w.changed(r.w.group(r.g.id.wire()), mcrdmav1.GroupChanged_TYPE_REFORM, "", "for the test")
		event(t, r.g.Events(), EventReformed)
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
	synctest.Test(t, func(t *testing.T) {
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
		event(t, r.g.Events(), EventFailed)
		wants(t, "sender", r.g.Err(), ErrDaemon, "no such group")
	})
}

// TestDaemonGoneWhileReforming: the formation is made when the daemon is back.
func TestDaemonGoneWhileReforming(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
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
	})
}

// TestDaemonGoneForGood: a group whose formation has failed does not wait forever for a
// daemon to form it anew.
func TestDaemonGoneForGood(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 2, true, GroupConfig{})
		r.src.w.grace = 200 * time.Millisecond
		r.src.stop()
		r.src.start() // it says so when it is back
		event(t, r.g.Events(), EventResumed)
		r.src.stop()
		r.rs[0].c.kill()
		err := r.g.Write(t.Context(), At{}, r.mem.Slice(0, 1000))
		wants(t, "write", err, ErrDaemon, "away for more than 200ms")
		event(t, r.g.Events(), EventFailed)
		wants(t, "sender", r.g.Err(), ErrDaemon, "away for more than 200ms")
	})
}

// TestReceiversDaemonGoneForGood: a receiver whose daemon stays away learns that it is no
// longer a member: the sender's daemon takes it out. Its own daemon is told when it is
// back.
func TestReceiversDaemonGoneForGood(t *testing.T) {
	onPaths(t, func(t *testing.T, r *rig) {
		m, d := r.rs[0].m, r.ds[0]
		r.w.grace = 200 * time.Millisecond
		d.stop()
		d.start() // it says so when it is back
		event(t, m.Events(), EventResumed)
		d.stop()
		_, err := m.Recv(t.Context())
		wants(t, "receiver", err, ErrDaemon, "away for more than 200ms")
		event(t, m.Events(), EventFailed)
		d.start()
		eventually(t, "the daemon is told", func() bool {
			d.mu.Lock()
			defer d.mu.Unlock()
			return len(d.left) == 1
		})
	})
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
		patience, stalled := r.g.life.patience(), r.g.life.stalled
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
		if d := time.Since(began); d < 2*patience {
			t.Errorf("two reports within %v, with a patience of %v", d, patience)
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

// TestHurry: as soon as a receiver is to blame, the others are made to acknowledge once
// more, a few times: the daemon's event about the removal may come too late for that.
func TestHurry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 1, false, GroupConfig{})
		r.w.suspects = []string{r.ds[0].address}
		op := &Op{Kind: OpSend, Done: func(*Op) {}} // nothing is posted to receive it
		if err := r.g.Submit(t.Context(), op); err != nil {
			t.Fatal(err)
		}
		eventually(t, "nudges", func() bool {
			r.g.mu.Lock()
			defer r.g.mu.Unlock()
			s, ok := r.g.path.(*switched)
			return ok && s.nudges.Load() == maxNudges-1
		})
		r.post(0)
		eventually(t, "the nudges have ended", func() bool {
			r.g.mu.Lock()
			defer r.g.mu.Unlock()
			s, ok := r.g.path.(*switched)
			return ok && s.nudges.Load() == 0
		})
		if err := r.g.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// TestEvents: the daemon's events reach the application, and Info stays correct.
func TestEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 3, true, GroupConfig{})
		g := r.w.group(r.g.id.wire())
		a := r.ds[1].address
		for typ, want := range map[mcrdmav1.GroupChanged_Type]EventType{
			mcrdmav1.GroupChanged_TYPE_SUSPECTED: EventSuspected, mcrdmav1.GroupChanged_TYPE_RECOVERED: EventRecovered, mcrdmav1.GroupChanged_TYPE_ROUTE: EventRoute,
			mcrdmav1.GroupChanged_TYPE_REMOVED: EventRemoved,
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
		if e := <-r.g.Events(); e.Type != EventRoute {
			t.Errorf("%v is told twice", e)
		}
		for n := range 3 * kept {
			r.w.changed(g, mcrdmav1.GroupChanged_TYPE_ROUTE, "", fmt.Sprint(n))
		}
		eventually(t, "the queue is full", func() bool { return len(r.g.Events()) == kept })
		for {
			e := event(t, r.g.Events(), EventRoute)
			if e.Text == fmt.Sprint(3*kept-1) {
				break // the newest is there
			}
		}
		r.w.changed(g, mcrdmav1.GroupChanged_TYPE_FAILED, "", "it has ended")
		event(t, r.g.Events(), EventFailed)
		wants(t, "group", r.g.Err(), ErrMinSize, "it has ended")
	})
}

// TestLyingDaemon: an impossible answer is an error, not a hang.
func TestLyingDaemon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 1, false, GroupConfig{})
		r.w.haveLie = 3
		r.w.changed(r.w.group(r.g.id.wire()), mcrdmav1.GroupChanged_TYPE_REFORM, "", "for the test")
		event(t, r.g.Events(), EventFailed)
		wants(t, "group", r.g.Err(), ErrFailed, "receivers have 3 messages")
		_, err := r.rs[0].m.Recv(t.Context())
		if err == nil {
			t.Error("no error at the receiver")
		}
	})
}
