package rdma

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/mcrdma/mcrdma/internal/testenv"
	"github.com/mcrdma/mcrdma/pkg/qp"
	"github.com/mcrdma/mcrdma/pkg/rdmcfallback"
)

func pair(t testing.TB) (a, b *inbox) {
	t.Helper()
	ts, _ := connect(t, 2)
	return &inbox{t: t, x: ts[0]}, &inbox{t: t, x: ts[1]}
}

// link makes the queue pair for blocks from a to b, by a first block.
func link(t testing.TB, a, b *inbox) {
	t.Helper()
	done := make(chan struct{})
	peer := 0
	if b.x.peers[0] == nil {
		peer = 1
	}
	check(t, b.x.PostRecv(peer, nil))
	go func() {
		defer close(done)
		b.want(rdmcfallback.EventReceived, peer)
	}()
	a.want(rdmcfallback.EventReady, 1-peer)
	check(t, a.x.Send(1-peer, 0, nil))
	a.want(rdmcfallback.EventSent, 1-peer)
	<-done
}

func TestBlocks(t *testing.T) {
	a, b := pair(t)
	link(t, a, b)
	link(t, b, a)
	buf := make([]byte, 3<<20)
	for i, n := range []int{0, 1, 1023, 1024, 4097, 1 << 20, 3 << 20, 0} {
		for _, way := range []struct {
			from, to *inbox
			of, at   int // the receiver's number at the sender, and the reverse
		}{{a, b, 1, 0}, {b, a, 0, 1}} {
			block := bytes.Repeat([]byte{byte(i + 1)}, n)
			clear(buf)
			check(t, way.to.x.PostRecv(way.at, buf))
			way.from.want(rdmcfallback.EventReady, way.of)
			check(t, way.from.x.Send(way.of, uint32(n)<<3|5, block))
			way.from.want(rdmcfallback.EventSent, way.of)
			e := way.to.want(rdmcfallback.EventReceived, way.at)
			if e.N != n || e.Imm != uint32(n)<<3|5 || !bytes.Equal(buf[:n], block) {
				t.Errorf("block of %d bytes came as %+v", n, e)
			}
		}
	}
}

// All posted buffers are used in their order.
func TestManyPosted(t *testing.T) {
	a, b := pair(t)
	link(t, a, b)
	if err := a.x.Send(1, 0, nil); !errors.Is(err, ErrNotReady) {
		t.Errorf("Send before readiness: %v", err)
	}
	// So that everything below is reported at once, not only when Events is called.
	b.turn(func() bool {
		b.x.mu.Lock()
		defer b.x.mu.Unlock()
		return b.x.peers[0].in.telling == 0
	})
	var bufs [MaxPosted][1]byte
	for i := range bufs {
		check(t, b.x.PostRecv(0, bufs[i][:]))
	}
	if err := b.x.PostRecv(0, nil); err == nil {
		t.Error("one more buffer could be posted")
	}
	for range bufs {
		a.want(rdmcfallback.EventReady, 1)
	}
	for i := range bufs {
		check(t, a.x.Send(1, uint32(i), []byte{byte(i + 1)}))
	}
	if err := a.x.Send(1, 0, nil); !errors.Is(err, ErrNotReady) {
		t.Errorf("Send without readiness: %v", err)
	}
	for i := range bufs {
		a.want(rdmcfallback.EventSent, 1)
		if e := b.want(rdmcfallback.EventReceived, 0); e.Imm != uint32(i) || bufs[i][0] != byte(i+1) {
			t.Errorf("buffer %d has %d, event %+v", i, bufs[i][0], e)
		}
	}
}

