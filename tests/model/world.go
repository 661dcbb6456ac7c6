package main

import (
	"fmt"
	"time"

	"github.com/mcrdma/mcrdma/pkg/ackmerge"
	"github.com/mcrdma/mcrdma/pkg/qp"
	"github.com/mcrdma/mcrdma/pkg/qp/rc"
	"github.com/mcrdma/mcrdma/pkg/rocev2"
)

const (
	maxMembers = 3
	mtu        = 256
	startPSN   = rocev2.PSN(0xfffffe) // so that four packets cross the wrap
	instant    = time.Hour            // the time of every step; only the expiry of a timer takes time
	timeout14  = 14                   // the queue pairs' local ACK timeout, as a code
)

var ackTimeout = qp.AckTimeout(timeout14)

// The sender's messages: a WRITE, and a SEND, which consumes a receive request; two packets each.
var workload = []qp.SendWR{
	{ID: 1, Opcode: qp.OpWrite, RKey: 1, RemoteAddr: 4096},
	{ID: 2, Opcode: qp.OpSend},
}

const messagePackets = 2

// A packet is a packet in flight, in the fewest bytes that identify it.
type packet struct {
	psn      byte // position from startPSN, plus one; so 0 is the PSN before
	ack      bool // data: AckReq
	syndrome rocev2.Syndrome
	msn      byte
}

// claims are the PSNs that liars acknowledge, by their distance from startPSN: PSNs that they do
// not have, and PSNs on both sides of all that the switch compares.
var claims = [...]int{messagePackets*2 - 1, ackmerge.Spread, ackmerge.Window - 4, ackmerge.Window, ackmerge.Window + 8,
	1<<23 - 4, 1<<23 + 2, -ackmerge.Spread, -ackmerge.Window}

// Bytes from farPSN on are PSNs near the claims.
const (
	farPSN = 64
	around = 8
)

func encodePSN(psn rocev2.PSN) byte {
	if n := psn.Sub(startPSN) + 1; n >= 0 && n < farPSN {
		return byte(n)
	}
	for i, c := range claims {
		if d := psn.Sub(startPSN.Add(c)) + around/2; d >= 0 && d < around {
			return byte(farPSN + i*around + d)
		}
	}
	panic(fmt.Sprintf("PSN %d is none that a member or a liar says", psn))
}

// wire returns the PSN on the wire.
func (p packet) wire() rocev2.PSN {
	if p.psn < farPSN {
		return startPSN.Add(int(p.psn) - 1)
	}
	i := int(p.psn - farPSN)
	return startPSN.Add(claims[i/around] + i%around - around/2)
}

// claim returns the answer that a liar sends: an ACK, or a NAK.
func (a action) claim() packet {
	psn := startPSN.Add(claims[a.outcomes/2])
	if a.outcomes%2 == 1 {
		return packet{psn: encodePSN(psn.Add(1)), syndrome: rocev2.NakSequence}
	}
	return packet{psn: encodePSN(psn), syndrome: rocev2.AckNoLimit}
}

// A queue holds packets in the order in which they were sent. It is a value, so that worlds can be
// copied.
type queue struct {
	n byte
	p [30]packet
}

func (q *queue) push(p packet) {
	q.p[q.n] = p
	q.n++
}

func (q *queue) take(i byte) packet {
	p := q.p[i]
	copy(q.p[i:], q.p[i+1:q.n])
	q.n--
	return p
}

func (q *queue) all() []packet { return q.p[:q.n] }

// A member is a receiver, its links, and the switch's record of it.
type member struct {
	state   []byte // of its rc.QP
	held    queue  // late data: other packets overtake it
	answers queue  // in flight to the switch
	record  ackmerge.Record
	said    byte // packets acknowledged by answers that have reached the switch
	current bool // in the merge set
	dead    bool // does not answer any more
	unready bool // posts its last receive request only after an RNR NAK
	liar    bool // may also acknowledge packets that it does not have
}

// A world is a complete state: the sender, the members, the switch, packets in flight, and the
// remaining faults.
//
// Data reaches the members, and merged answers the sender, in the step in which they are sent,
// unless they are lost or held. That loses no generality: a late copy has the same effect on its
// member as an immediate one, and answers may wait before the switch for any time. A late copy
// would only change what a member has received when the switch acknowledges for it; so S1 is
// checked in a stronger form, against the answers that the switch has received.
type world struct {
	sender  []byte
	held    queue // late merged answers
	members [maxMembers]member
	n       int // of them
	passed  ackmerge.Record
	learn   bool // the group was installed without its initial PSN
	left    faults
}

// faults are the faults that may still happen, and the actions that the control plane may still
// take.
type faults struct {
	losses, duplicates, reorderings, earlyTimeouts, deaths, removals, restarts, unready, lies byte
}

