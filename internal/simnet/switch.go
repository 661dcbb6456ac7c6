package simnet

import (
	"time"

	"github.com/mcrdma/mcrdma/pkg/ackmerge"
	"github.com/mcrdma/mcrdma/pkg/rocev2"
)

// resumeBelow is how far below the threshold a port's data must be before the other end may go on.
const resumeBelow = 3 << 10

// forward takes a packet that has arrived at a switch.
func (s *Sim) forward(sw, i int32) {
	k := &s.packets.list[i]
	if g := s.group(k.DestQP); g != nil && k.src == g.sender {
		if st := g.step(sw, k.dst); st != nil {
			s.replicate(sw, i, st)
			return
		}
	}
	s.enqueue(s.route(sw, k), i)
}

// route chooses a port to a packet's destination.
func (s *Sim) route(sw int32, k *packet) int32 {
	n := &s.nodes[sw]
	ports := n.routes[k.dst]
	switch len(ports) {
	case 0:
		return none
	case 1:
		return ports[0]
	}
	return ports[n.hash(k)%len(ports)]
}

// replicate makes the copies that a step's rules are for.
func (s *Sim) replicate(sw, i int32, st *step) {
	copies := st.groups[0]
	if n := len(st.groups); n > 1 {
		copies = st.groups[s.nodes[sw].hash(&s.packets.list[i])%n]
	}
	for c := range copies {
		to := &copies[c]
		j := i
		if c < len(copies)-1 {
			j = s.packets.take()
			s.packets.list[j] = s.packets.list[i]
			s.counts.Copies++
		}
		k := &s.packets.list[j]
		k.dst = to.dst
		k.sport ^= to.neutral // what keeps its ICRC
		if to.last {
			k.DestQP = to.qpn
			if k.Opcode.HasRETH() {
				k.RETH.VA += to.offset
				k.RETH.RKey = to.rkey
				k.sport ^= to.region
			}
		}
		k.flow = s.flowOf(k.src, k.dst, k.sport)
		s.put(to.port, j)
	}
	for c := range copies { // once all of them wait
		s.serve(copies[c].port)
	}
}

// enqueue puts a packet into a port's queue, and sends what is first there.
func (s *Sim) enqueue(at, i int32) {
	s.put(at, i)
	if at != none {
		s.serve(at)
	}
}

// put puts a packet into a port's queue, if there is room.
func (s *Sim) put(at, i int32) {
	k := &s.packets.list[i]
	if at == none {
		s.counts.Stray++
		s.packets.give(i)
		return
	}
	p := &s.ports[at]
	n, size := &s.nodes[p.node], int(k.wire)
	if n.used+size > s.p.Buffer || !s.p.PFC && !k.control && p.data.bytes+size > s.p.Buffer-n.used {
		p.stats.Dropped++
		s.counts.Dropped++
		s.packets.give(i)
		return
	}
	n.used += size
	if k.control {
		p.control.push(&s.packets, i)
	} else {
		s.queued(p)
		p.data.push(&s.packets, i)
		p.stats.MaxQueue = max(p.stats.MaxQueue, p.data.bytes)
		s.hold(n, k.in, size)
	}
}

// queued counts how long data has waited, before more comes or some leaves.
func (s *Sim) queued(p *port) {
	p.stats.Queued += float64(p.data.bytes) * float64(s.now-p.changed) / 1e12
	p.changed = s.now
}

// threshold is how much data of one port may wait before the other end is paused.
func (s *Sim) threshold(n *node) int { return max(0, n.room-n.used) >> s.p.PFCShift }

// hold counts data that came by a port, and pauses the other end if it is too much.
func (s *Sim) hold(n *node, in int32, size int) {
	p := &s.ports[in]
	p.held += size
	if s.p.PFC && !p.pausing && p.held > s.threshold(n) {
		s.tell(p, true)
	}
}

// release frees what a packet took of a switch's buffer.
func (s *Sim) release(sw, in int32, size int) {
	n := &s.nodes[sw]
	n.used -= size
	if in == none {
		return
	}
	p := &s.ports[in]
	if p.held -= size; p.pausing && (p.held == 0 || p.held+resumeBelow <= s.threshold(n)) {
		s.tell(p, false)
	}
}

// tell pauses the other end of a port, or lets it go on.
func (s *Sim) tell(p *port, on bool) {
	p.pausing = on
	arg := int32(0)
	if on {
		arg = 1
		s.counts.Pauses++
		s.ports[p.peer].stats.Pauses++
	}
	s.events.push(s.now+p.delay, pause, p.peer, arg)
}

func (s *Sim) pauseArrived(at int32, on bool) {
	p := &s.ports[at]
	p.paused = on
	switch {
	case on || p.sending != 0:
	case s.nodes[p.node].Switch == nil:
		s.pull(at)
	default:
		s.serve(at)
	}
}

// serve sends the next packet of a switch's port, if that is free.
func (s *Sim) serve(at int32) {
	p := &s.ports[at]
	if p.sending != 0 {
		return
	}
	for p.control.head != none {
		i := p.control.pop(&s.packets)
		if s.merge(p.node, &s.packets.list[i]) {
			s.start(at, i)
			return
		}
		s.nodes[p.node].used -= int(s.packets.list[i].wire)
		s.packets.give(i)
	}
	if p.paused || p.data.head == none {
		return
	}
	s.queued(p)
	i := p.data.pop(&s.packets)
	if k := &s.packets.list[i]; k.Opcode.HasPayload() && s.marks(p.data.bytes) { // others are sent as not ECN-capable
		k.ce = true
		p.stats.Marked++
		s.counts.Marked++
	}
	s.start(at, i)
}

// marks decides whether a packet is marked that leaves so many bytes behind it.
func (s *Sim) marks(behind int) bool {
	switch {
	case s.p.KMax == 0 || behind <= s.p.KMin:
		return false
	case behind >= s.p.KMax:
		return true
	case s.p.PMax == 0:
		return false
	}
	return s.rng.Float64() < s.p.PMax*float64(behind-s.p.KMin)/float64(s.p.KMax-s.p.KMin)
}

// merge rewrites an answer that leaves the merge point for a group's sender, and reports whether it goes on.
func (s *Sim) merge(sw int32, k *packet) bool {
	g := s.group(k.DestQP)
	if g == nil || g.mergeAt != sw || k.dst != g.sender {
		return true
	}
	member := g.member(k.src)
	if member < 0 { // no entry matches it
		return true
	}
	a := ackmerge.Answer{Member: member, CNP: k.Opcode == rocev2.CNP, Syndrome: k.AETH.Syndrome, PSN: k.PSN, MSN: k.AETH.MSN}
	a, v := ackmerge.Merge(&g.merge, &g.state, a, s.Now().Truncate(time.Microsecond)) // a switch's clock
	g.Verdicts[v]++
	if v != ackmerge.Pass {
		s.counts.Absorbed++
		return false
	}
	k.src, k.DestQP = g.address, g.senderQPN
	k.flow = s.flowOf(k.src, k.dst, k.sport)
	if !a.CNP {
		k.PSN, k.AETH = a.PSN, rocev2.AETH{Syndrome: a.Syndrome, MSN: a.MSN}
	}
	return true
}
