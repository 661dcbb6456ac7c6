package simnet

import "time"

// Run lets happen what happens until a time, or until nothing is left or Stop is called. It may be
// called again.
func (s *Sim) Run(until time.Duration) {
	s.end = until.Nanoseconds() * perNano
	for {
		q := &s.events
		if len(q.list) == 0 || len(s.later.list) > 0 && s.later.list[0].before(&q.list[0]) {
			q = &s.later
		}
		if len(q.list) == 0 || q.list[0].at > s.end {
			break
		}
		e := q.pop()
		s.now = e.at
		s.counts.Events++
		switch e.kind {
		case arrive:
			s.arrived(e.a, e.b)
		case free:
			s.sent(e.a)
		case near, far:
			s.expired(s.ends[e.a], e.kind)
		case pause:
			s.pauseArrived(e.a, e.b != 0)
		case wake:
			s.woken(e.a)
		case callback:
			s.call(int(e.a))
		}
	}
	if s.end >= 0 {
		s.now = max(s.now, s.end)
	}
}

// arrived handles a packet at the end of a link.
func (s *Sim) arrived(at, i int32) {
	p := &s.ports[at]
	if from := &s.ports[p.peer]; from.loss > 0 && s.rng.Float64() < from.loss {
		from.stats.Lost++
		s.counts.Lost++
		delete(s.frames, i)
		s.packets.give(i)
		return
	}
	n := &s.nodes[p.node]
	switch {
	case n.form != nil:
		s.handOver(p, i)
	case n.Switch == nil:
		if s.frames != nil && !s.intact(i) {
			s.counts.Damaged++
			s.packets.give(i)
			return
		}
		s.received(p.node, i)
	default:
		s.packets.list[i].in = at
		s.forward(p.node, i)
	}
}

// sent goes on when a port has sent its packet.
func (s *Sim) sent(at int32) {
	p := &s.ports[at]
	n := int(p.sending)
	p.sending = 0
	if s.nodes[p.node].Switch == nil {
		s.pull(at)
		return
	}
	s.release(p.node, p.from, n)
	s.serve(at)
}
