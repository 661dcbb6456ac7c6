// Package pipeline runs compiled P4 programs: it turns a program.Program into
// closures over a packet's preallocated header fields, and holds the tables,
// registers and counters that the control plane fills and reads.
//
//	prog, err := program.Load(json)
//	e := pre.New(pre.Limits{})
//	p, err := pipeline.New(prog, pipeline.Options{PRE: e})
//	p.Table("MyIngress.route").Insert(&pipeline.Entry{…})
//	p.Process(now, 3, frame, func(port uint16, frame []byte) { … })
//
// Process runs a packet through all stages at once. A switch with queues calls Ingress, keeps the
// packets in its queues, and calls Egress.
//
// Where v1model is unspecified, a pipeline does what bmv2's simple_switch does: the order in which
// clones, resubmission, multicast and drops take effect after a control, the numbers of instance
// types, the standard metadata of a copy, and which fields keep their values when a header becomes
// invalid. Where bmv2 would abort, read memory outside the packet or loop forever, a pipeline
// continues in a defined way and counts it in Stats.
//
// The package is pure: it has no goroutines, clocks or I/O, and a run depends only on the program,
// its options, the actions of the control plane, the states of ports, and the packets with their
// times. It is not safe for concurrent use; the owner of a Pipeline locks it. Packets cause no
// allocation once the pool holds as many packets as are ever in flight.
package pipeline

import (
	"cmp"
	"errors"
	"time"

	"github.com/mcrdma/mcrdma/internal/softswitch/pre"
	"github.com/mcrdma/mcrdma/internal/softswitch/program"
)

// ErrUnsupported is wrapped by errors of New about constructs that it does not support.
var ErrUnsupported = errors.New("unsupported")

// DefaultDropPort is the egress_spec that drops a packet.
const DefaultDropPort = 511

// Options are options of New. The zero value works.
type Options struct {
	// PRE holds multicast groups and clone sessions; nil: an empty one.
	PRE *pre.Engine
	// Seed seeds the generator behind random().
	Seed uint64
	// DropPort is the egress_spec that drops a packet; 0: DefaultDropPort.
	DropPort uint16
	// Log gets the messages of log_msg(); nil: they are not formatted. It is called during Ingress
	// and Egress and must not call the pipeline.
	Log func(string)
}

// Pipeline is a running program.
type Pipeline struct {
	*state
	opt     Options
	pre     *pre.Engine
	lay     *layout
	std     std
	errs    parserErrors
	actions []*action
	parser  *parser
	verify  []cond
	ingress *block
	egress  *block
	out     *deparser
	lists   [][]slot // field lists
	reports [][]slot // digests
	meta    [2]int   // metadata is w[meta[0]:meta[1]]
	kept    [][2]int // ranges of words that a packet and its copies keep; other words are undefined
	rng     rng
	stats   Stats
	pool    pool
	saved   []uint64  // of a field list
	ready   []*Packet // what Ingress or Egress returns
	queue   []*Packet // of Process
}

// New compiles a program. The error wraps ErrUnsupported and names the place in
// the P4 source, or ErrInvalid for const entries that contradict each other.
func New(prog *program.Program, o Options) (*Pipeline, error) {
	if o.PRE == nil {
		o.PRE = pre.New(pre.Limits{})
	}
	o.DropPort = cmp.Or(o.DropPort, DefaultDropPort)
	s, err := newState(prog)
	if err != nil {
		return nil, err
	}
	lay := layOut(prog)
	p := &Pipeline{state: s, opt: o, pre: o.PRE, lay: lay, errs: errorNumbers(prog), rng: rng(o.Seed)}
	p.std = lay.standard(&prog.Std)
	p.meta = lay.metadata(prog)
	p.pool.words = lay.words
	c := newCompiler(p, lay, prog)
	for i := range prog.FieldLists {
		p.lists = append(p.lists, c.fieldList(prog.FieldLists[i].Fields))
	}
	for i := range prog.Digests {
		p.reports = append(p.reports, c.fieldList(prog.Digests[i].Fields))
	}
	for i := range prog.Actions {
		p.actions = append(p.actions, c.action(i, nil))
	}
	c.params, c.consts = nil, nil
	p.parser = c.parser()
	p.verify = c.verify()
	p.ingress = c.control(prog.Ingress)
	p.egress = c.control(prog.Egress)
	p.out = c.deparser()
	p.kept = c.keptRanges()
	if c.err != nil {
		return nil, c.err
	}
	return p, nil
}

