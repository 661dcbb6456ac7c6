package simnet

import (
	"time"

	"github.com/mcrdma/mcrdma/pkg/rocev2"
)

const perNano = 1000

// Now is the virtual time.
func (s *Sim) Now() time.Duration { return time.Duration(s.now / perNano) }

// At has [Sim.Run] call a function at a time, which is not in the past.
func (s *Sim) At(t time.Duration, f func()) {
	i := len(s.calls)
	if last := len(s.called) - 1; last >= 0 {
		i, s.called = s.called[last], s.called[:last]
		s.calls[i] = f
	} else {
		s.calls = append(s.calls, f)
	}
	s.events.push(max(s.now, t.Nanoseconds()*perNano), callback, int32(i), 0) //nolint:gosec // memory ends before
}

// call calls a function whose time has come.
func (s *Sim) call(i int) {
	f := s.calls[i]
	s.calls[i] = nil
	s.called = append(s.called, i)
	f()
}

// Stop ends the run that is under way, after the present event.
func (s *Sim) Stop() { s.end = -1 }

// Seen is a packet as it begins to leave by a port.
type Seen struct {
	At       time.Duration
	From     string
	Port     uint32 // 0: of a host
	Src, Dst string
	SrcPort  uint16
	rocev2.Headers
	Payload int // bytes
	CE      bool
}

// Watch has a function see each packet on each link. It must not keep what it gets.
func (s *Sim) Watch(f func(*Seen)) { s.watch = f }

// start sends a packet.
func (s *Sim) start(at, i int32) {
	p, k := &s.ports[at], &s.packets.list[i]
	p.sending, p.from = k.wire, k.in
	if k.control {
		p.from = none
	}
	s.events.push(s.launch(at, i), free, at, 0)
}

// launch puts a packet on a link, and returns when all of it is.
func (s *Sim) launch(at, i int32) int64 {
	p, k := &s.ports[at], &s.packets.list[i]
	if !k.control {
		p.stats.Data += uint64(k.wire) //nolint:gosec // positive
	}
	p.stats.Packets++
	p.stats.Bytes += uint64(k.wire) //nolint:gosec // likewise
	if s.watch != nil {
		s.watch(&Seen{At: s.Now(), From: s.nodes[p.node].Name, Port: p.number, Headers: k.Headers, Src: s.nodes[k.src].Name, Dst: s.nodes[k.dst].Name,
			SrcPort: k.sport, Payload: int(k.payload), CE: k.ce})
	}
	done := s.now + int64(float64(k.wire)*p.perByte)
	s.events.push(done+p.delay, arrive, p.peer, i)
	return done
}
