package udplink

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/mcrdma/mcrdma/internal/testenv"
	"github.com/mcrdma/mcrdma/pkg/qp"
	"github.com/mcrdma/mcrdma/pkg/qp/softroce/link"
	"github.com/mcrdma/mcrdma/pkg/rocev2"
)

// allOptions are all ways of sending and receiving.
func allOptions() map[string]Options {
	m := map[string]Options{}
	for _, rx := range []RXMode{RXRaw, RXUDP} {
		for _, gso := range []bool{true, false} {
			for _, gro := range []bool{true, false} {
				for _, batch := range []int{1, 3, 32} {
					m[fmt.Sprintf("rx=%v gso=%v gro=%v batch=%d", rx, gso, gro, batch)] =
						Options{RX: rx, NoGSO: !gso, NoGRO: !gro, Batch: batch, Poll: -1}
				}
			}
		}
	}
	return m
}

// TestTransfer sends batches of many shapes and expects every packet, in order
// and unchanged, whatever the way.
func TestTransfer(t *testing.T) {
	for name, opt := range allOptions() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a, b := open(t, opt), open(t, opt)
			c := collect(t, b)
			for _, mtu := range []int{256, 512, 1024, 2048, 4096} {
				testBatches(t, a, b, c, mtu)
			}
			if gso := counter(a, "tx_gso"); (gso > 0) == opt.NoGSO {
				t.Errorf("%d GSO messages", gso)
			}
			for _, l := range []*Link{a, b} {
				m := map[string]uint64{}
				l.Counters(m)
				for i := range rxDropNames {
					if n := m[rxDropNames[i]]; n != 0 {
						t.Errorf("%s is %d", rxDropNames[i], n)
					}
				}
			}
		})
	}
}

func testBatches(t *testing.T, a, b *Link, c *collector, mtu int) {
	t.Helper()
	full := func(op rocev2.Opcode, n int) (out [][]byte) {
		for i := range n {
			out = append(out, packet(op, mtu, i))
		}
		return out
	}
	// Each batch is a list of packets; in sets that differ in ToS or flow.
	batches := [][][]byte{
		{packet(rocev2.Acknowledge, 0, 1)},
		{packet(rocev2.SendOnly, 0, 1)},
		{packet(rocev2.SendOnly, 1, 2), packet(rocev2.SendOnly, 2, 3), packet(rocev2.SendOnly, 2, 4)},
		append(append(full(rocev2.WriteFirst, 1), full(rocev2.WriteMiddle, 40)...), packet(rocev2.WriteLast, 77, 9)),
		append(full(rocev2.SendMiddle, 3), packet(rocev2.SendLast, mtu/2, 9), packet(rocev2.SendLast, mtu/2, 10)),
		full(rocev2.WriteOnlyImm, 5),
		full(rocev2.SendMiddle, 64),
		{packet(rocev2.SendOnly, 64, 5), packet(rocev2.SendOnly, 64, 6), packet(rocev2.WriteOnly, mtu, 7), packet(rocev2.CNP, 0, 0)},
	}
	for i, data := range batches {
		var txs []link.Tx
		tos := uint8(i*7 + 2)
		for k, d := range data {
			x := tx(b.Addr(), tos, uint16(i), d)
			if i == 6 {
				x.TOS += uint8(k / 10) // not one GSO message
			}
			txs = append(txs, x)
		}
		if err := a.Send(txs); err != nil {
			t.Fatal(err)
		}
		for k, d := range data {
			rx := c.next(t)
			if !bytes.Equal(rx.Data, d) || rx.Src != a.Addr() || rx.TOS != txs[k].TOS {
				t.Fatalf("mtu %d batch %d packet %d: %d bytes from %v ToS %#x, want %d from %v ToS %#x",
					mtu, i, k, len(rx.Data), rx.Src, rx.TOS, len(d), a.Addr(), txs[k].TOS)
			}
		}
	}
}

// TestMixedDestinations sends one batch to two links by two flows each.
func TestMixedDestinations(t *testing.T) {
	a, b, c := open(t, Options{}), open(t, Options{}), open(t, Options{})
	cb, cc := collect(t, b), collect(t, c)
	var txs []link.Tx
	for i := range 40 {
		dst := b.Addr()
		if i%3 == 0 {
			dst = c.Addr()
		}
		txs = append(txs, tx(dst, 0, uint16(i/10), packet(rocev2.SendMiddle, 1024, i)))
	}
	if err := a.Send(txs); err != nil {
		t.Fatal(err)
	}
	for i := range 40 {
		from := cb
		if i%3 == 0 {
			from = cc
		}
		if rx := from.next(t); !bytes.Equal(rx.Data, packet(rocev2.SendMiddle, 1024, i)) {
			t.Fatalf("packet %d differs", i)
		}
	}
}

