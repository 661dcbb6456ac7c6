package mcrdma

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/internal/testenv"
)

// A receiver is an application that receives for a service "s", with a region.
type receiver struct {
	t      testing.TB
	c      *Client
	mem    *Memory // the region, and behind it room for receives
	region int
	l      *Listener
	m      *Member
}

func (d *fakeDaemon) receiver(region, room int) *receiver {
	t := d.w.t
	t.Helper()
	r := &receiver{t: t, c: d.client(), region: region}
	var err error
	if r.mem, err = r.c.Alloc(region + room); err != nil {
		t.Fatal(err)
	}
	r.l, err = r.c.Listen(t.Context(), ListenConfig{Service: "s", Accept: func(*Request) (*Grant, error) {
		return &Grant{Regions: []Piece{r.mem.Slice(0, region)}}, nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func (r *receiver) accept() *Member {
	r.t.Helper()
	var err error
	if r.m, err = r.l.Accept(r.t.Context()); err != nil {
		r.t.Fatal(err)
	}
	return r.m
}

// rig is a sender and receivers, and their group.
type rig struct {
	t   testing.TB
	w   *world
	src *fakeDaemon
	c   *Client
	mem *Memory
	rs  []*receiver
	ds  []*fakeDaemon // of the receivers
	g   *Group
}

const regionSize = 1 << 20

func newRig(t testing.TB, receivers int, relay bool, cfg GroupConfig) *rig {
	t.Helper()
	w, ds := newWorld(t, receivers+1)
	return newRigIn(w, ds, relay, cfg)
}

// newSpeedRig has devices on the host's sockets, which allocate nothing.
func newSpeedRig(t testing.TB, receivers int, relay bool, cfg GroupConfig) *rig {
	t.Helper()
	w, ds := newWorldOn(t, receivers+1, "127.%d.%d.%d", "softroce:%s?rx=udp")
	return newRigIn(w, ds, relay, cfg)
}

func newRigIn(w *world, ds []*fakeDaemon, relay bool, cfg GroupConfig) *rig {
	t := w.t
	t.Helper()
	w.relay = relay
	r := &rig{t: t, w: w, src: ds[0], ds: ds[1:], c: ds[0].client()}
	var err error
	if r.mem, err = r.c.Alloc(regionSize); err != nil {
		t.Fatal(err)
	}
	fillRandom(r.mem.Bytes(), 1)
	cfg.Service = "s"
	cfg.Regions = []Region{{"r", regionSize}}
	for _, d := range r.ds {
		cfg.Receivers = append(cfg.Receivers, d.address)
		r.rs = append(r.rs, d.receiver(regionSize, regionSize))
	}
	if r.g, err = r.c.Create(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	for _, o := range r.rs {
		o.accept()
	}
	return r
}

func fillRandom(b []byte, seed uint64) {
	for i := range b {
		seed = seed*6364136223846793005 + 1442695040888963407
		b[i] = byte(seed >> 56)
	}
}

func (r *rig) same(off, n int) {
	r.t.Helper()
	for i, o := range r.rs {
		if o.m.Err() == nil && !bytes.Equal(o.m.Region(0)[off:off+n], r.mem.Bytes()[off:off+n]) {
			r.t.Fatalf("receiver %d differs in bytes %d to %d", i, off, off+n)
		}
	}
	r.seen()
}

// seen orders what the test did at the receivers before what comes to them later. The race
// detector does not see the network in between.
func (r *rig) seen() {
	for _, o := range r.rs {
		o.m.Region(0)
	}
}

// paths are the paths that need no switch.
var paths = map[string]struct {
	receivers int
	relay     bool
	cfg       GroupConfig
}{
	"switch":     {1, false, GroupConfig{}},
	"tcp":        {3, true, GroupConfig{Tuning: Tuning{Transport: "tcp"}}},
	"rdma":       {3, true, GroupConfig{Tuning: Tuning{Transport: "rdma"}}},
	"sequential": {2, true, GroupConfig{Tuning: Tuning{Transport: "rdma", Algorithm: "sequential"}}},
	"chain":      {2, true, GroupConfig{Tuning: Tuning{Transport: "tcp", Algorithm: "chain"}}},
}

func onPaths(t *testing.T, f func(t *testing.T, r *rig)) {
	for name, p := range paths {
		testenv.Bubble(t, name, func(t *testing.T) {
			f(t, newRig(t, p.receivers, p.relay, p.cfg))
		})
	}
}

// TestOperations: every kind, every size, gather lists: the content is there when the
// operation is done, and messages come in order with what belongs to them.
func TestOperations(t *testing.T) {
	onPaths(t, func(t *testing.T, r *rig) {
		for i, size := range []int{0, 1, 31, 1024, 1025, inlineMax, inlineMax + 1, 65536, 200_001, regionSize} {
			fillRandom(r.mem.Bytes(), uint64(i))
			pieces := []Piece{r.mem.Slice(0, size)}
			if size > 10 {
				pieces = []Piece{r.mem.Slice(0, 3), {}, r.mem.Slice(3, size/2), r.mem.Slice(3+size/2, size-size/2-3)}
			}
			r.everyKind(size, pieces)
		}
		info := r.g.Info()
		if info.Stats.Completed != 40 || info.Stats.Operations != 40 || info.Stats.Replayed != 0 || info.Formation != 1 {
			t.Errorf("%+v", info)
		}
		if info.Path == PathSwitch && (info.Stats.Posts != 40 || info.Stats.Completions != 40) {
			t.Errorf("%d posts, %d completions of 40 operations", info.Stats.Posts, info.Stats.Completions)
		}
	})
}

// everyKind sends the first size bytes of the memory, as pieces, by each kind.
func (r *rig) everyKind(size int, pieces []Piece) {
	t, ctx := r.t, r.t.Context()
	t.Helper()
	clearAll := func() {
		for _, o := range r.rs {
			clear(o.m.Region(0))
		}
		r.seen()
	}
	clearAll()
	if err := r.g.Write(ctx, At{}, pieces...); err != nil {
		t.Fatalf("WRITE of %d bytes: %v", size, err)
	}
	r.same(0, size)
	clearAll()
	r.post(0)
	if err := r.g.WriteImm(ctx, At{}, 0xfeed, pieces...); err != nil {
		t.Fatalf("WRITE with immediate of %d bytes: %v", size, err)
	}
	r.same(0, size)
	r.recv(Received{N: size, Imm: 0xfeed, HasImm: true, Kind: OpWriteImm}, nil)
	r.post(size)
	if err := r.g.Send(ctx, pieces...); err != nil {
		t.Fatalf("SEND of %d bytes: %v", size, err)
	}
	r.recv(Received{N: size, Kind: OpSend}, r.mem.Bytes()[:size])
	r.post(size)
	if err := r.g.SendImm(ctx, 7, pieces...); err != nil {
		t.Fatalf("SEND with immediate of %d bytes: %v", size, err)
	}
	r.recv(Received{N: size, Imm: 7, HasImm: true, Kind: OpSendImm}, r.mem.Bytes()[:size])
}

// post posts a receive at all receivers.
func (r *rig) post(size int) {
	r.t.Helper()
	for _, o := range r.rs {
		p := Piece{}
		if size > 0 {
			p = o.mem.Slice(regionSize, size)
		}
		if err := o.m.PostRecv(p); err != nil {
			r.t.Fatal(err)
		}
	}
}

// recv receives at all receivers.
func (r *rig) recv(want Received, content []byte) {
	r.t.Helper()
	for i, o := range r.rs {
		got, err := o.m.Recv(r.t.Context())
		if err != nil {
			r.t.Fatalf("receiver %d: %v", i, err)
		}
		if !bytes.Equal(got.Bytes(), content) {
			r.t.Fatalf("receiver %d: the content of a %v differs", i, got.Kind)
		}
		clear(got.Bytes())
		got.Piece = Piece{}
		if got != want {
			r.t.Fatalf("receiver %d got %+v, want %+v", i, got, want)
		}
	}
}

// TestDepth: many operations are under way; they are done in order, and each receiver
// gets the messages in order.
func TestDepth(t *testing.T) {
	const ops, size = 300, 3000
	for name, p := range paths {
		for _, depth := range []int{1, 7, 64} {
			testenv.Bubble(t, fmt.Sprintf("%s/%d", name, depth), func(t *testing.T) {
				cfg := p.cfg
				cfg.Depth = depth
				r := newRig(t, p.receivers, p.relay, cfg)
				var wg sync.WaitGroup
				for _, o := range r.rs {
					wg.Go(func() { o.receiveAll(ops, size) })
				}
				done := 0
				all := make(chan struct{})
				for i := range ops {
					op := &Op{Kind: OpSendImm, Imm: uint32(i), Pieces: []Piece{r.mem.Slice(i*size, size)}, Done: func(op *Op) {
						if op.Err != nil || int(op.Imm) != done {
							t.Errorf("operation %d is done after %d others: %v", op.Imm, done, op.Err)
						}
						if done++; done == ops {
							close(all)
						}
					}}
					if err := r.g.Submit(t.Context(), op); err != nil {
						t.Fatal(err)
					}
				}
				<-all
				wg.Wait()
			})
		}
	}
}

// receiveAll receives messages that count, with the content of the sender's memory.
func (r *receiver) receiveAll(ops, size int) {
	want := make([]byte, regionSize)
	fillRandom(want, 1)
	const window = 16
	for i := range ops + window {
		if i < ops {
			if err := r.m.PostRecv(r.mem.Slice(regionSize+i%(2*window)*size, size)); err != nil {
				r.t.Error(err)
				return
			}
		}
		if i < window {
			continue
		}
		n := i - window
		got, err := r.m.Recv(r.t.Context())
		if err != nil {
			r.t.Error(err)
			return
		}
		if int(got.Imm) != n || !bytes.Equal(got.Bytes(), want[n*size:(n+1)*size]) {
			r.t.Errorf("message %d instead of %d, or its content differs", got.Imm, n)
			return
		}
	}
}

// TestNoReceive: a message waits until there is a receive.
func TestNoReceive(t *testing.T) {
	onPaths(t, func(t *testing.T, r *rig) {
		for _, size := range []int{10, inlineMax + 1} {
			for _, kind := range []Kind{OpWriteImm, OpSend} {
				done := make(chan error, 1)
				op := &Op{Kind: kind, Pieces: []Piece{r.mem.Slice(0, size)}, Done: func(op *Op) { done <- op.Err }}
				if err := r.g.Submit(t.Context(), op); err != nil {
					t.Fatal(err)
				}
				for i, o := range r.rs {
					select {
					case err := <-done:
						t.Fatalf("a %v is done before there are receives: %v", kind, err)
					case <-time.After(20 * time.Millisecond):
					}
					if err := o.m.PostRecv(o.mem.Slice(regionSize, size)); err != nil {
						t.Fatal(i, err)
					}
				}
				if err := <-done; err != nil {
					t.Fatal(err)
				}
				for _, o := range r.rs {
					if got, err := o.m.Recv(t.Context()); err != nil || got.Kind != kind || got.N != size {
						t.Fatal(got, err)
					}
				}
			}
		}
	})
}

// TestReformed: formations end at any time; messages come once and in order all the
// same, and what is written is there.
func TestReformed(t *testing.T) {
	const ops = 400
	onPaths(t, func(t *testing.T, r *rig) {
		seed := rand.Uint64()
		t.Logf("seed %d", seed)
		rng := rand.New(rand.NewPCG(seed, 1))
		size := func(n int) int { return []int{5, 600, 9000}[n%3] }
		var wg sync.WaitGroup
		for _, o := range r.rs {
			wg.Go(func() {
				for n := range ops {
					if err := o.m.PostRecv(o.mem.Slice(regionSize, size(n))); err != nil {
						t.Error(err)
						return
					}
				}
				for n := range ops {
					got, err := o.m.Recv(t.Context())
					if err != nil {
						t.Error(err)
						return
					}
					if got.Imm != uint32(n) || got.N != size(n) || got.Piece.Len() != size(n) {
						t.Errorf("message %d with %d bytes instead of %d", got.Imm, got.N, n)
						return
					}
				}
			})
		}
		all := make(chan struct{})
		done := 0
		for n := range ops {
			kind := []Kind{OpWriteImm, OpSendImm}[rng.IntN(2)]
			op := &Op{Kind: kind, Imm: uint32(n), Pieces: []Piece{r.mem.Slice(0, size(n))}, Done: func(op *Op) {
				if op.Err != nil || op.Imm != uint32(done) {
					t.Errorf("operation %d is done after %d: %v", op.Imm, done, op.Err)
				}
				if done++; done == ops {
					close(all)
				}
			}}
			if err := r.g.Submit(t.Context(), op); err != nil {
				t.Fatal(err)
			}
			if n%100 == 99 {
				time.Sleep(time.Second) // the group is formed again
			}
			if n%100 == 50 || rng.IntN(20) == 0 {
				w := &Op{Kind: OpWrite, Pieces: []Piece{r.mem.Slice(0, 50_000)}, Done: func(*Op) {}}
				if err := r.g.Submit(t.Context(), w); err != nil {
					t.Fatal(err)
				}
				r.w.changed(r.w.group(r.g.id.wire()), mcrdmav1.GroupChanged_TYPE_REFORM, "", "for the test")
			}
		}
		<-all
		wg.Wait()
		if info := r.g.Info(); info.Formation < 3 {
			t.Errorf("formation %d", info.Formation)
		}
		if err := r.g.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// TestReplenishClosed: a receive whose memory was closed can't go back, and Recv says so.
func TestReplenishClosed(t *testing.T) {
	onPaths(t, func(t *testing.T, r *rig) {
		m := r.rs[0].m
		mem, err := r.rs[0].c.Alloc(100)
		if err != nil {
			t.Fatal(err)
		}
		m.replenish = true
		r.post(1)
		for _, other := range r.rs[1:] {
			if err := other.m.PostRecv(Piece{}); err != nil {
				t.Fatal(err)
			}
		}
		if err := m.PostRecv(mem.All()); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if err := r.g.WriteImm(t.Context(), At{}, 1, r.mem.Slice(0, 10)); err != nil {
				t.Fatal(err)
			}
			if _, err := m.Recv(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if err := mem.Close(); err != nil {
			t.Fatal(err)
		}
		_, err = m.Recv(t.Context())
		wants(t, "a receive without memory", err, ErrClosed, "the memory was closed")
	})
}

// TestPackets: where the switches take few packets that are not acknowledged, operations wait for each other, and one
// with more packets is refused; hosts take it.
func TestPackets(t *testing.T) {
	for _, relay := range []bool{false, true} {
		testenv.Bubble(t, fmt.Sprintf("relay=%v", relay), func(t *testing.T) {
			w, ds := newWorld(t, 2)
			w.packets = 20 // with the nudges
			r := newRigIn(w, ds, relay, GroupConfig{})
			mtu := r.c.dev.Attr().ActiveMTU
			var all []*Pending
			for range 50 {
				p, err := r.g.Post(t.Context(), Op{Kind: OpWrite, Pieces: []Piece{r.mem.Slice(0, 9*mtu)}})
				if err != nil {
					t.Fatal(err)
				}
				all = append(all, p)
			}
			for _, p := range all {
				if err := p.Wait(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			err := r.g.Write(t.Context(), At{}, r.mem.Slice(0, 16*mtu+1))
			if relay {
				if err != nil {
					t.Error(err)
				}
				return
			}
			wants(t, "a long operation", err, ErrLimit, "and the switches take 16")
			if err := r.g.Write(t.Context(), At{}, r.mem.Slice(0, 16*mtu)); err != nil {
				t.Error(err)
			}
			if err := r.mem.Close(); err != nil {
				t.Error("what was refused holds its memory: ", err)
			}
		})
	}
}

// TestTooLongIsRelayed: hosts relay an operation that the next formation's switches cannot take, and what is behind it goes
// through switches.
func TestTooLongIsRelayed(t *testing.T) {
	testenv.Bubble(t, "", func(t *testing.T) {
		w, ds := newWorld(t, 2)
		w.packets = 20
		r := newRigIn(w, ds, true, GroupConfig{})
		mtu := r.c.dev.Attr().ActiveMTU
		var all []*Pending
		for _, n := range []int{17, 1} { // no receives are posted: they wait
			p, err := r.g.Post(t.Context(), Op{Kind: OpSend, Pieces: []Piece{r.mem.Slice(0, n*mtu)}})
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, p)
		}
		w.mu.Lock()
		w.relay = false
		w.mu.Unlock()
		w.changed(w.group(r.g.id.wire()), mcrdmav1.GroupChanged_TYPE_REFORM, "", "for the test")
		time.Sleep(time.Second)
		if info := r.g.Info(); info.Path != PathRelay || info.Formation < 3 {
			t.Errorf("%+v, and an operation is too long for switches", info)
		}
		r.post(17 * mtu)
		r.post(mtu)
		for _, p := range all {
			if err := p.Wait(t.Context()); err != nil {
				t.Error(err)
			}
		}
		if info := r.g.Info(); info.Path != PathSwitch {
			t.Errorf("%+v, and the rest is not too long", info)
		}
	})
}
