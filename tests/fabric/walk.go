package fabric

import (
	"bytes"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/mcrdma/mcrdma/pkg/rocev2"
)

const (
	// arrival bounds how long a packet takes to all receivers, on a busy machine.
	arrival = 2 * time.Second
	// quiet is how long nothing may move until no more copies are expected.
	quiet = 25 * time.Millisecond
)

// A Walk is what became of one packet.
type Walk struct {
	Copies  map[string][]Copy // by the host that got them
	Crossed map[Hop]int       // copies that a node sent into a wire
}

// A Hop is a wire in one direction.
type Hop struct {
	From End
	To   string
}

// A Copy is a packet as it came to a host.
type Copy struct {
	Src, Dst netip.Addr
	TTL      uint8
	rocev2.Headers
	Payload []byte
	ICRC    bool // is right
}

// roce takes an Ethernet frame apart; nil: it is no RoCE packet.
func roce(b []byte) *Copy {
	var ip rocev2.IPv4
	var udp rocev2.UDP
	p, err := rocev2.ParseIPv4UDP(b[rocev2.EthernetLen:], &ip, &udp)
	if err != nil || udp.DstPort != rocev2.UDPPort || len(p) < rocev2.ICRCLen {
		return nil
	}
	c := &Copy{Src: netip.AddrFrom4(ip.Src), Dst: netip.AddrFrom4(ip.Dst), TTL: ip.TTL,
		ICRC: rocev2.VerifyICRC(b[rocev2.EthernetLen:][:ip.TotalLen])}
	payload, err := c.Headers.Parse(p[:len(p)-rocev2.ICRCLen])
	if err != nil {
		return nil
	}
	c.Payload = bytes.Clone(payload)
	return c
}

// packet is a RoCE packet from a host.
func (h *host) packet(to netip.Addr, flow uint16, hd rocev2.Headers, payload []byte) []byte {
	n := rocev2.IPv4Len + rocev2.UDPLen + hd.Len() + len(payload) + rocev2.ICRCLen
	ip := rocev2.IPv4{TOS: 2, TotalLen: uint16(n), Flags: rocev2.DontFragment, TTL: 64, Protocol: rocev2.ProtocolUDP,
		Src: h.Addr.As4(), Dst: to.As4()}
	udp := rocev2.UDP{SrcPort: 0xc000 | flow, DstPort: rocev2.UDPPort, Length: uint16(n - rocev2.IPv4Len)}
	b := udp.AppendTo(ip.AppendTo(make([]byte, 0, n)))
	b = append(hd.AppendTo(b), payload...)
	b = append(b, 0, 0, 0, 0)
	rocev2.PutICRC(b)
	return b
}

// write sends a WRITE of one packet to a group, or a packet of a longer one. Its data are
// payload, for the byte at that offset of the region.
func (f *Fabric) write(g *Group, flow uint16, op rocev2.Opcode, psn uint32, offset uint64, payload []byte) {
	h := f.host(g.Sender)
	hd := rocev2.Headers{BTH: rocev2.BTH{Opcode: op, PKey: rocev2.DefaultPKey, MigReq: true, DestQP: rocev2.QPN(g.MCID),
		AckReq: true, PSN: rocev2.PSN(psn)}, RETH: rocev2.RETH{VA: g.VA + offset, RKey: g.RKey, Length: uint32(len(payload))}}
	h.send(h.packet(f.address(g), flow, hd, payload))
}

// Walk sends one packet to a group, the next in sequence, and reports what becomes
// of it. Packets of different flows may go different ways.
func (f *Fabric) Walk(g *Group, flow uint16) *Walk { return f.walk(g, flow, rocev2.WriteOnly, arrival) }

func (f *Fabric) walk(g *Group, flow uint16, op rocev2.Opcode, arrival time.Duration) *Walk {
	w := &Walk{Copies: map[string][]Copy{}, Crossed: map[Hop]int{}}
	var mu sync.Mutex
	missing := map[string]bool{}
	for _, r := range g.Receivers {
		missing[r.Host] = true
	}
	moved := make(chan struct{}, 1)
	stir := func() {
		select {
		case moved <- struct{}{}:
		default:
		}
	}
	id := f.nonce()
	stop := f.listen(func(h *host, b []byte) {
		if !bytes.Contains(b, id) {
			return
		}
		if c := roce(b); c != nil {
			mu.Lock()
			w.Copies[h.Name] = append(w.Copies[h.Name], *c)
			delete(missing, h.Name)
			mu.Unlock()
		}
		stir()
	})
	defer stop()
	see := tap(func(wire *Wire, side int, b []byte) {
		if bytes.Contains(b, id) {
			mu.Lock()
			w.Crossed[Hop{wire.from(side), wire.from(1 - side).Node}]++
			mu.Unlock()
			stir()
		}
	})
	f.tap.Store(&see)
	defer f.tap.Store(nil)
	g.sent = uint32(rocev2.PSN(g.sent).Add(1))
	f.write(g, flow, op, g.sent, 64, id)
	for deadline := time.After(arrival); ; {
		mu.Lock()
		all := len(missing) == 0
		mu.Unlock()
		var over <-chan time.Time
		if all {
			over = time.After(quiet)
		}
		select {
		case <-moved:
			continue
		case <-over:
		case <-deadline:
		}
		mu.Lock() // no callback is still running
		defer mu.Unlock()
		return w
	}
}

