package main

import (
	"testing"

	"github.com/mcrdma/mcrdma/pkg/rocev2"
)

// A liar's answers are as good as a switch's: who gets them has to believe them.
func TestLiar(t *testing.T) {
	eth := rocev2.Ethernet{Dst: [6]byte{2, 0, 0, 0, 0, 1}, Src: [6]byte{2, 0, 0, 0, 0, 2}, EtherType: rocev2.EtherTypeIPv4}
	host, rep := [4]byte{10, 1, 0, 11}, [4]byte{10, 1, 0, 12}
	frame := func(src, dst [4]byte, h rocev2.Headers) []byte {
		return answer(eth, rocev2.IPv4{TTL: 64, Protocol: rocev2.ProtocolUDP, Src: dst, Dst: src}, h) // it swaps them
	}
	l := &liar{known: map[[4]byte]map[rocev2.QPN]rocev2.Headers{}}
	ask := func(psn rocev2.PSN, qpn rocev2.QPN) [][]byte {
		return l.asked(frame(host, rep, rocev2.Headers{BTH: rocev2.BTH{Opcode: rocev2.SendOnly, DestQP: qpn, PSN: psn, AckReq: true, PKey: 0xffff}}))
	}
	if out := ask(5, 0x800001); len(out) > 0 {
		t.Fatal("it answers for nobody")
	}
	ack := rocev2.Headers{BTH: rocev2.BTH{Opcode: rocev2.Acknowledge, DestQP: 17, PSN: 5, PKey: 0xffff}, AETH: rocev2.AETH{Syndrome: 0x1f, MSN: 3}}
	if out := l.answered(frame(rep, host, ack)); len(out) > 0 {
		t.Fatal("an answer is answered")
	}
	for _, out := range [][][]byte{ask(5, 0x800001), ask(6, 0x11)} {
		if len(out) > 0 {
			t.Error("it answers what needs no lie")
		}
	}
	out := ask(9, 0x800001)
	if len(out) != 1 {
		t.Fatalf("it answers %d times", len(out))
	}
	got, ip, h, ok := parsed(out[0])
	if !ok || got.Dst != eth.Dst || ip.Src != rep || ip.Dst != host || h.DestQP != 17 || h.PSN != 9 || !h.AETH.Syndrome.IsAck() ||
		!rocev2.VerifyICRC(out[0][rocev2.EthernetLen:]) {
		t.Errorf("%v %v %+v %v", got, ip, h, ok)
	}
}
