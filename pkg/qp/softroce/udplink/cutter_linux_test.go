package udplink

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/mcrdma/mcrdma/pkg/qp/softroce/link"
	"github.com/mcrdma/mcrdma/pkg/rocev2"
)

var here, there = netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("127.0.0.2")

// deaf returns a link at here that has no sockets, for what is fed to it.
func deaf(mode RXMode) *Link {
	l := &Link{addr: here, addr4: here.As4(), opt: Options{Batch: 1}}
	if mode == RXRaw {
		l.raw = &socket{}
	}
	l.rx.init(l, nil)
	return l
}

// A message is what one system call may bring.
type message struct {
	data    []byte // IP packet in mode RXRaw, UDP payload in mode RXUDP
	port    uint16 // source port, RXUDP
	control []byte // ancillary data, RXUDP
	flags   int32
}

// feed gives l a message and returns what it delivers of it.
func (l *Link) feed(m message) (got []link.Rx) {
	r := &l.rx
	h := &r.msgs[0]
	h.len = uint32(copy(r.bufs[0], m.data))
	h.hdr.Flags = m.flags
	c := unsafe.Slice((*byte)(unsafe.Pointer(&r.control[0])), unsafe.Sizeof(r.control[0]))
	clear(c)
	h.hdr.Controllen = uint64(copy(c, m.control))
	r.names[0] = unix.RawSockaddrInet4{Family: unix.AF_INET, Addr: there.As4()}
	binary.BigEndian.PutUint16((*[2]byte)(unsafe.Pointer(&r.names[0].Port))[:], m.port)
	r.n, r.next = 1, 0
	var rx link.Rx
	for r.packet(&rx) {
		got = append(got, rx)
	}
	return got
}

// verdict says, by the whole packet, what has to become of it: "" if it is good.
func verdict(b []byte) string {
	var ip rocev2.IPv4
	var udp rocev2.UDP
	payload, err := rocev2.ParseIPv4UDP(b, &ip, &udp)
	switch {
	case errors.Is(err, rocev2.ErrFragment):
		return "rx_drop_fragment"
	case err != nil:
		return "rx_drop_format"
	case len(payload) < rocev2.BTHLen+rocev2.ICRCLen:
		return "rx_drop_truncated"
	case !rocev2.VerifyICRC(b[:ip.TotalLen]):
		return "rx_drop_icrc"
	}
	return ""
}

// judge feeds an IP packet that is no GSO message to l and checks its outcome.
func judge(t testing.TB, l *Link, b []byte) (reason string) {
	t.Helper()
	before := drops(l)
	want := verdict(b)
	was := uint64(0)
	at := 0
	for i, name := range rxDropNames {
		if name == want {
			at, was = i, l.counters.rxDrop[i].Load()
		}
	}
	got := l.feed(message{data: b})
	if want == "" {
		ihl := int(b[0]&15) * 4
		total := int(binary.BigEndian.Uint16(b[2:]))
		if len(got) != 1 || drops(l) != before || got[0].TOS != b[1] || got[0].Src != netip.AddrFrom4([4]byte(b[12:16])) ||
			!bytes.Equal(got[0].Data, b[ihl+rocev2.UDPLen:total-rocev2.ICRCLen]) {
			t.Fatalf("a good packet is not delivered as it is: %x", b[:min(len(b), 60)])
		}
		return ""
	}
	if len(got) != 0 || drops(l) != before+1 || l.counters.rxDrop[at].Load() != was+1 {
		t.Fatalf("want %s and nothing else, got %d packets and %d drops: %x", want, len(got), drops(l)-before, b[:min(len(b), 60)])
	}
	return want
}

