package softswitch

import (
	"github.com/mcrdma/mcrdma/internal/softswitch/pipeline"
	"github.com/mcrdma/mcrdma/internal/softswitch/ports"
	"github.com/mcrdma/mcrdma/internal/softswitch/traffic"
)

// Stats are a switch's counters.
type Stats struct {
	Traffic    traffic.Stats
	Pipeline   pipeline.Stats // of the current pipeline
	NoPort     uint64         // frames sent to a port number that has no port
	PacketIns  uint64         // frames to the control plane
	PacketOuts uint64         // frames from the control plane
	Ports      []PortStats    // attached ports, by number
}

// PortStats are the counters of a port.
type PortStats struct {
	Number uint16
	Name   string
	Up     bool
	ports.Stats
	Classes []traffic.ClassStats // of its queues, lowest first
}

// Stats returns the switch's counters.
func (s *Switch) Stats() Stats {
	attached := s.attached()
	list := make([]PortStats, len(attached))
	for i, a := range attached { // system calls, so without the lock
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
