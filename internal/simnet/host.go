package simnet

import (
	"time"

	"github.com/mcrdma/mcrdma/pkg/qp"
	"github.com/mcrdma/mcrdma/pkg/qp/rc"
	"github.com/mcrdma/mcrdma/pkg/rocev2"
)

const (
	firstQPN  = 2        // 0 and 1 are not for applications
	firstMCID = 0x800000 // groups' numbers begin here
	soon      = 10_000 * perNano
)

// WorkRequests is how many sends, and receives, a queue pair holds.
const WorkRequests = 64

// An Endpoint is a queue pair of a host. Functions that it is given are called while the simulation
// runs; they may post, and must not keep the completion.
type Endpoint struct {
	// Sent and Received, if not nil, get the completions of sends and receives.
	Sent, Received func(wc *qp.WC)

	s      *Sim
	qp     *rc.QP
	cfg    rc.Config
	id     int32
	host   int32
	peer   int32 // the host that packets are addressed to, and come from
	sport  uint16
	flow   uint32
	queued bool  // it is among those of its host that may have something to send
	held   int32 // a packet that waits for the end of a pause
	near   int64 // when its timers expire; 0: not
	far    int64
	gather [1][]byte

	posted  int       // sends that are not complete
	backlog []request // sends that the queue pair has no room for
}

// A request is a send that is to be posted.
type request struct {
	op  qp.Opcode
	n   int
	imm uint32
}

// endpoint adds a queue pair to a host.
func (s *Sim) endpoint(host, peer int32, remote rocev2.QPN, sport uint16) *Endpoint {
	e := &Endpoint{s: s, id: int32(len(s.ends)), host: host, peer: peer, held: none, sport: sport, flow: s.flowOf(host, peer, sport)} //nolint:gosec // memory ends before
	cc := s.p.CC
	cc.LineRate = s.p.HostRate
	e.cfg = rc.Config{LocalQPN: rocev2.QPN(e.id + firstQPN), RemoteQPN: remote, PathMTU: s.p.MTU, Window: s.p.Window, AckEvery: s.p.AckEvery,
		MaxSendWR: WorkRequests, MaxRecvWR: WorkRequests, MaxSGE: 1, Timeout: s.p.Timeout, RetryCnt: s.p.Retries, RNRRetry: 7, MinRNRTimer: 1,
		Access: qp.AccessRemoteWrite | qp.AccessRemoteRead, MaxRdAtomic: 16, MaxDestRdAtomic: 16, CC: cc}
	s.ends = append(s.ends, e)
	return e
}

// machine is the queue pair, which is made when it is first needed: of many groups and connections, most may do nothing.
func (e *Endpoint) machine() *rc.QP {
	if e.qp == nil {
		e.qp = rc.NewQP(e.cfg, &e.s.scratch)
		e.qp.StartSend(&e.cfg)
	}
	return e.qp
}

// Connect returns the two ends of a connection between two hosts.
func (s *Sim) Connect(a, b int) (from, to *Endpoint) {
	s.flows++
	sport := 0xc000 | s.flows&0x3fff
	from, to = s.endpoint(int32(a), int32(b), 0, sport), s.endpoint(int32(b), int32(a), 0, sport) //nolint:gosec // indices
	from.cfg.RemoteQPN, to.cfg.RemoteQPN = to.cfg.LocalQPN, from.cfg.LocalQPN
	return from, to
}

// Post posts a send of n bytes, or keeps it until the queue pair has room. Errors are those of rc.QP.PostSend,
// but for qp.ErrQueueFull.
func (e *Endpoint) Post(op qp.Opcode, n int, imm uint32) error {
	r := request{op, n, imm}
	if e.posted >= WorkRequests || len(e.backlog) > 0 {
		e.backlog = append(e.backlog, r)
		return nil
	}
	return e.post(r)
}

func (e *Endpoint) post(r request) error {
	e.gather[0] = e.s.scratch.bytes(r.n)
	err := e.machine().PostSend(&qp.SendWR{Opcode: r.op, Flags: qp.FlagSignaled, Imm: r.imm}, e.gather[:])
	if err == nil {
		e.posted++
	}
	e.wake()
	return err
}

// PostRecv posts a receive of n bytes at most.
func (e *Endpoint) PostRecv(n int) error {
	e.gather[0] = e.s.scratch.bytes(n)
	return e.machine().PostRecv(0, e.gather[:])
}

// Delay is how long a small message takes to another host on an idle network, by the first of equal paths.
func (s *Sim) Delay(from, to int) time.Duration {
	var sum int64
	for at := s.nodes[from].ports[0]; ; {
		p := &s.ports[at]
		sum += p.delay + int64(float64(64+s.p.Overhead())*p.perByte)
		next := s.ports[p.peer].node
		if next == int32(to) || len(s.nodes[next].routes) == 0 || len(s.nodes[next].routes[to]) == 0 { //nolint:gosec // an index
			return time.Duration(sum / perNano)
		}
		at = s.nodes[next].routes[to][0]
	}
}