// TestEveryBit flips each bit of a frame in turn, with IP options and without.
func TestEveryBit(t *testing.T) {
	l := deaf(RXRaw)
	for _, options := range [][]byte{nil, {1, 1, 1, 0}} {
		good := frame(there, here, 0x1234, rocev2.UDPPort, options, packet(rocev2.WriteOnlyImm, 61, 1))
		if reason := judge(t, l, good); reason != "" {
			t.Fatalf("the good packet: %s", reason)
		}
		ihl := rocev2.IPv4Len + len(options)
		outcomes := map[string]int{}
		for i := range 8 * len(good) {
			b := bytes.Clone(good)
			b[i/8] ^= 0x80 >> (i % 8)
			if at := i / 8; at < ihl && at != 10 && at != 11 { // routers keep the checksum right
				b[10], b[11] = 0, 0
				if n := int(b[0]&15) * 4; n >= rocev2.IPv4Len && n <= len(b) {
					binary.BigEndian.PutUint16(b[10:], rocev2.Checksum(b[:n]))
				}
			}
			outcomes[judge(t, l, b)]++
		}
		// Good are ToS, TTL, UDP checksum and byte 4 of the BTH. (Of the wrong
		// header lengths some look like a packet with a wrong ICRC.)
		if outcomes[""] != 8+8+16+8 || outcomes["rx_drop_format"] < 8*2 || outcomes["rx_drop_fragment"] != 14 ||
			outcomes["rx_drop_icrc"] < 8*(len(good)-ihl-rocev2.UDPLen-1) {
			t.Errorf("%d bits: %v", 8*len(good), outcomes)
		}
	}
}

// TestEveryLength cuts a frame off at every length, and the packet in it.
func TestEveryLength(t *testing.T) {
	l := deaf(RXRaw)
	good := frame(there, here, 7, rocev2.UDPPort, nil, packet(rocev2.SendOnly, 40, 1))
	for n := range len(good) {
		if judge(t, l, good[:n]) == "" {
			t.Errorf("%d bytes are enough", n)
		}
		if n < rocev2.IPv4Len+rocev2.UDPLen {
			continue
		}
		b := bytes.Clone(good[:n])
		binary.BigEndian.PutUint16(b[2:], uint16(n))
		b[10], b[11] = 0, 0
		binary.BigEndian.PutUint16(b[10:], rocev2.Checksum(b[:rocev2.IPv4Len]))
		if r := judge(t, l, b); r != "rx_drop_format" {
			t.Errorf("%d bytes, UDP length as before: %q", n, r)
		}
		binary.BigEndian.PutUint16(b[24:], uint16(n-rocev2.IPv4Len))
		want := "rx_drop_icrc"
		if n < rocev2.IPv4Len+rocev2.UDPLen+minUDP {
			want = "rx_drop_truncated"
		}
		if r := judge(t, l, b); r != want {
			t.Errorf("%d bytes, UDP length right: %q, want %s", n, r, want)
		}
	}
	// What follows the packet is no part of it.
	if r := judge(t, l, append(bytes.Clone(good), 1, 2, 3)); r != "" {
		t.Errorf("with bytes behind the packet: %s", r)
	}
}

// segmentIDs finds out with which identification each packet of a message is
// right. limit is one past the largest possible one.
func segmentIDs(t testing.TB, rx link.Rx, port uint16, limit, base int) int {
	t.Helper()
	n := len(rx.Data) + rocev2.ICRCLen
	for id := range limit {
		ip := rocev2.IPv4{TotalLen: uint16(rocev2.IPv4Len + rocev2.UDPLen + n), ID: uint16(base + id), Flags: rocev2.DontFragment,
			Protocol: rocev2.ProtocolUDP, Src: rx.Src.As4(), Dst: here.As4()}
		udp := rocev2.UDP{SrcPort: port, DstPort: rocev2.UDPPort, Length: uint16(rocev2.UDPLen + n)}
		// The ICRC lies behind the data.
		if rocev2.VerifyICRC(append(udp.AppendTo(ip.AppendTo(nil)), rx.Data[:n]...)) {
			return base + id
		}
	}
	t.Fatalf("%d bytes were delivered whose ICRC is wrong", n)
	return 0
}

// fixSegments writes right ICRCs to the segments of a UDP payload.
func fixSegments(payload []byte, seg int, port uint16, base, step int) {
	for id := base; len(payload) > rocev2.ICRCLen; id += step {
		p := payload[:min(seg, len(payload))]
		payload = payload[len(p):]
		copy(p[max(0, len(p)-rocev2.ICRCLen):], sealed(p, port, uint16(id)))
	}
}