func TestTell(t *testing.T) {
	a, b := pair(t)
	for _, n := range []int{1, 2, partBytes - 1, partBytes, partBytes + 1, rdmcfallback.MaxTell, 1} {
		for range 20 {
			check(t, a.x.Tell(1, bytes.Repeat([]byte{byte(n)}, n)))
		}
		for range 20 {
			if e := b.want(rdmcfallback.EventTold, 0); len(e.Msg) != n || bytes.Count(e.Msg, []byte{byte(n)}) != n {
				t.Fatalf("%d bytes came as %d", n, len(e.Msg))
			}
		}
	}
	for _, n := range []int{0, rdmcfallback.MaxTell + 1} {
		if err := a.x.Tell(1, make([]byte, n)); err == nil {
			t.Errorf("%d bytes could be told", n)
		}
	}
}

func TestHello(t *testing.T) {
	all := options(t, 2)
	all[0].Hello, all[1].Hello = []byte("zero"), []byte("one")
	ts, errs := connectAll(t, all)
	check(t, errors.Join(errs...))
	if got := string(ts[0].Hello(1)) + string(ts[1].Hello(0)) + string(ts[0].Hello(0)) + string(ts[0].Hello(2)); got != "onezero" {
		t.Errorf("hellos %q", got)
	}
}

func TestOptions(t *testing.T) {
	for name, breakIt := range map[string]func(*Options){
		"no device":  func(o *Options) { o.Device = nil },
		"path MTU":   func(o *Options) { o.PathMTU = 1500 },
		"long hello": func(o *Options) { o.Hello = make([]byte, MaxHello+1) },
	} {
		all := options(t, 2)
		breakIt(&all[0])
		if _, err := Connect(t.Context(), all[0]); !errors.Is(err, ErrOptions) {
			t.Errorf("%s: %v", name, err)
		}
		if c, err := all[0].Listener.Accept(); err == nil {
			t.Errorf("%s: the listener is open: %v", name, c)
		}
		check(t, all[1].Listener.Close())
	}
}

func TestClosedDevice(t *testing.T) {
	all := options(t, 2)
	check(t, all[0].Device.Close())
	ts, errs := connectAll(t, all)
	if !errors.Is(errs[0], qp.ErrClosed) {
		t.Errorf("with a closed device: %v", errs[0])
	}
	if errs[1] == nil { // it met a member that went then
		(&inbox{t: t, x: ts[1]}).want(rdmcfallback.EventDown, 0)
	}
}

// Close ends a wait, and says so from then on; the peer sees it.
func TestClose(t *testing.T) {
	a, b := pair(t)
	link(t, a, b)
	check(t, a.x.PostRecv(1, make([]byte, 10)))
	waiting := make(chan error)
	go func() {
		_, err := a.x.Events(context.Background(), a.buf[:])
		waiting <- err
	}()
	check(t, a.x.Close())
	if err := <-waiting; !errors.Is(err, ErrClosed) {
		t.Errorf("Events: %v", err)
	}
	for what, err := range map[string]error{"PostRecv": a.x.PostRecv(1, nil), "Send": a.x.Send(1, 0, nil), "Tell": a.x.Tell(1, []byte{1})} {
		if !errors.Is(err, ErrClosed) {
			t.Errorf("%s: %v", what, err)
		}
	}
	check(t, a.x.Close())
	if e := b.want(rdmcfallback.EventDown, 0); e.Err == nil {
		t.Error("Down without a reason")
	}
}

func TestNoSuchPeer(t *testing.T) {
	a, _ := pair(t)
	for _, p := range []int{-1, 0, 2} {
		for what, err := range map[string]error{"PostRecv": a.x.PostRecv(p, nil), "Send": a.x.Send(p, 0, nil), "Tell": a.x.Tell(p, []byte{1})} {
			if err == nil {
				t.Errorf("%s with member %d", what, p)
			}
		}
	}
	if _, err := a.x.Events(t.Context(), nil); err == nil {
		t.Error("Events without room")
	}
}

