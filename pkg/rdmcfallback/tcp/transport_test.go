package tcp_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"runtime"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/mcrdma/mcrdma/pkg/rdmcfallback"
	"github.com/mcrdma/mcrdma/pkg/rdmcfallback/tcp"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// An inbox fetches the events of one transport one by one.
type inbox struct {
	t   testing.TB
	x   *tcp.Transport
	buf [1]rdmcfallback.Event
}

func (b *inbox) next() rdmcfallback.Event {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if _, err := b.x.Events(ctx, b.buf[:]); err != nil {
		b.t.Fatal(err)
	}
	return b.buf[0]
}

func (b *inbox) want(kind rdmcfallback.EventKind, peer int) rdmcfallback.Event {
	b.t.Helper()
	e := b.next()
	if e.Kind != kind || e.Peer != peer {
		b.t.Fatalf("event %+v, want kind %d of peer %d", e, kind, peer)
	}
	return e
}

func pair(t testing.TB) (a, b *inbox) {
	ts := connect(t, 2)
	return &inbox{t: t, x: ts[0]}, &inbox{t: t, x: ts[1]}
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestBlocks(t *testing.T) {
	a, b := pair(t)
	if got := string(a.x.Hello(1)) + string(b.x.Hello(0)) + string(a.x.Hello(0)); got != "hello of 1hello of 0" {
		t.Errorf("hellos %q", got)
	}
	buf := make([]byte, 3<<20)
	for i, n := range []int{0, 1, 15, 16, 17, 4096, 1 << 20, 3 << 20, 0} {
		for _, way := range []struct{ from, to *inbox }{{a, b}, {b, a}} {
			from, to := way.from, way.to
			peerOf := func(x *inbox) int {
				if x == a {
					return 1
				}
				return 0
			}
			block := bytes.Repeat([]byte{byte(i + 1)}, n)
			clear(buf)
			check(t, to.x.PostRecv(peerOf(to), buf))
			from.want(rdmcfallback.EventReady, peerOf(from))
			check(t, from.x.Send(peerOf(from), uint32(n)<<3|5, block))
			from.want(rdmcfallback.EventSent, peerOf(from))
			e := to.want(rdmcfallback.EventReceived, peerOf(to))
			if e.N != n || e.Imm != uint32(n)<<3|5 || !bytes.Equal(buf[:n], block) || n < len(buf) && buf[n] != 0 {
				t.Fatalf("sent %d bytes, received %+v", n, e)
			}
		}
	}
}

func TestOrderOfBlocks(t *testing.T) {
	a, b := pair(t)
	const rounds = 500
	bufs := make([][]byte, tcp.MaxPosted)
	for i := range bufs {
		bufs[i] = make([]byte, 100+i) // block i fits into buffer i only, and those after it
		check(t, b.x.PostRecv(0, bufs[i]))
	}
	if err := b.x.PostRecv(0, nil); err == nil {
		t.Error("posted one buffer too many")
	}
	ready, sent, received, sending := 0, 0, 0, 0
	block := make([]byte, 100+len(bufs))
	for received < rounds {
		for ready > 0 && sent < rounds {
			check(t, a.x.Send(1, uint32(sent), block[:100+sent%len(bufs)]))
			sent++
			sending++
			ready--
		}
		for sending > 0 || ready == 0 && received == sent {
			if a.next().Kind == rdmcfallback.EventReady {
				ready++
			} else {
				sending--
			}
		}
		for received < sent {
			e := b.want(rdmcfallback.EventReceived, 0)
			if int(e.Imm) != received || e.N != 100+received%len(bufs) {
				t.Fatalf("block %d came as %+v", received, e)
			}
			check(t, b.x.PostRecv(0, bufs[received%len(bufs)]))
			received++
		}
	}
}

func TestMisuse(t *testing.T) {
	a, _ := pair(t)
	if err := a.x.Send(1, 0, nil); !errors.Is(err, tcp.ErrNotReady) {
		t.Errorf("Send without readiness: %v", err)
	}
	for _, err := range []error{a.x.Send(0, 0, nil), a.x.Send(2, 0, nil), a.x.PostRecv(-1, nil), a.x.Tell(1, nil),
		a.x.Tell(1, make([]byte, rdmcfallback.MaxTell+1)), a.x.Tell(0, []byte{1})} {
		if err == nil {
			t.Error("allowed")
		}
	}
	if _, err := a.x.Events(t.Context(), nil); err == nil {
		t.Error("Events without room")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if n, err := a.x.Events(ctx, a.buf[:]); n != 0 || !errors.Is(err, context.Canceled) {
		t.Errorf("Events with a cancelled context: %d, %v", n, err)
	}
	check(t, a.x.Close())
	check(t, a.x.Close())
	if _, err := a.x.Events(t.Context(), a.buf[:]); !errors.Is(err, tcp.ErrClosed) {
		t.Errorf("Events after Close: %v", err)
	}
	if err := a.x.Tell(1, []byte{1}); !errors.Is(err, tcp.ErrClosed) {
		t.Errorf("Tell after Close: %v", err)
	}
}

func TestTell(t *testing.T) {
	a, b := pair(t)
	const count = 600 // more than the receiver holds and the socket takes at once
	for i := range count {
		check(t, a.x.Tell(1, bytes.Repeat([]byte{byte(i)}, 1+(i*37)%rdmcfallback.MaxTell)))
	}
	for i := range count {
		if e := b.want(rdmcfallback.EventTold, 0); !bytes.Equal(e.Msg, bytes.Repeat([]byte{byte(i)}, 1+(i*37)%rdmcfallback.MaxTell)) {
			t.Fatalf("message %d: %d bytes, the first %d", i, len(e.Msg), e.Msg[0])
		}
	}
}

// Blocks that no buffer is posted for don't hold up control messages.
func TestTellOvertakes(t *testing.T) {
	a, b := pair(t)
	check(t, b.x.PostRecv(0, make([]byte, 64<<20)))
	a.want(rdmcfallback.EventReady, 1)
	check(t, a.x.Send(1, 1, make([]byte, 64<<20)))
	check(t, a.x.Tell(1, []byte("failure")))
	if e := b.next(); e.Kind != rdmcfallback.EventTold || string(e.Msg) != "failure" {
		t.Errorf("first came %+v", e)
	}
	b.want(rdmcfallback.EventReceived, 0)
}

func TestTellOverflow(t *testing.T) {
	a, b := pair(t)
	msg := make([]byte, rdmcfallback.MaxTell)
	for range 20000 {
		check(t, a.x.Tell(1, msg))
	}
	if e := a.want(rdmcfallback.EventDown, 1); !errors.Is(e.Err, tcp.ErrOverflow) {
		t.Errorf("down because of %v", e.Err)
	}
	check(t, a.x.Send(1, 0, nil)) // vanishes
	check(t, a.x.Tell(1, msg))
	check(t, a.x.PostRecv(1, nil))
	for b.next().Kind != rdmcfallback.EventDown {
	}
}

// Messages of Tell sent before Close arrive, then Down, while blocks are in flight.
func TestCloseTells(t *testing.T) {
	for range 50 {
		a, b := pair(t)
		check(t, b.x.PostRecv(0, make([]byte, 1<<20)))
		check(t, a.x.PostRecv(1, make([]byte, 1<<20)))
		a.want(rdmcfallback.EventReady, 1)
		check(t, a.x.Send(1, 0, make([]byte, 1<<20)))
		for range 20 {
			check(t, a.x.Tell(1, make([]byte, 4000)))
		}
		closed := make(chan error)
		go func() { closed <- a.x.Close() }() // waits until b has read
		told := 0
		for {
			e := b.next()
			if e.Kind == rdmcfallback.EventTold {
				told++
			}
			if e.Kind == rdmcfallback.EventDown {
				break
			}
		}
		if told != 20 {
			t.Fatalf("%d messages of 20 arrived", told)
		}
		check(t, <-closed)
		check(t, b.x.Close())
	}
}

// Close lets go of all buffers, also those of a block that is half sent.
func TestCloseAmidBlock(t *testing.T) {
	a, b := pair(t)
	in := make([]byte, 64<<20)
	check(t, b.x.PostRecv(0, in))
	a.want(rdmcfallback.EventReady, 1)
	out := make([]byte, 64<<20)
	check(t, a.x.Send(1, 0, out))
	check(t, a.x.Close())
	clear(out) // the race detector sees writers and readers
	for b.next().Kind != rdmcfallback.EventDown {
	}
	clear(in)
}

func TestManyMembers(t *testing.T) {
	const n = 40
	ts := connect(t, n)
	for i, x := range ts {
		for j := range ts {
			if i != j {
				check(t, x.Tell(j, fmt.Append(nil, i, " to ", j)))
			}
		}
	}
	for i, x := range ts {
		b := &inbox{t: t, x: x}
		for range n - 1 {
			e := b.next()
			if e.Kind != rdmcfallback.EventTold || string(e.Msg) != fmt.Sprint(e.Peer, " to ", i) {
				t.Fatalf("%+v %q", e, e.Msg)
			}
		}
	}
	check(t, ts[3].Close())
	for i, x := range ts {
		if i != 3 {
			(&inbox{t: t, x: x}).want(rdmcfallback.EventDown, 3)
		}
	}
}

func TestAllocs(t *testing.T) {
	a, b := pair(t)
	block, buf := make([]byte, 64<<10), make([]byte, 64<<10)
	events := make([]rdmcfallback.Event, 4)
	ctx := t.Context()
	until := func(x *tcp.Transport, kind rdmcfallback.EventKind) {
		for {
			n, err := x.Events(ctx, events)
			if err != nil {
				t.Fatal(err)
			}
			for _, e := range events[:n] {
				if e.Kind == kind {
					return
				}
			}
		}
	}
	msg := []byte("done")
	one := func() {
		check(t, b.x.PostRecv(0, buf))
		until(a.x, rdmcfallback.EventReady)
		check(t, a.x.Send(1, 1, block))
		until(b.x, rdmcfallback.EventReceived)
		check(t, b.x.Tell(0, msg))
		until(a.x, rdmcfallback.EventTold)
	}
	for range 100 {
		one()
	}
	var before, after runtime.MemStats
	const rounds = 2000
	runtime.ReadMemStats(&before)
	for range rounds {
		one()
	}
	runtime.ReadMemStats(&after)
	if n := after.Mallocs - before.Mallocs; n > rounds/20 {
		t.Errorf("%d allocations for %d blocks and messages", n, rounds)
	}
}

func TestListenerIsClosed(t *testing.T) {
	ls, addrs := listen(t, 2)
	_, err := tcp.Connect(t.Context(), tcp.Options{Members: addrs, Self: 9, Listener: ls[0]})
	if !errors.Is(err, tcp.ErrOptions) {
		t.Errorf("error %v", err)
	}
	if _, err := ls[0].Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Accept: %v", err)
	}
	check(t, ls[1].Close())
}

// elsewhere is a connection whose peer seems to be on another host.
type elsewhere struct{ *net.TCPConn }

func (elsewhere) RemoteAddr() net.Addr { return &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 7000} }

// TestDefaults: a member has more blocks in flight if all others are on its machine.
func TestDefaults(t *testing.T) {
	ls, addrs := listen(t, 3)
	ts, errs := connectAll(t, 3, func(i int) tcp.Options {
		o := tcp.Options{Members: addrs, Self: i, Listener: ls[i], DeadAfter: time.Hour}
		if i == 2 {
			o.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
				c, err := new(net.Dialer).DialContext(ctx, network, address)
				if err != nil || address != addrs[1] {
					return c, err
				}
				return elsewhere{c.(*net.TCPConn)}, nil
			}
		}
		return o
	})
	check(t, errors.Join(errs...))
	for i, want := range []int{2, 2, 0} {
		if block, ahead := ts[i].Defaults(); block != tcp.BlockSize || ahead != want {
			t.Errorf("member %d: blocks of %d, %d ahead; want %d and %d", i, block, ahead, tcp.BlockSize, want)
		}
	}
}