// sealed returns the ICRC for the UDP payload p whose last bytes are for it.
func sealed(p []byte, port, id uint16) []byte {
	ip := rocev2.IPv4{TotalLen: uint16(rocev2.IPv4Len + rocev2.UDPLen + len(p)), ID: id, Flags: rocev2.DontFragment,
		Protocol: rocev2.ProtocolUDP, Src: there.As4(), Dst: here.As4()}
	udp := rocev2.UDP{SrcPort: port, DstPort: rocev2.UDPPort, Length: uint16(rocev2.UDPLen + len(p))}
	b := append(udp.AppendTo(ip.AppendTo(nil)), p...)
	rocev2.PutICRC(b)
	return b[len(b)-rocev2.ICRCLen:]
}

// FuzzCut feeds IP packets as a raw socket gives them, GSO messages among them:
// nothing is delivered whose ICRC is wrong for the identification that follows
// from its place, and nothing is lost without being counted.
func FuzzCut(f *testing.F) {
	op := byte(rocev2.WriteMiddle)
	f.Add([]byte{op, 1, 2, 3, 4, 5, 6, 7}, uint16(2000), uint16(65535), byte(4), byte(1), uint16(65535))
	f.Add([]byte{op, 0, 0, 0, 0}, uint16(9000), uint16(9), byte(64), byte(0), uint16(300))
	f.Add([]byte{op, 9}, uint16(9000), uint16(65535), byte(8), byte(0), uint16(65535))
	f.Add([]byte{op}, uint16(3), uint16(9), byte(1), byte(1), uint16(1))
	f.Add([]byte{op, 1, 2, 3}, uint16(2000), uint16(0), byte(0), byte(0), uint16(65535))
	l := deaf(RXRaw)
	const port = 0xc123
	f.Fuzz(func(t *testing.T, content []byte, size, base uint16, mtu, step byte, damage uint16) {
		if len(content) == 0 || len(content) > 64 || size == 0 || size > 65507 {
			return
		}
		payload := bytes.Repeat(content, int(size)/len(content)+1)[:size]
		seg := rocev2.Opcode(payload[0]).HeaderLen() + min(int(mtu)<<6, 4096)&^3 + rocev2.ICRCLen
		for at := seg; at < len(payload); at += seg {
			copy(payload[at:], payload[:4]) // of opcode and partition key
		}
		fixSegments(payload, seg, port, int(base), int(step%2))
		if int(damage) < len(payload) {
			payload[damage] ^= 0x40
		}
		before := drops(l)
		bytesOut := 0
		for _, rx := range l.feed(message{data: superPacket(there, l, base, payload)}) {
			segmentIDs(t, rx, port, 65507/minUDP, int(base))
			bytesOut += len(rx.Data) + rocev2.ICRCLen
		}
		if lost := drops(l) - before; (lost == 0) != (bytesOut == len(payload)) {
			t.Errorf("%d of %d bytes delivered, %d drops counted", bytesOut, len(payload), lost)
		}
		cuttable := len(payload) <= seg || rocev2.Opcode(payload[0]).Known()
		if rest := (len(payload)-1)%seg + 1; cuttable && rest >= minUDP && int(damage) >= len(payload) && bytesOut != len(payload) {
			t.Errorf("%d of %d good bytes are delivered", bytesOut, len(payload))
		}
	})
}

// FuzzRawPacket feeds any bytes at all, as they are and with right lengths and
// checksums.
func FuzzRawPacket(f *testing.F) {
	f.Add(frame(there, here, 3, rocev2.UDPPort, nil, packet(rocev2.SendOnly, 20, 1)), true)
	f.Add(frame(there, here, 3, rocev2.UDPPort, []byte{7, 4, 0, 0}, packet(rocev2.WriteOnly, 5, 1)), false)
	l := deaf(RXRaw)
	f.Fuzz(func(t *testing.T, b []byte, fix bool) {
		if len(b) > maxSingle || rocev2.IPv4Len > len(b) {
			return // might be a GSO message, see FuzzCut
		}
		if b = bytes.Clone(b); fix {
			n := max(int(b[0]&15)*4, rocev2.IPv4Len)
			if len(b) < n+rocev2.UDPLen {
				return
			}
			b[0], b[9] = byte(0x40|n/4), rocev2.ProtocolUDP
			binary.BigEndian.PutUint16(b[2:], uint16(len(b)))
			binary.BigEndian.PutUint16(b[n+4:], uint16(len(b)-n))
			b[10], b[11] = 0, 0
			binary.BigEndian.PutUint16(b[10:], rocev2.Checksum(b[:n]))
			rocev2.PutICRC(b)
		}
		judge(t, l, b)
	})
}

