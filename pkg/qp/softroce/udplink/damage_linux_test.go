package udplink

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"testing"

	"github.com/mcrdma/mcrdma/pkg/rocev2"
)

const offUDP, offBTH = rocev2.IPv4Len, rocev2.IPv4Len + rocev2.UDPLen // in a frame without IP options

// damaged opens a link, injects the frames that bad makes of a good one to it,
// and good ones among them. Those alone may arrive, and of the bad ones those
// that reach the link must be counted for the reason that they came with; it is
// "" for what the kernel drops already.
func damaged(t *testing.T, mode RXMode, bad func(good []byte, inject func(b []byte, reason string))) {
	t.Helper()
	in := newInjector(t)
	l := open(t, Options{RX: mode})
	to := l.Addr()
	marker := packet(rocev2.SendOnly, 8, 99)
	want := map[string]uint64{}
	n := 0
	check := func() {
		t.Helper()
		in.send(t, frame(there, to, 1, rocev2.UDPPort, nil, marker))
		if rx := receive(t, l, 1)[0]; !bytes.Equal(rx.Data, marker) || rx.Src != there {
			t.Fatalf("up to frame %d: got %x from %v, which is not the good packet", n, rx.Data, rx.Src)
		}
	}
	bad(frame(there, to, 5, rocev2.UDPPort, nil, packet(rocev2.WriteOnly, 120, 1)), func(b []byte, reason string) {
		t.Helper()
		in.send(t, b)
		if reason != "" {
			want[reason]++
		}
		if n++; n%16 == 0 {
			check()
		}
	})
	check()
	for _, name := range rxDropNames {
		if got := counter(l, name); got != want[name] {
			t.Errorf("of %d bad frames %s counts %d, want %d", n, name, got, want[name])
		}
	}
}

func bothModes(t *testing.T, f func(t *testing.T, mode RXMode)) {
	for _, mode := range []RXMode{RXRaw, RXUDP} {
		t.Run(mode.String(), func(t *testing.T) { f(t, mode) })
	}
}

// TestDamagedBits flips bits of what the ICRC covers, on the way through the
// kernel. TestEveryBit flips those that the kernel looks at as well.
func TestDamagedBits(t *testing.T) {
	bothModes(t, func(t *testing.T, mode RXMode) {
		damaged(t, mode, func(good []byte, inject func([]byte, string)) {
			for i := range 8 * len(good) {
				at := i / 8
				headers := at < offBTH+rocev2.BTHLen || at >= len(good)-rocev2.ICRCLen
				if at < offUDP || at >= offUDP+2 && at < offBTH || at == offBTH+4 || !headers && i%11 != 0 {
					continue
				}
				b := bytes.Clone(good)
				b[at] ^= 0x80 >> (i % 8)
				inject(b, "rx_drop_icrc")
			}
		})
	})
}

// TestDamagedUDPHeader: what the raw socket shows and the UDP socket need not.
func TestDamagedUDPHeader(t *testing.T) {
	bothModes(t, func(t *testing.T, mode RXMode) {
		damaged(t, mode, func(good []byte, inject func([]byte, string)) {
			whole := len(good) - rocev2.IPv4Len
			for n := range whole + 40 {
				reason := "rx_drop_format"
				if mode == RXUDP { // the kernel cuts off what is beyond the UDP length
					switch {
					case n < rocev2.UDPLen || n > whole:
						reason = ""
					case n < rocev2.UDPLen+minUDP:
						reason = "rx_drop_truncated"
					default:
						reason = "rx_drop_icrc"
					}
				}
				if n == whole {
					continue
				}
				b := bytes.Clone(good)
				binary.BigEndian.PutUint16(b[offUDP+4:], uint16(n))
				inject(b, reason)
			}
			other := bytes.Clone(good)
			binary.BigEndian.PutUint16(other[offUDP+2:], rocev2.UDPPort+1)
			inject(other, "")
		})
	})
}

// TestDamagedLength cuts packets off, with IP and UDP lengths that fit, and
// makes them longer than any.
func TestDamagedLength(t *testing.T) {
	bothModes(t, func(t *testing.T, mode RXMode) {
		damaged(t, mode, func(good []byte, inject func([]byte, string)) {
			for n := offBTH; n < len(good); n++ {
				b := bytes.Clone(good[:n])
				binary.BigEndian.PutUint16(b[offUDP+4:], uint16(n-offUDP))
				reason := "rx_drop_icrc"
				if n < offBTH+minUDP {
					reason = "rx_drop_truncated"
				}
				inject(b, reason)
			}
			for _, n := range []int{len(good) + 1, 4096, 4200, 9000, 65000, 65535} {
				b := append(bytes.Clone(good), make([]byte, n-len(good))...)
				binary.BigEndian.PutUint16(b[offUDP+4:], uint16(n-offUDP))
				inject(b, "rx_drop_icrc")
			}
		})
	})
}

// TestJumbo: a packet that is right, but longer than every path MTU. The raw
// socket's receiver takes it for a GSO message and finds no segment in it.
func TestJumbo(t *testing.T) {
	damaged(t, RXRaw, func(good []byte, inject func([]byte, string)) {
		to := netip.AddrFrom4([4]byte(good[16:20]))
		for _, n := range []int{4097, 8192, 60000} {
			inject(frame(there, to, 5, rocev2.UDPPort, nil, packet(rocev2.WriteOnlyImm, n, 1)), "rx_drop_icrc")
		}
	})
}

// TestDamagedBurst: bad packets between good ones in one go, through the whole
// of both receivers; every good one arrives.
func TestDamagedBurst(t *testing.T) {
	bothModes(t, func(t *testing.T, mode RXMode) {
		in := newInjector(t)
		l := open(t, Options{RX: mode})
		for i := range 90 {
			b := frame(there, l.Addr(), uint16(1+i%63), rocev2.UDPPort, nil, packet(rocev2.SendOnly, i, i))
			if i%3 == 1 {
				b[len(b)-1] ^= 1
			}
			in.send(t, b)
		}
		got := receive(t, l, 60)
		for i := range 90 {
			if i%3 == 1 {
				continue
			}
			if want := packet(rocev2.SendOnly, i, i); !bytes.Equal(got[0].Data, want) {
				t.Fatalf("packet %d is missing", i)
			}
			got = got[1:]
		}
		if n := counter(l, "rx_drop_icrc"); n != 30 {
			t.Errorf("rx_drop_icrc is %d, want 30", n)
		}
	})
}
