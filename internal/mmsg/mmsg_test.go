package mmsg

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func listen(t testing.TB, addr string) (*net.UDPConn, *Socket, netip.AddrPort) {
	t.Helper()
	c, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.MustParseAddrPort(addr)))
	if err != nil && netip.MustParseAddrPort(addr).Addr().Is6() {
		t.Skipf("optional: no IPv6 here: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	s, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	return c, s, c.LocalAddr().(*net.UDPAddr).AddrPort()
}

func room(n, size int) []Message {
	ms := make([]Message, n)
	for i := range ms {
		ms[i].Buf = make([]byte, size)
	}
	return ms
}

// recvAll receives until it has n datagrams and returns copies.
func recvAll(t *testing.T, s *Socket, n int) (got []Message) {
	t.Helper()
	ms := room(MaxBatch, 2000)
	for len(got) < n {
		k, err := s.Recv(ms)
		if err != nil {
			t.Fatalf("after %d of %d datagrams: %v", len(got), n, err)
		}
		for _, m := range ms[:k] {
			m.Buf = bytes.Clone(m.Buf[:m.N])
			got = append(got, m)
		}
	}
	return got
}

func TestSendRecv(t *testing.T) {
	for _, pair := range [][2]string{
		{"127.0.0.1:0", "127.0.0.1:0"},
		{"[::1]:0", "[::1]:0"},
		{"[::]:0", "127.0.0.1:0"}, // IPv4 through a dual-stack socket
	} {
		t.Run(fmt.Sprint(pair), func(t *testing.T) {
			_, a, aAddr := listen(t, pair[0])
			_, b, bAddr := listen(t, pair[1])
			const n = MaxBatch + 10
			ms := make([]Message, n)
			for i := range ms {
				ms[i] = Message{Buf: bytes.Repeat([]byte{byte(i)}, i), Addr: bAddr}
			}
			if k, err := a.Send(ms); k != n || err != nil {
				t.Fatalf("Send = %d, %v", k, err)
			}
			for i, m := range recvAll(t, b, n) {
				if !bytes.Equal(m.Buf, ms[i].Buf) || m.Truncated {
					t.Errorf("datagram %d: %d bytes, truncated %v", i, m.N, m.Truncated)
				}
				if m.Addr.Port() != aAddr.Port() || m.Addr.Addr() != bAddr.Addr() {
					t.Errorf("datagram %d came from %v, want %v's port at %v", i, m.Addr, aAddr, bAddr.Addr())
				}
			}
		})
	}
}

func TestConnected(t *testing.T) {
	_, b, bAddr := listen(t, "127.0.0.1:0")
	c, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(bAddr))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	a, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	if n, err := a.Send([]Message{{Buf: []byte("one")}, {Buf: []byte("two")}}); n != 2 || err != nil {
		t.Fatal(n, err)
	}
	if got := recvAll(t, b, 2); string(got[0].Buf) != "one" || string(got[1].Buf) != "two" {
		t.Errorf("got %q, %q", got[0].Buf, got[1].Buf)
	}
}

// An error names its message by the count: those before it went, and the
// caller goes on behind it.
func TestSendErrorPosition(t *testing.T) {
	_, a, _ := listen(t, "127.0.0.1:0")
	_, b, to := listen(t, "127.0.0.1:0")
	ms := []Message{
		{Buf: []byte("0"), Addr: to},
		{Buf: make([]byte, 70000), Addr: to}, // the kernel refuses it
		{Buf: []byte("2"), Addr: to},
		{Buf: []byte("3"), Addr: netip.MustParseAddrPort("[2001:db8::1]:9")}, // not from an IPv4 socket
		{Buf: []byte("4"), Addr: to},
	}
	n, err := a.Send(ms)
	if n != 1 || err == nil {
		t.Fatalf("Send = %d, %v; want 1 and the oversize error", n, err)
	}
	n, err = a.Send(ms[2:])
	if n != 1 || !errors.Is(err, ErrAddr) {
		t.Fatalf("Send = %d, %v; want 1 and ErrAddr", n, err)
	}
	if n, err = a.Send(ms[4:]); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	got := recvAll(t, b, 3)
	if s := string(got[0].Buf) + string(got[1].Buf) + string(got[2].Buf); s != "024" {
		t.Errorf("received %q, want 024", s)
	}
	zone := netip.AddrPortFrom(netip.MustParseAddr("fe80::1%lo"), 9)
	if n, err := a.Send([]Message{{Addr: zone}}); n != 0 || !errors.Is(err, ErrAddr) {
		t.Errorf("zone: %d, %v", n, err)
	}
}