// Blocks cost no allocation and no registration, once their memory was used.
func TestSteadyStateAllocsWithoutRace(t *testing.T) {
	testenv.WithoutRace(t, "the race detector allocates")
	a, b := pair(t)
	link(t, a, b)
	out, in := make([]byte, 1<<20), make([]byte, 1<<20)
	ctx := limited(t)
	fetch := func(x *inbox, kind rdmcfallback.EventKind) {
		if _, err := x.x.Events(ctx, x.buf[:]); err != nil || x.buf[0].Kind != kind {
			t.Fatalf("%+v, %v", x.buf[0], err)
		}
	}
	i := 0
	block := func() {
		at := i % 16 << 16
		i++
		check(t, b.x.PostRecv(0, in[at:at+1<<16]))
		fetch(a, rdmcfallback.EventReady)
		check(t, a.x.Send(1, 1, out[at:at+1<<16]))
		fetch(a, rdmcfallback.EventSent)
		fetch(b, rdmcfallback.EventReceived)
	}
	for range 50 {
		block()
	}
	if n := testing.AllocsPerRun(200, block); n >= 1 {
		t.Errorf("%v allocations per block", n)
	}
	if a.x.memory.registered != 1 || b.x.memory.registered != 1 {
		t.Errorf("%d and %d registrations of one buffer each", a.x.memory.registered, b.x.memory.registered)
	}
}

func TestMemory(t *testing.T) {
	dev, err := qp.Open("softroce:" + testenv.Loopback().String())
	check(t, err)
	defer dev.Close()
	pd, err := dev.AllocPD()
	check(t, err)
	m := memory{pd: pd}
	defer m.close()
	use := func(buf []byte, write bool) *region {
		t.Helper()
		s, r, err := m.use(buf, write)
		check(t, err)
		if lo, _ := extent(buf); s.Addr != uint64(lo) || s.Length != uint32(len(buf)) {
			t.Fatalf("entry %+v for %d bytes at %#x", s, len(buf), lo)
		}
		return r
	}
	buf := make([]byte, 1000)
	first := use(buf[100:200], false)
	if first != use(buf[900:], false) || first == use(buf[99:100], false) {
		t.Error("a region doesn't reach from the first block to the end")
	}
	if w := use(buf[500:], true); w == first || w != use(buf[600:700], true) {
		t.Error("receives need a region that they may write to")
	}
	if err := m.forget(buf[950:]); !errors.Is(err, qp.ErrBusy) {
		t.Errorf("forgot memory in use: %v", err)
	}
	other, n := make([]byte, 10), m.registered
	for range 3 {
		use(other, true)
		use(buf[100:], false)
		use(buf[500:], true)
	}
	if m.registered != n+1 {
		t.Errorf("%d registrations of one buffer", m.registered-n)
	}
	for _, r := range m.regions {
		r.busy = 0
	}
	// What is idle goes when there is too much of it, the oldest first, but not
	// if it overlaps with what is in use.
	first.busy = 1
	lo, hi := extent(buf[500:])
	second := m.find(lo, hi, true) // which overlaps
	for range 2 * maxRegions {
		use(make([]byte, 10), true).busy = 0
	}
	if len(m.regions) > maxRegions || !slices.Contains(m.regions, first) || !slices.Contains(m.regions, second) {
		t.Errorf("%d regions", len(m.regions))
	}
	first.busy = 0
	check(t, m.forget(buf))
	if slices.Contains(m.regions, first) || slices.Contains(m.regions, second) {
		t.Error("memory isn't forgotten")
	}
	for range 10 {
		use(make([]byte, regionBytes+1)[1:], true).busy = 0
	}
	sum := 0
	for _, r := range m.regions {
		sum += int(r.hi - r.lo)
	}
	if sum > maxIdle {
		t.Errorf("%d bytes stay registered", sum)
	}
	// Far from the end, registering a part is enough.
	huge := make([]byte, 3*regionBytes)
	if r := use(huge[:100], true); r.hi-r.lo != regionBytes {
		t.Errorf("%d bytes were registered", r.hi-r.lo)
	}
	if r := use(huge[:2*regionBytes], true); r.hi-r.lo != 2*regionBytes {
		t.Errorf("%d bytes were registered for a block of more", r.hi-r.lo)
	}
	for _, r := range m.regions {
		r.busy = 0
	}
}
