package rocev2_test

import (
	"fmt"

	"github.com/mcrdma/mcrdma/pkg/rocev2"
)

// A WRITE of six bytes is encoded, arrives, and is decoded.
func Example() {
	payload := []byte("mcrdma")
	h := rocev2.Headers{
		BTH:  rocev2.BTH{Opcode: rocev2.WriteOnly, Pad: 2, PKey: rocev2.DefaultPKey, DestQP: 0x11, AckReq: true, PSN: 0xffffff},
		RETH: rocev2.RETH{VA: 0x7f0000001000, RKey: 0x1234, Length: uint32(len(payload))},
	}
	udpLen := rocev2.UDPLen + h.Len() + len(payload) + int(h.Pad) + rocev2.ICRCLen
	ip := rocev2.IPv4{TotalLen: uint16(rocev2.IPv4Len + udpLen), Flags: rocev2.DontFragment, TTL: 64,
		Protocol: rocev2.ProtocolUDP, Src: [4]byte{10, 0, 0, 1}, Dst: [4]byte{10, 0, 0, 2}}
	udp := rocev2.UDP{SrcPort: 49152, DstPort: rocev2.UDPPort, Length: uint16(udpLen)}

	pkt := h.AppendTo(udp.AppendTo(ip.AppendTo(nil)))
	pkt = append(pkt, payload...)
	pkt = append(pkt, make([]byte, int(h.Pad)+rocev2.ICRCLen)...)
	rocev2.PutICRC(pkt)

	data, err := rocev2.ParseIPv4UDP(pkt, &ip, &udp)
	if err != nil || udp.DstPort != rocev2.UDPPort || !rocev2.VerifyICRC(pkt[:ip.TotalLen]) {
		fmt.Println("not for us:", err)
		return
	}
	var got rocev2.Headers
	payload, err = got.Parse(data[:len(data)-rocev2.ICRCLen])
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Printf("%v to QP %#x, PSN %#x, next %#x: %q at %#x\n",
		got.Opcode, uint32(got.DestQP), uint32(got.PSN), uint32(got.PSN.Add(1)), payload, got.RETH.VA)
	// Output: WRITE_ONLY to QP 0x11, PSN 0xffffff, next 0x0: "mcrdma" at 0x7f0000001000
}
