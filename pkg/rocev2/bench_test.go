package rocev2

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"testing"
)

// randomPacket returns a WRITE packet with n bytes of payload.
func randomPacket(n int) []byte {
	h := Headers{BTH: BTH{Opcode: WriteOnly, PKey: DefaultPKey, DestQP: 0x11, PSN: 5}, RETH: RETH{1 << 40, 7, uint32(n)}}
	udpLen := UDPLen + h.Len() + n + ICRCLen
	ip := IPv4{TotalLen: uint16(IPv4Len + udpLen), TTL: 64, Protocol: ProtocolUDP, Src: [4]byte{10, 0, 0, 1}, Dst: [4]byte{10, 0, 0, 2}}
	udp := UDP{SrcPort: 0xc000, DstPort: UDPPort, Length: uint16(udpLen)}
	b := h.AppendTo(udp.AppendTo(ip.AppendTo(nil)))
	r := rand.NewPCG(1, uint64(n))
	for range n {
		b = append(b, byte(r.Uint64()))
	}
	b = binary.LittleEndian.AppendUint32(b, ICRC(b))
	return b
}

var payloadSizes = []int{64, 1024, 4096}

// hotPaths are the operations that run per packet.
func hotPaths() map[string]func() {
	pkt := randomPacket(1024)
	data := pkt[IPv4Len+UDPLen : len(pkt)-ICRCLen]
	frame := append((&Ethernet{Tagged: true, EtherType: EtherTypeIPv4}).AppendTo(nil), pkt...)
	buf := make([]byte, 0, 128)
	var (
		eth  Ethernet
		ip   IPv4
		udp  UDP
		h, g Headers
	)
	cnp := CNPHeaders(7)
	must := func(ok bool) {
		if !ok {
			panic("wrong result")
		}
	}
	if _, err := h.Parse(data); err != nil {
		panic(err)
	}
	return map[string]func(){
		"Ethernet.Parse":    func() { _, err := eth.Parse(frame); must(err == nil) },
		"ParseIPv4UDP":      func() { _, err := ParseIPv4UDP(pkt, &ip, &udp); must(err == nil) },
		"ParseIPv4UDP/bad":  func() { _, err := ParseIPv4UDP(pkt[:100], &ip, &udp); must(err != nil) },
		"IPv4+UDP.AppendTo": func() { must(len(udp.AppendTo(ip.AppendTo(buf))) == IPv4Len+UDPLen) },
		"Headers.Parse":     func() { _, err := g.Parse(data); must(err == nil) },
		"Headers.AppendTo":  func() { must(len(h.AppendTo(buf)) == BTHLen+RETHLen) },
		"CNP.AppendTo":      func() { must(len(cnp.AppendTo(buf)) == BTHLen+CNPPadLen) },
		"VerifyICRC":        func() { must(VerifyICRC(pkt)) },
		"PutICRC":           func() { PutICRC(pkt) },
		"ICRCState": func() {
			// Headers on the stack, as an I/O loop has them.
			var ipudp [IPv4Len + UDPLen]byte
			var hdr [64]byte
			copy(ipudp[:], pkt)
			n := copy(hdr[:], h.AppendTo(hdr[:0]))
			must(StartICRC(&ipudp).BTH(hdr[:n]).Update(data[n:]).Sum() == ICRC(pkt[:len(pkt)-ICRCLen]))
		},
		"SolveIPID": func() { _, ok := SolveIPID(1, 2, 1000); must(!ok) },
	}
}

func TestHotPathsDoNotAllocate(t *testing.T) {
	for name, f := range hotPaths() {
		if n := testing.AllocsPerRun(100, f); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}

func BenchmarkHotPaths(b *testing.B) {
	for name, f := range hotPaths() {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				f()
			}
		})
	}
}

func BenchmarkICRC(b *testing.B) {
	for _, n := range payloadSizes {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			pkt := randomPacket(n)
			pkt = pkt[:len(pkt)-ICRCLen]
			b.SetBytes(int64(len(pkt)))
			b.ReportAllocs()
			for b.Loop() {
				ICRC(pkt)
			}
		})
	}
}