// Stats are the queue pair's.
func (e *Endpoint) Stats() rc.Stats { return e.machine().Stats() }

// Failed reports why the queue pair is in the error state, if it is.
func (e *Endpoint) Failed() (qp.Status, bool) {
	status, _, failed := e.machine().Failed()
	return status, failed
}

// wake lets the endpoint's host ask it for packets.
func (e *Endpoint) wake() {
	n := &e.s.nodes[e.host]
	if !e.queued {
		e.queued = true
		n.ready = append(n.ready, e.id)
	}
	if at := n.ports[0]; e.s.ports[at].sending == 0 {
		e.s.pull(at)
	}
}

// received takes a packet that has arrived at a host.
func (s *Sim) received(host, i int32) {
	k := &s.packets.list[i]
	id := int(k.DestQP) - firstQPN
	if k.dst != host || id < 0 || id >= len(s.ends) || s.ends[id].host != host || s.ends[id].peer != k.src {
		s.counts.Stray++
		s.packets.give(i)
		return
	}
	e := s.ends[id]
	s.counts.Delivered++
	in := &s.scratch.in
	*in = rc.In{Headers: k.Headers, Payload: s.scratch.zeros[:k.payload], CE: k.ce}
	s.packets.give(i)
	e.machine().Handle(in, s.Now())
	e.complete()
	e.wake()
}

// complete hands out completions.
func (e *Endpoint) complete() {
	wc := &e.s.scratch.wc
	for e.qp.NextSendWC(wc) {
		e.posted--
		if len(e.backlog) > 0 && e.posted < WorkRequests {
			next := e.backlog[0]
			e.backlog = append(e.backlog[:0], e.backlog[1:]...)
			_ = e.post(next) // in the error state it completes with an error
		}
		if e.Sent != nil {
			e.Sent(wc)
		}
	}
	for e.qp.NextRecvWC(wc) {
		if e.Received != nil {
			e.Received(wc)
		}
	}
}

// pull sends the next packet of a host, whose port is free: its endpoints take turns.
func (s *Sim) pull(at int32) {
	p := &s.ports[at]
	n := &s.nodes[p.node]
	for range len(n.ready) {
		e := s.ends[n.ready[0]]
		copy(n.ready, n.ready[1:])
		n.ready = n.ready[:len(n.ready)-1]
		i := e.held
		if i == none {
			if i = e.next(); i == none {
				e.queued = false
				e.arm()
				continue
			}
		}
		n.ready = append(n.ready, e.id)
		if p.paused && !s.packets.list[i].control {
			e.held = i
			continue
		}
		e.held = none
		s.start(at, i)
		return
	}
}

// next makes a packet of what the queue pair sends now.
func (e *Endpoint) next() int32 {
	s := e.s
	out := &s.scratch.out
	if !e.qp.Next(s.Now(), out) {
		return none
	}
	i := s.packets.take()
	s.packets.list[i] = packet{Headers: out.Headers, src: e.host, dst: e.peer, flow: e.flow, sport: e.sport, in: none,
		payload: int32(out.PayloadLen), wire: int32(out.Len() + out.PayloadLen + int(out.Pad) + s.p.Overhead()), //nolint:gosec // a packet's
		control: out.Opcode == rocev2.Acknowledge || out.Opcode == rocev2.CNP}
	return i
}

// arm sees to it that a timer expires when the queue pair has something to do.
func (e *Endpoint) arm() {
	d := e.qp.Deadline()
	if d == rc.Never {
		return
	}
	at := max(e.s.now, d.Nanoseconds()*perNano)
	switch {
	case e.near != 0 && e.near <= at || e.far != 0 && e.far <= at:
	case at-e.s.now <= soon:
		e.near = at
		e.s.events.push(at, near, e.id, 0)
	default:
		e.far = at
		e.s.later.push(at, far, e.id, 0)
	}
}

// expired handles a timer, unless it was set anew since.
func (s *Sim) expired(e *Endpoint, k kind) {
	set := &e.near
	if k == far {
		set = &e.far
	}
	if *set != s.now {
		return
	}
	*set = 0
	e.qp.Tick(s.Now())
	e.complete()
	e.wake()
}

// A scratch is memory that no one reads: what all queue pairs of a simulation send and write.
type scratch struct {
	zeros []byte
	out   rc.Out
	in    rc.In
	wc    qp.WC
}

// bytes returns n bytes of it.
func (m *scratch) bytes(n int) []byte {
	if n > len(m.zeros) {
		m.zeros = make([]byte, max(n, 2*len(m.zeros), 1<<16))
	}
	return m.zeros[:n]
}

// Remote implements rc.Memory: hosts may write everywhere.
func (m *scratch) Remote(_ uint32, _ uint64, n int, _ qp.Access) ([]byte, bool) {
	return m.bytes(n), true
}
