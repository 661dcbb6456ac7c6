package traffic

import (
	"time"

	"github.com/mcrdma/mcrdma/internal/softswitch/pipeline"
	"github.com/mcrdma/mcrdma/internal/softswitch/pre"
)

// Ports is how many ports there are: v1model numbers them with 9 bits.
const Ports = pre.MaxPort + 1

// A Manager runs packets through a pipeline, with a queue for each port between
// ingress and egress. Every port has one, whether or not anything is attached to
// it: a program may send packets to a port only to have its egress see them. It
// is not safe for concurrent use.
//
// A packet meets one pipeline only: what waits in a queue when another pipeline
// is loaded leaves through the one that it came in by.
type Manager struct {
	pipe  *pipeline.Pipeline
	emit  func(port uint16, frame []byte)
	ports [Ports]port
	stats Stats

	work  []uint16 // ports that may have something to send at once, in order
	paced []uint16 // ports with a rate
}

type port struct {
	q       Queue[queued]
	stats   QueueStats
	working bool // in work
}

type queued struct {
	pk   *pipeline.Packet
	pipe *pipeline.Pipeline
}

// Stats are a Manager's counts.
type Stats struct {
	Arrived    uint64 // frames
	NoPipeline uint64 // of them dropped because no pipeline was loaded
}

// QueueStats are the counts of one port's queue.
type QueueStats struct {
	Queued  uint64 // packets that went into the queue
	Dropped uint64 // that found it full
	Waiting int    // that are in it now
	Peak    int    // the most that ever were in it
	Sent    uint64 // frames that left; the difference to those queued was dropped by egress
	Bytes   uint64 // in them
}

// New returns a Manager without a pipeline whose ports have the zero Limits. It
// gives each frame that leaves to emit, which must not keep it and must not call
// the Manager.
func New(emit func(port uint16, frame []byte)) *Manager {
	return &Manager{emit: emit}
}

// Load makes p the pipeline for packets that arrive from now on.
func (m *Manager) Load(p *pipeline.Pipeline) { m.pipe = p }

// Pipeline returns the pipeline in force, or nil.
func (m *Manager) Pipeline() *pipeline.Pipeline { return m.pipe }

// SetLimits changes the limits of one port's queue. The error wraps ErrInvalid.
func (m *Manager) SetLimits(port uint16, l Limits) error {
	if err := m.ports[port].q.SetLimits(l); err != nil {
		return err
	}
	m.paced = m.paced[:0]
	for i := range m.ports {
		if m.ports[i].q.limits.Rate.PerSecond > 0 {
			m.paced = append(m.paced, uint16(i))
		}
	}
	m.wake(port) // what waited for a rate that is no more
	return nil
}

// Limits returns the limits of a port's queue.
func (m *Manager) Limits(port uint16) Limits { return m.ports[port].q.limits }

// Stats returns the Manager's counts.
func (m *Manager) Stats() Stats { return m.stats }

// QueueStats returns the counts of a port's queue.
func (m *Manager) QueueStats(port uint16) QueueStats {
	s := m.ports[port].stats
	s.Waiting = m.ports[port].q.Len()
	return s
}

// Arrive processes a frame that came in on a port. Without a rate in its way, it
// is through when Arrive returns. The frame is not kept.
func (m *Manager) Arrive(now time.Duration, port uint16, frame []byte) {
	m.stats.Arrived++
	if m.pipe == nil {
		m.stats.NoPipeline++
		return
	}
	m.put(now, m.pipe, m.pipe.Ingress(now, port, frame))
	m.drain(now)
}

// Run sends what may leave by now. It returns when it wants to be called again
// at the latest, or false if nothing waits.
func (m *Manager) Run(now time.Duration) (next time.Duration, ok bool) {
	for _, p := range m.paced {
		m.wake(p)
	}
	m.drain(now)
	for _, p := range m.paced {
		if at, waits := m.ports[p].q.Next(); waits && (!ok || at < next) {
			next, ok = at, true
		}
	}
	return next, ok
}

// put queues packets.
func (m *Manager) put(now time.Duration, pipe *pipeline.Pipeline, pks []*pipeline.Packet) {
	for _, pk := range pks {
		port := pk.Port() & (Ports - 1)
		p := &m.ports[port]
		if !p.q.Put(now, queued{pk, pipe}) {
			p.stats.Dropped++
			pipe.Release(pk)
			continue
		}
		p.stats.Queued++
		p.stats.Peak = max(p.stats.Peak, p.q.Len())
		m.wake(port)
	}
}

// wake has the next drain look at a port.
func (m *Manager) wake(port uint16) {
	if p := &m.ports[port]; !p.working && p.q.Len() > 0 {
		p.working = true
		m.work = append(m.work, port)
	}
}

// drain sends what may leave by now, and what comes of it.
func (m *Manager) drain(now time.Duration) {
	for i := 0; i < len(m.work); i++ { // which grows meanwhile
		p := &m.ports[m.work[i]]
		p.working = false
		for m.send(now, m.work[i], p) {
		}
	}
	m.work = m.work[:0]
}

// send runs the egress of a port's next packet, if it may leave by now.
func (m *Manager) send(now time.Duration, number uint16, p *port) bool {
	item, t, ok := p.q.Take(now)
	if !ok {
		return false
	}
	frame, more := item.pipe.Egress(now, item.pk, pipeline.Queue{
		EnqDepth: uint32(t.EnqDepth), DeqDepth: uint32(t.DeqDepth), EnqTime: t.EnqTime})
	if frame != nil {
		p.q.Sent(len(frame))
		p.stats.Sent++
		p.stats.Bytes += uint64(len(frame))
		m.emit(number, frame)
	}
	m.put(now, item.pipe, more)
	return true
}