// fieldList returns the slots of fields. A varbit field is a reference into the packet's frame,
// which a recirculated packet releases.
func (c *compiler) fieldList(fields []program.FieldRef) []slot {
	var slots []slot
	words := 0
	for _, f := range fields {
		s := c.slot(f)
		if s.varb {
			c.fail("varbit field %s.%s in a field list", c.prog.Headers[f.Header].Name,
				c.prog.Headers[f.Header].Fields[f.Field].Name)
		}
		slots = append(slots, s)
		words += s.n
	}
	if words > len(c.p.saved) {
		c.p.saved = make([]uint64, words)
	}
	return slots
}

// Queue is the egress metadata about the queue in which a packet waited.
type Queue struct {
	EnqDepth, DeqDepth uint32        // depth of the queue when the packet entered and left, in the queue's unit
	EnqTime            time.Duration // when the packet entered
}

// Ingress runs parser and ingress on a frame received on a port. It returns the resulting packets
// in the order in which to queue them; the slice is valid until the next call of Ingress or Egress.
// It copies the frame.
func (p *Pipeline) Ingress(now time.Duration, port uint16, frame []byte) []*Packet {
	p.stats.Received++
	pk := p.pool.packet()
	p.pool.fill(pk, frame)
	pk.inPort, pk.inLen = port, len(frame)
	p.fresh(pk)
	pk.now = now
	p.std[program.StdIngressPort].set(pk, uint64(port))
	p.std[program.StdPacketLength].set(pk, uint64(len(frame)))
	p.std[program.StdIngressTimestamp].set(pk, micros(now))
	p.ready = p.ready[:0]
	p.runIngress(pk)
	return p.ready
}

// Egress runs egress and deparser on a packet from its queue, and releases the packet. The frame is
// valid until the next call, and nil if the packet was dropped or recirculated. more are packets to
// queue: clones, and the results of recirculation; the slice is valid until the next call of
// Ingress or Egress.
func (p *Pipeline) Egress(now time.Duration, pk *Packet, q Queue) (frame []byte, more []*Packet) {
	p.ready = p.ready[:0]
	if pk == nil || !pk.inUse {
		return nil, nil
	}
	pk.now = now
	frame = p.runEgress(pk, q)
	return frame, p.ready
}

// Release releases a packet that will not be passed to Egress.
func (p *Pipeline) Release(pk *Packet) { p.pool.release(pk) }

// maxWork bounds the packets that Process derives from one frame, because a program that copies and
// recirculates multiplies packets with each pass.
const maxWork = 2048

// Process runs a frame through all stages, with queues that are always empty, and calls the
// function for each output frame, which is valid during the call.
func (p *Pipeline) Process(now time.Duration, port uint16, frame []byte, emit func(port uint16, frame []byte)) {
	q := append(p.queue[:0], p.Ingress(now, port, frame)...)
	for i := 0; i < len(q); i++ {
		if i == maxWork {
			p.stats.TooManyCopies += uint64(len(q) - i)
			for _, pk := range q[i:] {
				p.Release(pk)
			}
			break
		}
		to := q[i].port
		out, more := p.Egress(now, q[i], Queue{EnqTime: now})
		if out != nil {
			emit(to, out)
		}
		q = append(q, more...)
	}
	p.queue = q
}