// A machine has the queue pairs that states are loaded into, one at a time.
type machine struct {
	sender   *rc.QP
	receiver *rc.QP
	recvs    int
	empty    []byte // a receiver before it posts
	merger   merger
	relearn  bool // after a restart the rules lack the initial PSN
	out      rc.Out
	reply    rc.Out
	edges    int64
	encoded  []byte
	blocks   []byte // of members, while they are sorted
	arena    []byte // of states' bytes, until the next world is expanded
	epoch    uint16
}

// A merger is the switch's merging: by the model, the program or the kernel.
type merger interface {
	merge(c *ackmerge.Config, s *ackmerge.State, a ackmerge.Answer) (ackmerge.Answer, ackmerge.Verdict)
}

type goMerger struct{}

func (goMerger) merge(c *ackmerge.Config, s *ackmerge.State, a ackmerge.Answer) (ackmerge.Answer, ackmerge.Verdict) {
	return ackmerge.Merge(c, s, a, 0)
}

// memory grants every WRITE a place that is never read: TestAdversary in pkg/qp/rc checks that
// bytes are placed once and in order.
type memory struct{ b [messagePackets * mtu]byte }

func (m *memory) Remote(_ uint32, _ uint64, n int, _ qp.Access) ([]byte, bool) { return m.b[:n], true }

func newMachine(b *bound) *machine {
	m := &machine{merger: b.newMerger(), relearn: b.relearn, epoch: 1}
	cfg := rc.Config{MaxSendWR: 4, MaxRecvWR: 4, MaxSGE: 1, SignalAll: true, PathMTU: mtu, SQPSN: startPSN, RQPSN: startPSN,
		Timeout: timeout14, RetryCnt: 7, RNRRetry: 7, MinRNRTimer: 12, Access: qp.AccessRemoteWrite, Window: 4, AckEvery: 4,
		CC: rc.CCParams{Disable: true}}
	m.sender = rc.NewQP(cfg, &memory{})
	m.sender.StartSend(&cfg)
	for i, wr := range workload {
		if !wr.Opcode.IsWrite() {
			m.recvs++
		}
		if err := m.sender.PostSend(&workload[i], [][]byte{make([]byte, messagePackets*mtu)}); err != nil {
			panic(err)
		}
	}
	m.receiver = rc.NewQP(cfg, &memory{})
	m.empty = m.receiver.AppendState(nil, instant)
	for id := range m.recvs {
		m.post(id) // so that there are requests for loaded states to refer to
	}
	return m
}

// initial returns the state before the first packet.
func (m *machine) initial(b *bound) *world {
	w := &world{sender: m.sender.AppendState(nil, instant), left: b.faults, n: maxMembers}
	for i := range maxMembers {
		m.receiver.LoadState(m.empty, instant)
		unready := m.recvs > 0 && i < int(b.faults.unready)
		for id := range m.recvs {
			if !unready || id < m.recvs-1 {
				m.post(id)
			}
		}
		w.members[i] = member{state: m.receiver.AppendState(nil, instant), current: true, unready: unready, liar: i == maxMembers-1 && b.faults.lies > 0}
	}
	w.left.unready = 0
	return w
}

// senderState and receiverState save the state of the loaded queue pair.
func (m *machine) senderState(now time.Duration) []byte {
	at := len(m.arena)
	m.arena = m.sender.AppendState(m.arena, now)
	return m.arena[at:]
}

func (m *machine) receiverState() []byte {
	at := len(m.arena)
	m.arena = m.receiver.AppendState(m.arena, instant)
	return m.arena[at:]
}

func (m *machine) post(id int) {
	if err := m.receiver.PostRecv(uint64(id), [][]byte{make([]byte, messagePackets*mtu)}); err != nil {
		panic(err)
	}
}

// received returns how many packets a member has executed.
func (m *machine) received(b *member) int {
	m.receiver.LoadState(b.state, instant)
	_, epsn := m.receiver.PSNs()
	return epsn.Sub(startPSN)
}

// headers returns the packet's headers.
func (p packet) headers() rocev2.Headers {
	h := rocev2.Headers{BTH: rocev2.BTH{PSN: p.wire(), AckReq: p.ack, PKey: rocev2.DefaultPKey}}
	switch p.wire().Sub(startPSN) {
	case 0:
		h.Opcode = rocev2.WriteFirst
		h.RETH = rocev2.RETH{VA: 4096, RKey: 1, Length: messagePackets * mtu}
	case 1:
		h.Opcode = rocev2.WriteLast
	case 2:
		h.Opcode = rocev2.SendFirst
	default:
		h.Opcode = rocev2.SendLast
	}
	return h
}

// done reports whether all work has completed.
func (m *machine) done(w *world) bool {
	m.sender.LoadState(w.sender, instant)
	_, posted := m.sender.Unacknowledged()
	return posted == 0
}

func (b *bound) newMerger() merger {
	if b.merger == nil {
		return goMerger{}
	}
	m, err := b.merger()
	if err != nil {
		panic(err)
	}
	return m
}
