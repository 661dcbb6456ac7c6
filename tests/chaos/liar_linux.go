package main

import (
	"sync"

	"github.com/mcrdma/mcrdma/pkg/rocev2"
	"github.com/mcrdma/mcrdma/tests/chaos/plan"
)

// A liar is on the sender's cable and does what a switch must never do: it forwards an
// acknowledgment before the minimum of the members. It acknowledges each packet that requests an
// acknowledgment, at once. The checker must find this fault.
type liar struct {
	mu sync.Mutex
	// known are the queue pairs of answers, by source address: a liar needs them to be believed.
	known map[[4]byte]map[rocev2.QPN]rocev2.Headers
}

// lie puts liars on the cables of all senders.
func (r *run) lie() error {
	seen := map[string]bool{}
	for _, g := range r.plan.Groups {
		if seen[g.Sender] {
			continue
		}
		seen[g.Sender] = true
		l := &liar{known: map[[4]byte]map[rocev2.QPN]rocev2.Headers{}}
		if err := r.lab.Tamper(g.Sender, r.plan.ToR(g.Sender), l.asked); err != nil {
			return err
		}
		if err := r.lab.Tamper(r.plan.ToR(g.Sender), g.Sender, l.answered); err != nil {
			return err
		}
	}
	return nil
}

// parsed is a RoCEv2 packet; ok is false for any other.
func parsed(frame []byte) (eth rocev2.Ethernet, ip rocev2.IPv4, h rocev2.Headers, ok bool) {
	b, err := eth.Parse(frame)
	if err != nil {
		return eth, ip, h, false
	}
	var udp rocev2.UDP
	if b, err = rocev2.ParseIPv4UDP(b, &ip, &udp); err != nil || udp.DstPort != rocev2.UDPPort || len(b) < rocev2.ICRCLen {
		return eth, ip, h, false
	}
	_, err = h.Parse(b[:len(b)-rocev2.ICRCLen])
	return eth, ip, h, err == nil
}

// answered handles packets to the sender.
func (l *liar) answered(frame []byte) [][]byte {
	if _, ip, h, ok := parsed(frame); ok && h.Opcode == rocev2.Acknowledge && h.AETH.Syndrome.IsAck() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.known[ip.Src] == nil {
			l.known[ip.Src] = map[rocev2.QPN]rocev2.Headers{}
		}
		l.known[ip.Src][h.DestQP] = h
	}
	return nil
}

// near is the maximum distance of a queue pair's packets from its last answer.
const near = 1 << 16

// asked handles packets from the sender, and answers for the receivers of a group.
func (l *liar) asked(frame []byte) [][]byte {
	eth, ip, h, ok := parsed(frame)
	if !ok || h.DestQP < plan.FirstMCID || !h.AckReq {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, last := range l.known[ip.Dst] {
		if ahead := h.PSN.Sub(last.PSN); ahead <= 0 || ahead > near {
			continue
		}
		last.PSN = h.PSN
		return [][]byte{answer(eth, ip, last)}
	}
	return nil
}

// answer makes an acknowledgment to a packet's sender.
func answer(eth rocev2.Ethernet, ip rocev2.IPv4, h rocev2.Headers) []byte {
	eth.Dst, eth.Src = eth.Src, eth.Dst
	ip.Src, ip.Dst = ip.Dst, ip.Src
	body := h.AppendTo(nil)
	udp := rocev2.UDP{SrcPort: 0xc000, DstPort: rocev2.UDPPort, Length: uint16(rocev2.UDPLen + len(body) + rocev2.ICRCLen)} //nolint:gosec // small
	ip.TotalLen = uint16(ip.Len()) + udp.Length                                                                             //nolint:gosec // small
	out := eth.AppendTo(nil)
	start := len(out)
	out = udp.AppendTo(ip.AppendTo(out))
	out = append(append(out, body...), 0, 0, 0, 0)
	rocev2.PutICRC(out[start:])
	return out
}
