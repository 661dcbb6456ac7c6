// Package journey explains the packets of a group that were captured at the ports of switches:
// which were copied and rewritten, which answers were merged, and which packets were dropped and
// why, as far as that can be known.
//
// It uses the packets' headers, the group's tree as reported by the agents, and the model of
// merging (package ackmerge). It does no I/O, and reads no clock.
package journey

import (
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/mcrdma/mcrdma/pkg/rocev2"
)

// A Packet is a packet seen at a switch's port.
type Packet struct {
	Switch string
	Port   uint32
	Out    bool // it leaves the switch
	Time   time.Time
	Data   []byte // an Ethernet frame
	// Summary and Comment say what the packet is, and what happened to it. Explain sets them.
	Summary, Comment string

	read *parsed // by Relevant, so that Explain need not
}

// parsed is a RoCE packet with everything known about it.
type parsed struct {
	*Packet
	eth      rocev2.Ethernet
	ip       rocev2.IPv4
	udp      rocev2.UDP
	h        rocev2.Headers
	payload  int
	icrc     uint32
	intact   bool // the ICRC is correct
	answer   bool // not data
	src, dst netip.Addr
	notes    []string

	copies []*copyOf   // of arriving data: the expected copies
	to     []string    // of leaving data: the switches one of which should see it next
	from   *parsed     // of arriving data: the packet that left the previous switch
	seen   bool        // of a packet expected to be seen again: it was
	n      int         // its index among the packets
	state  memberState // of an answer at the merging switch: what members had acknowledged then
}

// parse parses a packet; nil if it is not RoCE.
func parse(p *Packet) *parsed {
	x := &parsed{Packet: p}
	rest, err := x.eth.Parse(p.Data)
	if err != nil || x.eth.EtherType != rocev2.EtherTypeIPv4 {
		return nil
	}
	body, err := rocev2.ParseIPv4UDP(rest, &x.ip, &x.udp)
	if err != nil || x.udp.DstPort != rocev2.UDPPort || len(body) < rocev2.BTHLen+rocev2.ICRCLen {
		return nil
	}
	x.intact = rocev2.VerifyICRC(rest[:x.ip.TotalLen])
	end := len(body) - rocev2.ICRCLen
	for i := range rocev2.ICRCLen {
		x.icrc |= uint32(body[end+i]) << (8 * i)
	}
	payload, err := x.h.Parse(body[:end])
	if err != nil {
		return nil
	}
	x.payload = len(payload)
	x.src, x.dst = netip.AddrFrom4(x.ip.Src), netip.AddrFrom4(x.ip.Dst)
	x.answer = x.h.Opcode == rocev2.Acknowledge || x.h.Opcode == rocev2.CNP
	x.Summary = x.summary()
	return x
}

// summary describes the packet itself, in one line.
func (x *parsed) summary() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%v > %v QPN %s PSN %d ", x.src, x.dst, qpn(x.h.DestQP), x.h.PSN)
	switch {
	case x.h.Opcode == rocev2.CNP:
		b.WriteString("CNP")
	case x.answer:
		fmt.Fprintf(&b, "%v MSN %d", x.h.AETH.Syndrome, x.h.AETH.MSN)
	default:
		fmt.Fprintf(&b, "%v, %d bytes", x.h.Opcode, x.payload)
	}
	if !x.intact {
		b.WriteString(", wrong ICRC")
	}
	return b.String()
}

func (x *parsed) note(format string, args ...any) {
	x.notes = append(x.notes, fmt.Sprintf(format, args...))
}

// qpn returns a QPN as drivers and tools print it.
func qpn(n rocev2.QPN) string { return fmt.Sprintf("0x%06x", uint32(n)) }

// changes describes the differences between an arriving packet and a leaving one.
func changes(a, b *parsed) string {
	var list []string
	add := func(what, before, after string) {
		if before != after {
			list = append(list, what+" "+before+" → "+after)
		}
	}
	add("source", a.src.String(), b.src.String())
	add("destination", a.dst.String(), b.dst.String())
	add("QPN", qpn(a.h.DestQP), qpn(b.h.DestQP))
	add("PSN", fmt.Sprint(a.h.PSN), fmt.Sprint(b.h.PSN))
	if a.h.Opcode.HasRETH() && b.h.Opcode.HasRETH() {
		add("VA", fmt.Sprintf("0x%x", a.h.RETH.VA), fmt.Sprintf("0x%x", b.h.RETH.VA))
		add("rkey", fmt.Sprintf("0x%x", a.h.RETH.RKey), fmt.Sprintf("0x%x", b.h.RETH.RKey))
	}
	if a.h.Opcode.HasAETH() && b.h.Opcode.HasAETH() {
		add("syndrome", a.h.AETH.Syndrome.String(), b.h.AETH.Syndrome.String())
		add("MSN", fmt.Sprint(a.h.AETH.MSN), fmt.Sprint(b.h.AETH.MSN))
	}
	add("identification", fmt.Sprintf("0x%04x", a.ip.ID), fmt.Sprintf("0x%04x", b.ip.ID))
	add("source port", fmt.Sprint(a.udp.SrcPort), fmt.Sprint(b.udp.SrcPort))
	add("ICRC", fmt.Sprintf("0x%08x", a.icrc), fmt.Sprintf("0x%08x", b.icrc))
	add("TTL", fmt.Sprint(a.ip.TTL), fmt.Sprint(b.ip.TTL))
	if a.ip.TOS&3 != 3 && b.ip.TOS&3 == 3 {
		list = append(list, "marked: congestion experienced")
	}
	if a.eth.Dst != b.eth.Dst || a.eth.Src != b.eth.Src {
		list = append(list, "MACs")
	}
	if len(list) == 0 {
		return "nothing"
	}
	return strings.Join(list, ", ")
}
