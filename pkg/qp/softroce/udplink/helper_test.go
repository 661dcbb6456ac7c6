package udplink

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/mcrdma/mcrdma/internal/testenv"
	"github.com/mcrdma/mcrdma/pkg/qp/softroce/link"
	"github.com/mcrdma/mcrdma/pkg/rocev2"
)

func TestMain(m *testing.M) {
	if addr := os.Getenv(holdEnv); addr != "" {
		hold(addr)
		return
	}
	goleak.VerifyTestMain(m)
}

// needRaw skips the test if the process may not open raw sockets.
func needRaw(t testing.TB) {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_UDP)
	if errors.Is(err, unix.EPERM) {
		testenv.Skip(t, "raw sockets take CAP_NET_RAW")
	}
	unix.Close(fd)
}

// open opens a link on an address of its own and closes it with the test.
func open(t testing.TB, opt Options) *Link {
	t.Helper()
	if opt.RX == RXRaw {
		needRaw(t)
	}
	l, err := Open(testenv.Loopback(), opt)
	if err != nil {
		t.Fatal(err)
	}
	closeWith(t, l)
	return l
}

func closeWith(t testing.TB, l *Link) {
	t.Cleanup(func() {
		if err := l.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
			t.Error(err)
		}
	})
}

// A collector receives from a link in the background.
type collector struct {
	got chan link.Rx // Data is a copy
	end chan error
}

func collect(t testing.TB, l *Link) *collector {
	c := &collector{got: make(chan link.Rx, 1<<14), end: make(chan error, 1)}
	go func() {
		batch := make([]link.Rx, 64)
		for {
			n, err := l.Recv(batch)
			if err != nil {
				c.end <- err
				return
			}
			for _, rx := range batch[:n] {
				rx.Data = append([]byte(nil), rx.Data...)
				c.got <- rx
			}
		}
	}()
	t.Cleanup(func() {
		l.Close()
		if err := <-c.end; !errors.Is(err, net.ErrClosed) {
			t.Errorf("Recv ended with %v, want net.ErrClosed", err)
		}
	})
	return c
}

func (c *collector) next(t testing.TB) link.Rx {
	t.Helper()
	select {
	case rx := <-c.got:
		return rx
	case <-time.After(10 * time.Second):
		t.Fatal("no packet")
		panic("unreachable")
	}
}

// packet makes a transport packet with opcode op and n bytes of payload that
// depend on seed.
func packet(op rocev2.Opcode, n, seed int) []byte {
	h := rocev2.Headers{BTH: rocev2.BTH{Opcode: op, PKey: rocev2.DefaultPKey, DestQP: 0x123, PSN: rocev2.PSN(seed) & rocev2.Mask24}}
	h.Pad = uint8(-n & 3)
	b := h.AppendTo(nil)
	x := uint32(seed)*2654435761 + 1
	for range n {
		x = x*1664525 + 1013904223
		b = append(b, byte(x>>24))
	}
	return append(b, make([]byte, h.Pad)...)
}

// tx makes a link.Tx of data, in pieces.
func tx(dst netip.Addr, tos uint8, flow uint16, data []byte) link.Tx {
	h := rocev2.Opcode(data[0]).HeaderLen()
	return link.Tx{Dst: dst, TOS: tos, Flow: flow, Len: len(data),
		Parts: [][]byte{data[:h], data[h : (h+len(data))/2], data[(h+len(data))/2:]}}
}

func counter(l *Link, name string) uint64 {
	m := map[string]uint64{}
	l.Counters(m)
	return m[name]
}

// frame makes the IP packet, with ICRC, that carries data.
func frame(src, dst netip.Addr, id uint16, port uint16, options, data []byte) []byte {
	ip := rocev2.IPv4{ID: id, TTL: 64, Flags: rocev2.DontFragment, Protocol: rocev2.ProtocolUDP, Src: src.As4(), Dst: dst.As4(), Options: options}
	udp := rocev2.UDP{SrcPort: 0xc123, DstPort: port, Length: uint16(rocev2.UDPLen + len(data) + rocev2.ICRCLen)}
	ip.TotalLen = uint16(ip.Len()) + udp.Length
	b := append(udp.AppendTo(ip.AppendTo(nil)), data...)
	b = append(b, 0, 0, 0, 0)
	rocev2.PutICRC(b)
	return b
}

// An injector sends IP packets as they are.
type injector struct{ fd int }

func newInjector(t testing.TB) injector {
	t.Helper()
	needRaw(t)
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	return injector{fd}
}

func (i injector) send(t testing.TB, b []byte) {
	t.Helper()
	if err := unix.Sendto(i.fd, b, 0, &unix.SockaddrInet4{Addr: [4]byte(b[16:20])}); err != nil {
		t.Fatal(err)
	}
}

func until(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !ok(); {
		if time.Now().After(deadline) {
			t.Fatalf("timed out waiting until %s", what)
		}
		time.Sleep(time.Millisecond)
	}
}