func TestTruncated(t *testing.T) {
	_, a, _ := listen(t, "127.0.0.1:0")
	_, b, to := listen(t, "127.0.0.1:0")
	if _, err := a.Send([]Message{{Buf: make([]byte, 100), Addr: to}, {Buf: make([]byte, 99), Addr: to}}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []bool{true, false} {
		ms := room(1, 99)
		if n, err := b.Recv(ms); n != 1 || err != nil || ms[0].N != 99 || ms[0].Truncated != want {
			t.Errorf("Recv = %d, %v; N %d, truncated %v, want %v", n, err, ms[0].N, ms[0].Truncated, want)
		}
	}
}

func TestDeadlineAndClose(t *testing.T) {
	c, s, _ := listen(t, "127.0.0.1:0")
	if n, err := s.Recv(nil); n != 0 || err != nil {
		t.Errorf("Recv(nil) = %d, %v", n, err)
	}
	for _, d := range []time.Duration{-time.Hour, 10 * time.Millisecond} {
		if err := c.SetReadDeadline(time.Now().Add(d)); err != nil {
			t.Fatal(err)
		}
		if n, err := s.Recv(room(1, 10)); n != 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("Recv with a deadline in %v: %d, %v", d, n, err)
		}
	}
	if err := c.SetReadDeadline(time.Time{}); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		if _, err := s.Recv(room(1, 10)); !errors.Is(err, net.ErrClosed) {
			t.Errorf("Recv of a closed socket: %v", err)
		}
	})
	c.Close()
	wg.Wait()
	if _, err := s.Send([]Message{{Buf: []byte{1}}}); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Send on a closed socket: %v", err)
	}
}

// Many senders at once; each one's datagrams arrive in its order.
func TestConcurrentSend(t *testing.T) {
	_, a, _ := listen(t, "127.0.0.1:0")
	bc, b, to := listen(t, "127.0.0.1:0")
	if err := bc.SetReadBuffer(1 << 20); err != nil {
		t.Fatal(err)
	}
	const senders, each = 4, 50
	var wg sync.WaitGroup
	for g := range senders {
		wg.Go(func() {
			for i := range each {
				if _, err := a.Send([]Message{{Buf: []byte{byte(g), byte(i)}, Addr: to}}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	next := [senders]byte{}
	for _, m := range recvAll(t, b, senders*each) {
		if g := m.Buf[0]; m.Buf[1] != next[g] {
			t.Fatalf("sender %d: got %d, want %d", g, m.Buf[1], next[g])
		}
		next[m.Buf[0]]++
	}
	wg.Wait()
}

func TestNoAllocs(t *testing.T) {
	_, a, _ := listen(t, "127.0.0.1:0")
	_, b, to := listen(t, "127.0.0.1:0")
	out, in := room(8, 100), room(8, 100)
	for i := range out {
		out[i].Addr = to
	}
	if n := testing.AllocsPerRun(100, func() {
		if _, err := a.Send(out); err != nil {
			t.Fatal(err)
		}
		for got := 0; got < len(out); {
			n, err := b.Recv(in)
			if err != nil {
				t.Fatal(err)
			}
			got += n
		}
	}); n != 0 {
		t.Errorf("%v allocations for 8 datagrams sent and received, want 0", n)
	}
}

func BenchmarkSendRecv(b *testing.B) {
	for _, size := range []int{1100, 4200} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			_, tx, _ := listen(b, "127.0.0.1:0")
			_, rx, to := listen(b, "127.0.0.1:0")
			out, in := room(16, size), room(16, size)
			for i := range out {
				out[i].Addr = to
			}
			b.ReportAllocs()
			b.SetBytes(int64(size))
			for range b.N/16 + 1 {
				if _, err := tx.Send(out); err != nil {
					b.Fatal(err)
				}
				for got := 0; got < len(out); {
					n, err := rx.Recv(in)
					if err != nil {
						b.Fatal(err)
					}
					got += n
				}
			}
		})
	}
}
