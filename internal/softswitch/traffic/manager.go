package traffic

import (
	"cmp"
	"fmt"
	"time"

	"github.com/mcrdma/mcrdma/internal/softswitch/pipeline"
	"github.com/mcrdma/mcrdma/internal/softswitch/pre"
)

// Ports is how many ports there are: v1model numbers them with 9 bits.
const Ports = pre.MaxPort + 1

// MaxDepth is the largest depth that packets see: v1model's enq_qdepth and
// deq_qdepth have 19 bits.
const MaxDepth = 1<<19 - 1

// DefaultClasses is one for data, and an urgent one.
const DefaultClasses = 2

// A Config describes a Manager. The zero value works.
type Config struct {
	Memory Memory
	// Classes is how many queues each port has; 0 means DefaultClasses.
	// standard_metadata.priority chooses one: 0 is the lowest. As in bmv2, a packet
	// with a priority that the port has no queue for is dropped.
	Classes int
	// Unit is how many bytes one step of enq_qdepth and deq_qdepth stands for; 0:
	// they count packets, as bmv2's do.
	Unit int
}

// MaxUnit is the largest Config.Unit.
const MaxUnit = 1 << 20

// A Manager runs packets through a pipeline, with a Port for each port number between
// ingress and egress. Every number has one, whether or not anything is attached to
// it: a program may send packets to a port only to have its egress see them. It
// is not safe for concurrent use.
//
// A copy of a packet takes room in the Buffer as any other packet.
//
// A packet meets one pipeline only: what waits in a queue when another pipeline
// is loaded leaves through the one that it came in by.
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
	NoClass    uint64 // packets dropped because their port has no queue of their priority
}

// New returns a Manager without a pipeline, whose ports have no rate. It gives each
// frame that leaves to emit, which must not keep it and must not call the Manager.
// The error wraps ErrInvalid.
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

// Pipeline returns the pipeline in force, or nil.
func (m *Manager) Pipeline() *pipeline.Pipeline { return m.pipe }

// SetRate changes how fast a port sends. The error wraps ErrInvalid.
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
	m.wake(port) // what waited for a rate that is no more
	return nil
}

// Stats returns the Manager's counts.
func (m *Manager) Stats() Stats { return m.stats }

// ClassStats returns the counts of a port's classes, the lowest first.
func (m *Manager) ClassStats(port uint16) []ClassStats {
	list := make([]ClassStats, m.classes)
	for i := range list {
		list[i] = m.ports[port].Stats(i)
	}
	return list
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

// wake has the next drain look at a port.
func (m *Manager) wake(port uint16) {
	if p := &m.ports[port]; !p.working && p.Len() > 0 {
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

// depth is what a packet sees of a depth. Part of a unit counts as one.
func (m *Manager) depth(d Depth) uint32 {
	n := d.Packets
	if m.unit > 0 {
		n = (d.Bytes + m.unit - 1) / m.unit
	}
	return uint32(min(n, MaxDepth))
}
