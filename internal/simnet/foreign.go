package simnet

import (
	"fmt"
	"slices"
	"time"

	"github.com/mcrdma/mcrdma/internal/topology"
	"github.com/mcrdma/mcrdma/pkg/bifurcation"
	"github.com/mcrdma/mcrdma/pkg/rocev2"
)

// A Switch is a switch of another kind than this package's: it takes frames and sends them, at rates of its own.
// traffic.Manager is one.
type Switch interface {
	// Arrive takes a frame, which is not kept, that came by a port.
	Arrive(now time.Duration, port uint16, frame []byte)
	// Run sends what may leave by now. It returns when it wants to be called again, or false if nothing waits.
	Run(now time.Duration) (next time.Duration, ok bool)
}

// MAC is the one of all hosts and switches.
var MAC = [6]byte{2, 0, 0, 0, 0, 1}

// Replace puts another kind of switch in a switch's place. It gives each frame that begins to leave to emit. The error is
// that of how it is made, or wraps topology.ErrUnknown.
func (s *Sim) Replace(name string, made func(emit func(port uint16, frame []byte)) (Switch, error)) error {
	i := slices.IndexFunc(s.nodes, func(n node) bool { return n.Name == name && n.Switch != nil })
	if i < 0 {
		return fmt.Errorf("%w: switch %q", topology.ErrUnknown, name)
	}
	if s.frames == nil {
		s.frames = map[int32][]byte{}
	}
	form, err := made(func(port uint16, frame []byte) { s.emitted(int32(i), uint32(port), frame) }) //nolint:gosec // an index
	s.nodes[i].form = form
	return err
}

// HashSeed is that of a node's choice among equal paths.
func (s *Sim) HashSeed(n int) uint32 { return s.nodes[n].seed }

// Fabric is the fabric as groups are planned in it.
func (s *Sim) Fabric() bifurcation.Fabric { return s.fabric }

// Plan is what is installed for a group, and of what group.
func (g *Group) Plan() (bifurcation.Group, bifurcation.Planned) { return g.group, g.plan }

// Inject puts a packet that no queue pair has made on a host's link, beside what else is there: as if src had sent it to dst.
func (s *Sim) Inject(host, src, dst int, sport uint16, h rocev2.Headers, payload int) {
	i := s.packets.take()
	k := &s.packets.list[i]
	*k = packet{Headers: h, src: int32(src), dst: int32(dst), in: none, sport: sport, payload: int32(payload), //nolint:gosec // indices, and a packet's
		control: h.Opcode == rocev2.Acknowledge || h.Opcode == rocev2.CNP}
	k.wire = int32(k.Len() + payload + int(k.Pad) + s.p.Overhead()) //nolint:gosec // likewise
	k.flow = s.flowOf(k.src, k.dst, sport)
	s.launch(s.nodes[host].ports[0], i)
}

// handOver gives a packet that has arrived to a switch of another kind.
func (s *Sim) handOver(p *port, i int32) {
	frame, ok := s.frames[i]
	if !ok {
		frame = s.encode(&s.packets.list[i])
	}
	delete(s.frames, i)
	s.packets.give(i)
	s.nodes[p.node].form.Arrive(s.Now(), uint16(p.number), frame) //nolint:gosec // 509 at most
	s.arrange(p.node)
}

// woken lets a switch send what may leave now.
func (s *Sim) woken(sw int32) {
	n := &s.nodes[sw]
	if n.wakes == s.now {
		n.wakes = 0
	}
	s.arrange(sw)
}

// arrange has a switch called when it wants to be.
func (s *Sim) arrange(sw int32) {
	n := &s.nodes[sw]
	next, ok := n.form.Run(s.Now())
	if at := next.Nanoseconds() * perNano; ok && (n.wakes == 0 || at < n.wakes) {
		n.wakes = at
		s.events.push(at, wake, sw, 0)
	}
}

// emitted puts a frame on a link.
func (s *Sim) emitted(sw int32, number uint32, frame []byte) {
	i := s.packets.take()
	at := s.fabric.port(sw, number)
	if at == none || !s.decode(&s.packets.list[i], frame) {
		s.counts.Stray++
		s.packets.give(i)
		return
	}
	s.frames[i] = slices.Clone(frame)
	s.launch(at, i)
}

// intact takes away a packet's frame, if it has one, and reports whether its ICRC is right.
func (s *Sim) intact(i int32) bool {
	frame, ok := s.frames[i]
	delete(s.frames, i)
	return !ok || rocev2.VerifyICRC(frame[rocev2.EthernetLen:])
}

// encode makes a packet's frame.
func (s *Sim) encode(k *packet) []byte {
	n := k.Len() + int(k.payload) + int(k.Pad) + rocev2.ICRCLen
	eth := rocev2.Ethernet{Dst: MAC, Src: MAC, EtherType: rocev2.EtherTypeIPv4}
	ip := rocev2.IPv4{TotalLen: uint16(rocev2.IPv4Len + rocev2.UDPLen + n), TTL: 64, Protocol: rocev2.ProtocolUDP, //nolint:gosec // a packet's
		Flags: rocev2.DontFragment, Src: s.nodes[k.src].addr, Dst: s.nodes[k.dst].addr}
	switch {
	case k.ce:
		ip.TOS = 3
	case k.Opcode.HasPayload():
		ip.TOS = 2 // as hosts send it
	}
	udp := rocev2.UDP{SrcPort: k.sport, DstPort: rocev2.UDPPort, Length: uint16(rocev2.UDPLen + n)} //nolint:gosec // likewise
	b := k.AppendTo(udp.AppendTo(ip.AppendTo(eth.AppendTo(nil))))
	b = append(b, make([]byte, int(k.payload)+int(k.Pad)+rocev2.ICRCLen)...)
	rocev2.PutICRC(b[rocev2.EthernetLen:])
	return b
}

// decode reads a frame, and reports whether it is one from a host to a host.
func (s *Sim) decode(k *packet, frame []byte) bool {
	var eth rocev2.Ethernet
	var ip rocev2.IPv4
	var udp rocev2.UDP
	b, err := eth.Parse(frame)
	if err == nil {
		b, err = rocev2.ParseIPv4UDP(b, &ip, &udp)
	}
	if err != nil || len(b) < rocev2.ICRCLen {
		return false
	}
	*k = packet{in: none}
	b, err = k.Headers.Parse(b[:len(b)-rocev2.ICRCLen])
	host := func(a [4]byte) int32 {
		return int32(slices.IndexFunc(s.nodes, func(n node) bool { return n.Switch == nil && n.addr == a })) //nolint:gosec // an index
	}
	k.src, k.dst, k.sport, k.ce = host(ip.Src), host(ip.Dst), udp.SrcPort, ip.TOS&3 == 3
	k.payload, k.wire = int32(len(b)), int32(len(frame)+s.p.Framing) //nolint:gosec // a packet's
	k.control = k.Opcode == rocev2.Acknowledge || k.Opcode == rocev2.CNP
	if err != nil || k.src < 0 || k.dst < 0 {
		return false
	}
	k.flow = s.flowOf(k.src, k.dst, k.sport)
	return true
}
