package udplink

import (
	"bytes"
	"testing"

	"github.com/mcrdma/mcrdma/internal/testenv"
	"github.com/mcrdma/mcrdma/pkg/qp/softroce/link"
	"github.com/mcrdma/mcrdma/pkg/rocev2"
)

// TestBadPackets injects IP packets. Each bad one is counted under its reason,
// nothing of it arrives, and the good one behind it does.
func TestBadPackets(t *testing.T) {
	good := packet(rocev2.SendOnly, 100, 1)
	damage := func(b []byte, at int) []byte { b[at] ^= 0x10; return b }
	for _, c := range []struct {
		name     string
		make     func(l, peer *Link) []byte
		raw, udp string // counter in each mode; "" means that the packet is good
	}{
		{"right, ID 0", func(l, p *Link) []byte { return frame(p.addr, l.addr, 0, 4791, nil, good) }, "", ""},
		{"right, ID 63", func(l, p *Link) []byte { return frame(p.addr, l.addr, 63, 4791, nil, good) }, "", ""},
		{"right, ID 64", func(l, p *Link) []byte { return frame(p.addr, l.addr, 64, 4791, nil, good) }, "", "rx_drop_icrc"},
		{"right, ID 54321", func(l, p *Link) []byte { return frame(p.addr, l.addr, 54321, 4791, nil, good) }, "", "rx_drop_icrc"},
		{"right, IP options", func(l, p *Link) []byte {
			return frame(p.addr, l.addr, 9, 4791, []byte{1, 1, 1, 1}, good)
		}, "", "rx_drop_icrc"},
		{"IP options, wrong ICRC", func(l, p *Link) []byte {
			b := frame(p.addr, l.addr, 9, 4791, []byte{1, 1, 1, 1}, good)
			return damage(b, len(b)-1)
		}, "rx_drop_icrc", "rx_drop_icrc"},
		{"payload damaged", func(l, p *Link) []byte {
			return damage(frame(p.addr, l.addr, 0, 4791, nil, good), 60)
		}, "rx_drop_icrc", "rx_drop_icrc"},
		{"ICRC damaged", func(l, p *Link) []byte {
			b := frame(p.addr, l.addr, 0, 4791, nil, good)
			return damage(b, len(b)-1)
		}, "rx_drop_icrc", "rx_drop_icrc"},
		{"masked byte changed", func(l, p *Link) []byte {
			return damage(frame(p.addr, l.addr, 0, 4791, nil, good), 20+8+4)
		}, "", ""},
		{"no room for BTH and ICRC", func(l, p *Link) []byte {
			return frame(p.addr, l.addr, 0, 4791, nil, good[:rocev2.BTHLen-1])
		}, "rx_drop_truncated", "rx_drop_truncated"},
		{"no payload at all", func(l, p *Link) []byte {
			return frame(p.addr, l.addr, 0, 4791, nil, nil)
		}, "rx_drop_truncated", "rx_drop_truncated"},
		{"BTH only, unknown opcode", func(l, p *Link) []byte {
			return frame(p.addr, l.addr, 0, 4791, nil, bytes.Repeat([]byte{0xff}, rocev2.BTHLen))
		}, "", ""},
		{"unknown opcode, damaged and long", func(l, p *Link) []byte {
			return damage(frame(p.addr, l.addr, 0, 4791, nil, bytes.Repeat([]byte{0xff}, 9000)), 100)
		}, "rx_drop_icrc", "rx_drop_icrc"},
		{"longer than any path MTU", func(l, p *Link) []byte {
			return damage(frame(p.addr, l.addr, 0, 4791, nil, packet(rocev2.SendOnly, 9000, 1)), 5000)
		}, "rx_drop_icrc", "rx_drop_icrc"},
	} {
		for _, mode := range []RXMode{RXRaw, RXUDP} {
			t.Run(mode.String()+" "+c.name, func(t *testing.T) {
				t.Parallel()
				in := newInjector(t)
				l, peer := open(t, Options{RX: mode}), open(t, Options{RX: mode})
				want := c.raw
				if mode == RXUDP {
					want = c.udp
				}
				col := collect(t, l)
				bad := c.make(l, peer)
				in.send(t, bad)
				if want == "" {
					if rx := col.next(t); !bytes.Equal(rx.Data, bad[int(bad[0]&15)*4+8:len(bad)-4]) {
						t.Errorf("the packet arrived changed")
					}
				} else {
					until(t, want+" is 1", func() bool { return counter(l, want) == 1 })
				}
				marker := packet(rocev2.SendOnly, 8, 99)
				in.send(t, frame(peer.addr, l.addr, 1, 4791, nil, marker))
				if rx := col.next(t); !bytes.Equal(rx.Data, marker) {
					t.Errorf("got %d bytes that are not the packet behind the bad one", len(rx.Data))
				}
				m := map[string]uint64{}
				l.Counters(m)
				for _, n := range rxDropNames {
					if (m[n] != 0) != (n == want) {
						t.Errorf("%s is %d", n, m[n])
					}
				}
			})
		}
	}
}

