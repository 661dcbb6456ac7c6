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