// CheckDelivery sends packets of several flows to a group, and checks that each
// receiver gets exactly one copy of each, rewritten in full, and that no other
// host gets any.
func (f *Fabric) CheckDelivery(g *Group) {
	f.t.Helper()
	for flow := range uint16(8) {
		w := f.Walk(g, flow*977)
		if err := f.delivered(g, w); err != nil {
			f.t.Errorf("flow %d of the group from %s: %v\ncopies crossed %v", flow, g.Sender, err, w.Crossed)
		}
	}
}

// CheckFlows sends messages of several flows to a group, and checks that all packets of
// each, those with a RETH and those without, cross the same wires, so that none overtakes another.
func (f *Fabric) CheckFlows(g *Group) {
	f.t.Helper()
	for flow := range uint16(8) {
		first := f.walk(g, flow*977, rocev2.WriteFirst, arrival)
		for _, op := range []rocev2.Opcode{rocev2.WriteMiddle, rocev2.WriteLast} {
			if w := f.walk(g, flow*977, op, arrival); !maps.Equal(w.Crossed, first.Crossed) {
				f.t.Errorf("flow %d of the group from %s: %v crosses\n%v, and the first packet\n%v", flow, g.Sender, op, w.Crossed, first.Crossed)
			}
		}
	}
}

// Repaired waits until packets of all flows reach all receivers of a group, as
// CheckDelivery wants it.
func (f *Fabric) Repaired(g *Group) {
	f.t.Helper()
	f.eventually("repairing a group", func() error {
		for flow := range uint16(8) {
			if err := f.delivered(g, f.walk(g, flow*977, rocev2.WriteOnly, arrival/20)); err != nil {
				return err
			}
		}
		return nil
	})
}

// delivered says what is wrong with the copies of a packet that was just sent.
func (f *Fabric) delivered(g *Group, w *Walk) error {
	for _, r := range g.Receivers {
		list := w.Copies[r.Host]
		if len(list) != 1 {
			return fmt.Errorf("receiver %s gets %d copies", r.Host, len(list))
		}
		c := list[0]
		for _, x := range []struct {
			what      string
			got, want any
		}{
			{"source", c.Src, f.host(g.Sender).Addr}, {"destination", c.Dst, f.host(r.Host).Addr},
			{"destination QPN", uint32(c.DestQP), r.QPN}, {"PSN", uint32(c.PSN), g.sent}, {"opcode", c.Opcode, rocev2.WriteOnly},
			{"VA", c.RETH.VA, r.VA + 64}, {"rkey", c.RETH.RKey, r.RKey}, {"right ICRC", c.ICRC, true}, {"AckReq", c.AckReq, true},
		} {
			if x.got != x.want {
				return fmt.Errorf("receiver %s gets a packet whose %s is %v, want %v", r.Host, x.what, x.got, x.want)
			}
		}
	}
	for name, list := range w.Copies {
		if !slices.ContainsFunc(g.Receivers, func(r Receiver) bool { return r.Host == name }) {
			return fmt.Errorf("%s is no receiver, and gets %d copies", name, len(list))
		}
	}
	return nil
}

// Most is the largest number of copies of the packet that went the same way over
// one wire.
func (w *Walk) Most() int {
	most := 0
	for _, n := range w.Crossed {
		most = max(most, n)
	}
	return most
}

// CheckAcks has the receivers acknowledge the last packet of Walk, one after the
// other in some order, and checks that the sender hears of it once, when the last
// has.
func (f *Fabric) CheckAcks(g *Group) {
	f.t.Helper()
	sender := f.host(g.Sender)
	answers := make(chan Copy, 64)
	stop := f.listen(func(h *host, b []byte) {
		if c := roce(b); c != nil && h == sender && uint32(c.DestQP) == g.SenderQPN {
			select {
			case answers <- *c:
			default:
			}
		}
	})
	defer stop()
	order := slices.Clone(g.Receivers)
	f.rand.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
	ack := func(r Receiver) {
		h := f.host(r.Host)
		h.send(h.packet(sender.Addr, 1, rocev2.Headers{BTH: rocev2.BTH{Opcode: rocev2.Acknowledge, PKey: rocev2.DefaultPKey, MigReq: true,
			DestQP: rocev2.QPN(g.MCID), PSN: rocev2.PSN(g.sent)}, AETH: rocev2.AETH{Syndrome: rocev2.AckNoLimit, MSN: 1}}, nil))
	}
	for _, r := range order[:len(order)-1] {
		ack(r)
	}
	select {
	case c := <-answers:
		f.t.Errorf("the sender %s hears that all have PSN %#x while %s has not acknowledged it: %+v", g.Sender, c.PSN, order[len(order)-1].Host, c)
		return
	case <-time.After(2 * quiet):
	}
	ack(order[len(order)-1])
	select {
	case c := <-answers:
		if c.Src != f.address(g) || c.Dst != sender.Addr || c.Opcode != rocev2.Acknowledge || !c.AETH.Syndrome.IsAck() ||
			uint32(c.PSN) != g.sent || !c.ICRC {
			f.t.Errorf("the sender %s gets %+v; want an ACK of PSN %#x from %v", g.Sender, c, g.sent, f.address(g))
		}
	case <-time.After(arrival):
		f.t.Errorf("all receivers have acknowledged PSN %#x, and the sender %s does not hear of it", g.sent, g.Sender)
	}
	select {
	case c := <-answers:
		f.t.Errorf("the sender %s hears twice: %+v", g.Sender, c)
	case <-time.After(quiet):
	}
}
