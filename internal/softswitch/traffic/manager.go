package traffic

import (
	"cmp"
	"fmt"
	"time"

	"github.com/mcrdma/mcrdma/internal/softswitch/pipeline"
	"github.com/mcrdma/mcrdma/internal/softswitch/pre"
)

// Ports is the number of ports: v1model numbers them with 9 bits.
const Ports = pre.MaxPort + 1

// MaxDepth is the largest queue depth that packets see: v1model's enq_qdepth and deq_qdepth have 19
// bits.
const MaxDepth = 1<<19 - 1

// DefaultClasses is two: one for data, and an urgent one.
const DefaultClasses = 2

// A Config configures a Manager. The zero value works.
type Config struct {
	Memory Memory
	// Classes is the number of queues per port; 0 means DefaultClasses. standard_metadata.priority
	// selects one; 0 is the lowest. As in bmv2, a packet is dropped if the port has no queue for
	// its priority.
	Classes int
	// Unit is the unit of enq_qdepth and deq_qdepth in bytes; 0: they count packets, as bmv2's do.
	Unit int
}

// MaxUnit is the largest Config.Unit.
const MaxUnit = 1 << 20

// A Manager runs packets through a pipeline, with a Port for each port number between ingress and
// egress. Every number has one, even if no port is attached: a program may send packets to a port
// just to process them in egress. It is not safe for concurrent use.
//
// A copy of a packet occupies the Buffer like any other packet.
//
// A packet is processed by one pipeline only: packets that are queued when another pipeline is
// loaded leave through their own.
type Manager struct {
	pipe    *pipeline.Pipeline
	emit    func(port uint16, frame []byte)
	classes int
	unit    int
	ports   [Ports]port
	stats   Stats

	work  []uint16 // ports that may have something to send at once, in order
	paced []uint16 // ports with a rate
}

type port struct {
	*Port[queued]
	working bool // the port is in work
}

type queued struct {
	pk   *pipeline.Packet
	pipe *pipeline.Pipeline
}

// Stats are a Manager's counters.
type Stats struct {
	Arrived    uint64 // frames
	NoPipeline uint64 // of them, dropped because no pipeline was loaded
	NoClass    uint64 // packets dropped because their port has no queue of their priority
}

// New returns a Manager without a pipeline, with ports without a rate. It passes each outgoing
// frame to emit, which must not keep it and must not call the Manager. The error wraps ErrInvalid.
func New(c Config, emit func(port uint16, frame []byte)) (*Manager, error) {
	if c.Unit < 0 || c.Unit > MaxUnit {
		return nil, fmt.Errorf("traffic: %w: depths in units of %d bytes; want 1 to %d, or 0 for packets", ErrInvalid, c.Unit, MaxUnit)
	}
	b, err := NewBuffer(c.Memory)
	if err != nil {
		return nil, err
	}
	m := &Manager{emit: emit, classes: cmp.Or(c.Classes, DefaultClasses), unit: c.Unit}
	for i := range m.ports {
		if m.ports[i].Port, err = NewPort[queued](b, m.classes); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// Load makes p the pipeline for packets that arrive from now on.
func (m *Manager) Load(p *pipeline.Pipeline) { m.pipe = p }

// Pipeline returns the current pipeline, or nil.
func (m *Manager) Pipeline() *pipeline.Pipeline { return m.pipe }

// SetRate sets a port's rate. The error wraps ErrInvalid.
func (m *Manager) SetRate(port uint16, r Rate) error {
	if err := m.ports[port].SetRate(r); err != nil {
		return err
	}
	m.paced = m.paced[:0]
	for i := range m.ports {
		if m.ports[i].rate.PerSecond > 0 {
			m.paced = append(m.paced, uint16(i))
		}
	}
	m.wake(port) // packets that waited for the old rate
	return nil
}

// Stats returns the Manager's counters.
func (m *Manager) Stats() Stats { return m.stats }

// ClassStats returns the counters of a port's classes, lowest first.
func (m *Manager) ClassStats(port uint16) []ClassStats {
	list := make([]ClassStats, m.classes)
	for i := range list {
		list[i] = m.ports[port].Stats(i)
	}
	return list
}

// Arrive processes a frame received on a port. Unless a rate delays it, processing is complete when
// Arrive returns. The frame is not kept.
func (m *Manager) Arrive(now time.Duration, port uint16, frame []byte) {
	m.stats.Arrived++
	if m.pipe == nil {
		m.stats.NoPipeline++
		return
	}
	m.put(now, m.pipe, m.pipe.Ingress(now, port, frame))
	m.drain(now)
}

// Run sends the packets that may leave by now. It returns the latest time for the next call, or
// false if nothing waits.
func (m *Manager) Run(now time.Duration) (next time.Duration, ok bool) {
	for _, p := range m.paced {
		m.wake(p)
	}
	m.drain(now)
	for _, p := range m.paced {
		if at, waits := m.ports[p].Next(); waits && (!ok || at < next) {
			next, ok = at, true
		}
	}
	return next, ok
}

// put queues packets.
func (m *Manager) put(now time.Duration, pipe *pipeline.Pipeline, pks []*pipeline.Packet) {
	for _, pk := range pks {
		to := pk.Port() & (Ports - 1)
		switch {
		case pk.Priority() >= m.classes:
			m.stats.NoClass++
			pipe.Release(pk)
		case m.ports[to].Put(now, pk.Priority(), pk.Len(), queued{pk, pipe}):
			m.wake(to)
		default:
			pipe.Release(pk)
		}
	}
}

// wake adds a port to those that the next drain serves.
func (m *Manager) wake(port uint16) {
	if p := &m.ports[port]; !p.working && p.Len() > 0 {
		p.working = true
		m.work = append(m.work, port)
	}
}

// drain sends the packets that may leave by now, and those that result from them.
func (m *Manager) drain(now time.Duration) {
	for i := 0; i < len(m.work); i++ { // grows in the loop
		p := &m.ports[m.work[i]]
		p.working = false
		for m.send(now, m.work[i], p) {
		}
	}
	m.work = m.work[:0]
}

// send runs egress for a port's next packet, if it may leave by now.
func (m *Manager) send(now time.Duration, number uint16, p *port) bool {
	item, seen, ok := p.Take(now)
	if !ok {
		return false
	}
	frame, more := item.pipe.Egress(now, item.pk, pipeline.Queue{
		EnqDepth: m.depth(seen.Enq), DeqDepth: m.depth(seen.Deq), EnqTime: seen.Since})
	if frame != nil {
		p.Sent(len(frame))
		m.emit(number, frame)
	}
	m.put(now, item.pipe, more)
	return true
}

// depth returns a depth in the unit that packets see, rounded up.
func (m *Manager) depth(d Depth) uint32 {
	n := d.Packets
	if m.unit > 0 {
		n = (d.Bytes + m.unit - 1) / m.unit
	}
	return uint32(min(n, MaxDepth))
}