// TestSourcePorts: one flow keeps its port, flows spread, all in the range that
// RoCEv2 uses.
func TestSourcePorts(t *testing.T) {
	a := open(t, Options{})
	fd := plainSocket(t, testenv.Loopback(), rocev2.UDPPort)
	sa, _ := unix.Getsockname(fd)
	dst := netip.AddrFrom4(sa.(*unix.SockaddrInet4).Addr)
	ports := map[int]map[uint16]bool{}
	buf := make([]byte, 2048)
	for i := range 64 {
		flow := uint16(i % 32)
		if err := a.Send([]link.Tx{tx(dst, 0, flow, packet(rocev2.SendOnly, 4, i))}); err != nil {
			t.Fatal(err)
		}
		_, from, err := unix.Recvfrom(fd, buf, 0)
		if err != nil {
			t.Fatal(err)
		}
		p := from.(*unix.SockaddrInet4).Port
		if p < 0xc000 {
			t.Fatalf("source port %d", p)
		}
		if ports[p] == nil {
			ports[p] = map[uint16]bool{}
		}
		ports[p][flow] = true
	}
	if len(ports) != txSockets {
		t.Errorf("32 flows use %d source ports, want %d", len(ports), txSockets)
	}
	for p, flows := range ports {
		if len(flows) != 2 {
			t.Errorf("port %d is used by flows %v", p, flows)
		}
	}
}

// plainSocket is a UDP socket that is no Link's.
func plainSocket(t testing.TB, addr netip.Addr, port int) int {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	if err := unix.Bind(fd, &unix.SockaddrInet4{Port: port, Addr: addr.As4()}); err != nil {
		t.Fatal(err)
	}
	return fd
}

// TestGSORefused: without UDP checksums the kernel refuses GSO, as it does on
// devices that cannot compute them. The packets go all the same.
func TestGSORefused(t *testing.T) {
	a, b := open(t, Options{}), open(t, Options{})
	c := collect(t, b)
	send := func() {
		var txs []link.Tx
		for i := range 20 {
			txs = append(txs, tx(b.Addr(), 0, 0, packet(rocev2.SendMiddle, 1024, i)))
		}
		if err := a.Send(txs); err != nil {
			t.Fatal(err)
		}
		for i := range 20 {
			if rx := c.next(t); !bytes.Equal(rx.Data, packet(rocev2.SendMiddle, 1024, i)) {
				t.Fatalf("packet %d differs", i)
			}
		}
	}
	send()
	if err := a.tx[0].sock.setInt(unix.SOL_SOCKET, unix.SO_NO_CHECK, 1); err != nil {
		t.Fatal(err)
	}
	send()
	send()
	if n := counter(a, "tx_gso_refused"); n != 1 {
		t.Errorf("tx_gso_refused is %d, want 1: one refusal is enough", n)
	}
	if n := counter(a, "tx_err_other"); n != 0 {
		t.Errorf("tx_err_other is %d", n)
	}
}

func TestOpenErrors(t *testing.T) {
	for _, a := range []string{"::1", "0.0.0.0", "224.0.0.1", "192.0.2.77"} {
		if _, err := Open(netip.MustParseAddr(a), Options{}); !errors.Is(err, qp.ErrDevice) {
			t.Errorf("Open(%s): %v, want ErrDevice", a, err)
		}
	}
}

func TestMTU(t *testing.T) {
	if l := open(t, Options{}); l.MTU() != 65536 {
		t.Errorf("MTU of loopback is %d", l.MTU())
	}
}

// TestPollFor: a receiver that is asked to poll does, unless other processes need the processor, and blocks
// once it is not asked anymore.
func TestPollFor(t *testing.T) {
	l := open(t, Options{Poll: -1})
	c := collect(t, l)
	send := func() {
		if err := l.Send([]link.Tx{tx(l.Addr(), 0, 0, packet(rocev2.SendOnly, 64, 0))}); err != nil {
			t.Fatal(err)
		}
		c.next(t)
	}
	blocks := func() uint64 { return counter(l, "rx_blocks") }
	until(t, "it blocks", func() bool { return blocks() == 1 })
	send()
	until(t, "it blocks again", func() bool { return blocks() == 2 })
	if n := counter(l, "rx_polls"); n != 0 {
		t.Fatalf("it polled %d times, not asked", n)
	}
	l.PollFor(time.Hour)
	until(t, "it polls", func() bool { send(); return counter(l, "rx_polls") > 0 })
	was := blocks()
	l.PollFor(0)
	until(t, "it blocks, not asked anymore", func() bool { send(); return blocks() > was })
}

func TestDefaultMode(t *testing.T) {
	needRaw(t)
	if l := open(t, Options{}); l.RX() != RXRaw {
		t.Errorf("mode %v though raw sockets are allowed", l.RX())
	}
}

func TestNoAllocs(t *testing.T) {
	for name, opt := range allOptions() {
		if opt.Batch != 32 {
			continue
		}
		t.Run(name, func(t *testing.T) {
			a, b := open(t, opt), open(t, opt)
			var txs []link.Tx
			for i := range 20 {
				txs = append(txs, tx(b.Addr(), 2, 5, packet(rocev2.SendMiddle, 1024, i)))
			}
			batch := make([]link.Rx, 64)
			if n := testing.AllocsPerRun(100, func() {
				if err := a.Send(txs); err != nil {
					t.Fatal(err)
				}
				for got := 0; got < len(txs); {
					n, err := b.Recv(batch)
					if err != nil {
						t.Fatal(err)
					}
					got += n
				}
			}); n != 0 {
				t.Errorf("%v allocations for %d packets", n, len(txs))
			}
		})
	}
}
