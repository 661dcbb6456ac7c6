package softswitch

import (
	"github.com/mcrdma/mcrdma/internal/softswitch/pipeline"
	"github.com/mcrdma/mcrdma/internal/softswitch/ports"
	"github.com/mcrdma/mcrdma/internal/softswitch/traffic"
)

// Stats are a switch's counts.
type Stats struct {
	Traffic    traffic.Stats
	Pipeline   pipeline.Stats // of the present pipeline
	NoPort     uint64         // frames that left by a port that nothing is attached to
	PacketIns  uint64         // frames to the control plane
	PacketOuts uint64         // frames from the control plane
	Ports      []PortStats    // those attached, by number
}

// PortStats are the counts of a port.
type PortStats struct {
	Number uint16
	Name   string
	Up     bool
	ports.Stats
	Classes []traffic.ClassStats // of its queues, the lowest first
}

// Stats returns the switch's counts.
func (s *Switch) Stats() Stats {
	attached := s.attached()
	list := make([]PortStats, len(attached))
	for i, a := range attached { // the system calls, without the lock
		list[i] = PortStats{Number: a.number, Name: a.port.Name(), Up: a.up(), Stats: a.port.Stats()}
	}
	s.lock.take()
	defer s.lock.give()
	for i, a := range attached {
		list[i].Classes = s.manager.ClassStats(a.number)
	}
	st := Stats{Traffic: s.manager.Stats(), NoPort: s.noPort, PacketIns: s.ins, PacketOuts: s.outs.Load(), Ports: list}
	if p := s.manager.Pipeline(); p != nil {
		st.Pipeline = p.Stats()
	}
	return st
}