// TestOtherPorts: packets to other ports of the address are not the link's.
func TestOtherPorts(t *testing.T) {
	in := newInjector(t)
	l := open(t, Options{RX: RXRaw})
	c := collect(t, l)
	in.send(t, frame(l.addr, l.addr, 0, 4792, nil, packet(rocev2.SendOnly, 8, 1)))
	in.send(t, frame(l.addr, l.addr, 0, 4791, nil, packet(rocev2.SendOnly, 8, 2)))
	if rx := c.next(t); !bytes.Equal(rx.Data, packet(rocev2.SendOnly, 8, 2)) {
		t.Error("not the packet to port 4791")
	}
}

// TestOneBadSegment: of a GSO message, only the damaged segment is lost.
func TestOneBadSegment(t *testing.T) {
	needRaw(t)
	l := open(t, Options{RX: RXRaw})
	peer := testenv.Loopback()
	const segments = 5
	var payload []byte
	for k := range segments {
		b := frame(peer, l.addr, uint16(7+k), 4791, nil, packet(rocev2.SendMiddle, 512, k))
		if k == 2 {
			b[100] ^= 1
		}
		payload = append(payload, b[28:]...)
	}
	got := cut(l, superPacket(peer, l, 7, payload))
	want := []int{0, 1, 3, 4}
	if len(got) != len(want) {
		t.Fatalf("%d packets, want %d", len(got), len(want))
	}
	for i, k := range want {
		if !bytes.Equal(got[i], packet(rocev2.SendMiddle, 512, k)) {
			t.Errorf("packet %d is not segment %d", i, k)
		}
	}
	if n := counter(l, "rx_drop_icrc"); n != 1 {
		t.Errorf("rx_drop_icrc is %d, want 1", n)
	}
}

// TestFixedID: a sender that gives all segments one identification.
func TestFixedID(t *testing.T) {
	needRaw(t)
	l := open(t, Options{RX: RXRaw})
	peer := testenv.Loopback()
	var payload []byte
	for k := range 4 {
		payload = append(payload, frame(peer, l.addr, 9, 4791, nil, packet(rocev2.SendMiddle, 256, k))[28:]...)
	}
	if got := cut(l, superPacket(peer, l, 9, payload)); len(got) != 4 {
		t.Errorf("%d packets, want 4", len(got))
	}
}

// superPacket makes an IP packet as a raw socket sees a GSO message.
func superPacket(src interface{ As4() [4]byte }, l *Link, id uint16, payload []byte) []byte {
	ip := rocev2.IPv4{ID: id, TTL: 64, Flags: rocev2.DontFragment, Protocol: rocev2.ProtocolUDP, Src: src.As4(), Dst: l.addr4}
	udp := rocev2.UDP{SrcPort: 0xc123, DstPort: 4791, Length: uint16(8 + len(payload))}
	ip.TotalLen = 20 + udp.Length
	return append(udp.AppendTo(ip.AppendTo(nil)), payload...)
}

// cut runs one IP packet through a link's receiver, without the network.
func cut(l *Link, ip []byte) (got [][]byte) {
	r := &l.rx
	r.beginRaw(ip)
	var rx link.Rx
	for r.packet(&rx) {
		got = append(got, bytes.Clone(rx.Data))
	}
	return got
}

// FuzzRaw: whatever the network brings, with a wrong ICRC or a right one, the
// receiver neither panics nor hangs, and hands over no less than a BTH, and a
// single packet only if its ICRC is right.
func FuzzRaw(f *testing.F) {
	needRaw(f)
	l := open(f, Options{RX: RXRaw})
	peer := testenv.Loopback()
	f.Add(frame(peer, l.addr, 3, 4791, nil, packet(rocev2.SendOnly, 20, 1)), false)
	f.Add(frame(peer, l.addr, 3, 4791, []byte{1, 1, 1, 1}, packet(rocev2.WriteOnly, 20, 1)), true)
	two := append(frame(peer, l.addr, 3, 4791, nil, packet(rocev2.SendMiddle, 256, 1))[28:],
		frame(peer, l.addr, 4, 4791, nil, packet(rocev2.SendLast, 9, 2))[28:]...)
	f.Add(superPacket(peer, l, 3, two), false)
	f.Fuzz(func(t *testing.T, b []byte, right bool) {
		if len(b) > rxBuffer {
			return
		}
		if right {
			rocev2.PutICRC(b)
		}
		before := l.rx.sizeHint
		got := cut(l, b)
		for _, p := range got {
			if len(p) < rocev2.BTHLen {
				t.Fatalf("a packet of %d bytes", len(p))
			}
		}
		var ip rocev2.IPv4
		if _, err := ip.Parse(b); err == nil && len(got) == 1 && len(got[0])+4+8+ip.Len() == int(ip.TotalLen) &&
			!rocev2.VerifyICRC(b[:ip.TotalLen]) {
			t.Fatal("a packet whose ICRC is wrong")
		}
		if before != l.rx.sizeHint && len(b) < l.rx.sizeHint {
			t.Fatal("learned a size from a packet that is shorter")
		}
	})
}