// FuzzUDPMessage feeds what a UDP socket gives, with any ancillary data:
// nothing is delivered whose ICRC is wrong for all of our identifications.
func FuzzUDPMessage(f *testing.F) {
	gro := []byte{20, 0, 0, 0, 0, 0, 0, 0, unix.IPPROTO_UDP, 0, 0, 0, unix.UDP_GRO, 0, 0, 0, 64, 0, 0, 0, 0, 0, 0, 0}
	f.Add(make([]byte, 200), gro, byte(0), byte(1), uint16(500))
	f.Add(make([]byte, 200), gro, byte(63), byte(0), uint16(70))
	f.Add(make([]byte, 15), []byte{1}, byte(64), byte(0), uint16(0))
	f.Add(make([]byte, 200), gro, byte(64), byte(1), uint16(500))
	l := deaf(RXUDP)
	const port = 0xc123
	f.Fuzz(func(t *testing.T, payload, control []byte, base, step byte, damage uint16) {
		if len(payload) > 65507 {
			return
		}
		payload = bytes.Clone(payload)
		var c rxControl
		copy(unsafe.Slice((*byte)(unsafe.Pointer(&c)), unsafe.Sizeof(c)), control)
		tos, seg := c.parse(len(control))
		if seg <= 0 || seg > len(payload) {
			seg = len(payload)
		}
		if seg > 0 {
			fixSegments(payload, seg, port, int(base), int(step%2))
		}
		if int(damage) < len(payload) {
			payload[damage] ^= 1
		}
		before := drops(l)
		bytesOut := 0
		for _, rx := range l.feed(message{data: payload, port: port, control: control}) {
			if segmentIDs(t, rx, port, ourIDs, 0); rx.TOS != tos || rx.Src != there {
				t.Errorf("ToS %#x from %v, want %#x from %v", rx.TOS, rx.Src, tos, there)
			}
			bytesOut += len(rx.Data) + rocev2.ICRCLen
		}
		lost := drops(l) - before
		if (lost == 0) != (bytesOut == len(payload) && len(payload) > 0) {
			t.Errorf("%d of %d bytes delivered, %d drops counted", bytesOut, len(payload), lost)
		}
		if base < ourIDs && seg == len(payload) && seg >= minUDP && int(damage) >= seg && bytesOut == 0 {
			t.Error("a good packet is not delivered")
		}
	})
}

// TestTruncatedMessage: a datagram that did not fit into the buffer is no
// packet.
func TestTruncatedMessage(t *testing.T) {
	l := deaf(RXUDP)
	b := frame(there, here, 0, rocev2.UDPPort, nil, packet(rocev2.SendOnly, 20, 1))[28:]
	if n := len(l.feed(message{data: b, port: 0xc123})); n != 1 {
		t.Fatalf("%d packets, want 1", n)
	}
	if n := len(l.feed(message{data: b, port: 0xc123, flags: unix.MSG_TRUNC})); n != 0 || l.counters.rxDrop[dropTruncated].Load() != 1 {
		t.Errorf("%d packets, want 0", n)
	}
}

