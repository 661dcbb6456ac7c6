package simnet

import "time"

const perNano = 1000

// Now is the virtual time.
func (s *Sim) Now() time.Duration { return time.Duration(s.now / perNano) }

// A Timer is a function that can be called at times.
type Timer int32

// Timer registers a function. It is called by [Sim.Run], with the argument that At was given.
func (s *Sim) Timer(f func(now time.Duration, arg int)) Timer {
	s.timers = append(s.timers, f)
	return Timer(len(s.timers) - 1) //nolint:gosec // memory ends before
}

// At has a timer's function called at a time, which is not in the past.
func (s *Sim) At(t time.Duration, f Timer, arg int) {
	s.events.push(max(s.now, t.Nanoseconds()*perNano), callback, int32(f), int32(arg)) //nolint:gosec // callers' arguments are indices
}

// Stop ends the run that is under way, after the present event.
func (s *Sim) Stop() { s.end = -1 }

// Run lets happen what happens until a time, or until nothing is left or Stop is called. It may be
// called again.
func (s *Sim) Run(until time.Duration) {
	s.end = until.Nanoseconds() * perNano
	for len(s.events.list) > 0 && s.events.list[0].at <= s.end {
		e := s.events.pop()
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
		case callback:
			s.timers[e.a](s.Now(), int(e.b))
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
		s.packets.give(i)
		return
	}
	if n := &s.nodes[p.node]; n.Switch == nil {
		s.received(p.node, i)
	} else {
		s.packets.list[i].in = at
		s.forward(p.node, i)
	}
}

// start sends a packet.
func (s *Sim) start(at, i int32) {
	p, k := &s.ports[at], &s.packets.list[i]
	p.sending, p.from = k.wire, k.in
	if k.control {
		p.from = none
	} else {
		p.stats.Data += uint64(k.wire) //nolint:gosec // positive
	}
	p.stats.Packets++
	p.stats.Bytes += uint64(k.wire) //nolint:gosec // likewise
	done := s.now + int64(float64(k.wire)*p.perByte)
	s.events.push(done, free, at, 0)
	s.events.push(done+p.delay, arrive, p.peer, i)
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