// TestNumbersTurnedRound: a switch has turned the same bits round in the identifications of a
// flow before the kernel put its packets together. All are taken; one that is damaged, or that was
// numbered as no sender does, is not.
func TestNumbersTurnedRound(t *testing.T) {
	for _, by := range []uint16{0, 1, 0x3f, 0x40, 0xb6c9, 0xffff} {
		for name, number := range map[string]func(i int) uint16{
			"rising":   func(i int) uint16 { return uint16(i) },
			"from 7":   func(i int) uint16 { return uint16(7 + i) },
			"constant": func(int) uint16 { return 5 },
		} {
			l := deaf(RXRaw)
			var payload []byte
			const count = 40
			for i := range count {
				f := frame(there, here, number(i)^by, rocev2.UDPPort, nil, packet(rocev2.WriteMiddle, 1024, i))
				switch i {
				case 9:
					f[len(f)-100] ^= 4
				case 20:
					f = frame(there, here, 0x1234^by, rocev2.UDPPort, nil, packet(rocev2.WriteMiddle, 1024, i))
				}
				payload = append(payload, f[rocev2.IPv4Len+rocev2.UDPLen:]...)
			}
			data := frame(there, here, number(0)^by, rocev2.UDPPort, nil, payload[:len(payload)-rocev2.ICRCLen])
			copy(data[len(data)-rocev2.ICRCLen:], payload[len(payload)-rocev2.ICRCLen:])
			got := l.feed(message{data: data})
			if len(got) != count-2 || drops(l) != 2 || l.counters.rxDrop[dropICRC].Load() != 2 {
				t.Errorf("%s, turned round by %#x: %d packets and %d drops, want %d and 2", name, by, len(got), drops(l), count-2)
			}
			if n := l.counters.rxSolved.Load(); name == "rising" && n > 3 { // once, and for those that are dropped
				t.Errorf("turned round by %#x: %d identifications were solved for", by, n)
			}
			for i, rx := range got {
				k := i
				if i >= 9 {
					k++
				}
				if k >= 20 {
					k++
				}
				if want := packet(rocev2.WriteMiddle, 1024, k); !bytes.Equal(rx.Data, want) {
					t.Fatalf("%s, turned round by %#x: packet %d is another", name, by, i)
				}
			}
		}
	}
}

// TestPutTogether: the kernel has put together packets of any length that came in one go, each of which was sent by itself.
func TestPutTogether(t *testing.T) {
	l := deaf(RXRaw)
	for size := range 1100 {
		op := rocev2.SendOnly
		if size == 0 {
			op = rocev2.Acknowledge
		}
		var payload []byte
		const count = 5
		for i := range count {
			n := size
			if i == count-1 {
				n /= 2 // the last may be shorter
			}
			f := frame(there, here, 0, rocev2.UDPPort, nil, packet(op, n, i))
			payload = append(payload, f[rocev2.IPv4Len+rocev2.UDPLen:]...)
		}
		got := l.feed(message{data: superPacket(there, l, 0, payload)})
		if len(got) != count || drops(l) != 0 {
			t.Fatalf("%d bytes each: %d packets of %d, %d drops", size, len(got), count, drops(l))
		}
		for i, rx := range got[:count-1] {
			if !bytes.Equal(rx.Data, packet(op, size, i)) {
				t.Fatalf("%d bytes each: packet %d is another", size, i)
			}
		}
	}
}

// BenchmarkNumbers: what a packet of an aggregated message takes whose identifications count up, and of
// one in which a switch has turned bits round.
func BenchmarkNumbers(b *testing.B) {
	for _, by := range []uint16{0, 0xb6c9} {
		b.Run(fmt.Sprintf("by=%#x", by), func(b *testing.B) {
			l := deaf(RXRaw)
			var payload []byte
			const count = 15
			for i := range count {
				f := frame(there, here, uint16(i)^by, rocev2.UDPPort, nil, packet(rocev2.WriteMiddle, 4096, i))
				payload = append(payload, f[rocev2.IPv4Len+rocev2.UDPLen:]...)
			}
			data := frame(there, here, by, rocev2.UDPPort, nil, payload[:len(payload)-rocev2.ICRCLen])
			copy(data[len(data)-rocev2.ICRCLen:], payload[len(payload)-rocev2.ICRCLen:])
			r := &l.rx
			r.msgs[0].len = uint32(copy(r.bufs[0], data))
			var rx link.Rx
			n := 0
			for b.Loop() {
				if n%count == 0 {
					r.n, r.next = 1, 0
				}
				if !r.packet(&rx) {
					b.Fatal("a packet is not taken")
				}
				n++
			}
		})
	}
}
