package main

import (
	"container/heap"
	"fmt"
	"maps"
	"math/rand/v2"
	"time"

	"github.com/mcrdma/mcrdma/pkg/ackmerge"
	"github.com/mcrdma/mcrdma/pkg/qp"
	"github.com/mcrdma/mcrdma/pkg/qp/rc"
	"github.com/mcrdma/mcrdma/pkg/rocev2"
)

// A run is one random world, far beyond the bounds of the exploration: up to 16 members, hundreds
// of messages of any length, bursts of faults, in virtual time. It is determined by its seed and
// the faults that are left out.
type run struct {
	seed    uint64
	without map[int]bool // faults, by number, that do not happen
	merger  merger

	rng     *rand.Rand
	now     time.Duration
	quiet   time.Duration // nothing goes wrong after that
	burst   time.Duration // faults happen until then
	events  schedule
	nfaults int // so far
	log     []string
	stats   runStats

	start     rocev2.PSN
	sender    *rc.QP
	wake      time.Duration // of the sender
	posted    int
	completed int
	messages  int
	members   []*runMember
	config    ackmerge.Config
	state     ackmerge.State
	down      bool // the switch has no rules
	broken    error
}

type runMember struct {
	qp       *rc.QP
	mem      scratch
	received int // packets
	epsn     rocev2.PSN
	dead     bool
	liar     bool
	recvs    int
}

type runStats struct{ Packets, Faults, Completed, Removed, Lied, Restarts, RNRs int }

const (
	runMTU     = 256
	runMessage = 12 * runMTU
)

type scratch struct{ b [runMessage]byte }

func (s *scratch) Remote(_ uint32, _ uint64, n int, _ qp.Access) ([]byte, bool) { return s.b[:n], true }

// random runs a seed. An error says what broke; the number of faults counts all that could have
// happened.
func random(seed uint64, m merger, without map[int]bool) (*run, error) {
	r := &run{seed: seed, without: without, merger: m, rng: rand.New(rand.NewPCG(seed, 0x5151))}
	r.setUp()
	r.pump()
	for len(r.events) > 0 && r.broken == nil && r.completed < r.messages {
		e := heap.Pop(&r.events).(timed)
		r.now = e.at
		e.do()
		if r.now > r.quiet+time.Minute {
			return r, fmt.Errorf("L1: %d of %d messages complete a minute after the last fault", r.completed, r.messages)
		}
	}
	if r.broken == nil && r.completed < r.messages {
		return r, fmt.Errorf("L1: %d of %d messages complete, and nothing happens any more", r.completed, r.messages)
	}
	return r, r.broken
}

func (r *run) setUp() {
	n := 1 + r.rng.IntN(ackmerge.MaxMembers)
	r.start = rocev2.PSN(rocev2.Mask24 - r.rng.IntN(300))
	r.messages = 20 + r.rng.IntN(200)
	r.quiet = time.Duration(1+r.rng.IntN(40)) * time.Millisecond
	r.config = ackmerge.Config{Members: uint16(1<<n - 1), Epoch: 1, InitialPSN: r.start}
	cfg := rc.Config{MaxSendWR: 16, MaxRecvWR: 64, MaxSGE: 1, SignalAll: true, PathMTU: runMTU, SQPSN: r.start, RQPSN: r.start,
		Timeout: 9, RetryCnt: 7, RNRRetry: 7, MinRNRTimer: 1 + uint8(r.rng.IntN(8)), Access: qp.AccessRemoteWrite,
		Window: 1 + r.rng.IntN(64), CC: rc.CCParams{Disable: r.rng.IntN(2) == 0}}
	r.sender = rc.NewQP(cfg, &scratch{})
	r.sender.StartSend(&cfg)
	for range n {
		b := &runMember{epsn: r.start}
		b.qp = rc.NewQP(cfg, &b.mem)
		r.members = append(r.members, b)
		r.post(b, 3)
	}
	for range r.rng.IntN(4) {
		at := time.Duration(r.rng.Int64N(int64(r.quiet)))
		switch r.rng.IntN(4) {
		case 0:
			r.at(at, func() { r.burst = r.now + time.Millisecond })
		case 1:
			r.at(at, r.kill)
		case 2:
			r.at(at, r.lie)
		default:
			r.at(at, r.restart)
		}
	}
}

func (r *run) post(b *runMember, n int) {
	for range n {
		b.recvs++
		if err := b.qp.PostRecv(uint64(b.recvs), [][]byte{b.mem.b[:]}); err != nil {
			b.recvs--
			return
		}
	}
}

// fault decides whether something goes wrong, with probability 1 in n.
func (r *run) fault(n int, format string, args ...any) bool {
	if r.now >= r.quiet {
		return false
	}
	if r.now < r.burst {
		n = 3
	}
	if r.rng.IntN(n) != 0 {
		return false
	}
	r.nfaults++
	if r.without[r.nfaults] {
		return false
	}
	r.stats.Faults++
	if len(r.log) < 200 {
		r.log = append(r.log, fmt.Sprintf("fault %d at %v: ", r.nfaults, r.now)+fmt.Sprintf(format, args...))
	}
	return true
}

// kill makes a member stop answering; some time later it is removed.
func (r *run) kill() {
	i := r.rng.IntN(len(r.members))
	if r.honest()&^(1<<i) == 0 || !r.fault(1, "member %d dies", i+1) {
		return
	}
	r.members[i].dead = true
	r.at(r.now+time.Duration(r.rng.IntN(3000))*time.Microsecond, func() {
		r.config.Members &^= 1 << i
		r.stats.Removed++
	})
}

// lie makes a member acknowledge packets that it does not have, until it is removed.
func (r *run) lie() {
	i := r.rng.IntN(len(r.members))
	if r.honest()&^(1<<i) == 0 || !r.fault(1, "member %d lies", i+1) {
		return
	}
	r.members[i].liar = true
	n := 1 + r.rng.IntN(20)
	for range n {
		r.at(r.now+time.Duration(r.rng.IntN(2000))*time.Microsecond, func() { r.claim(i) })
	}
	r.at(r.now+2*time.Millisecond, func() {
		r.config.Members &^= 1 << i
		r.stats.Lied++
	})
}

// claim sends one lie, at any distance from what the others have.
func (r *run) claim(i int) {
	c := claims[r.rng.IntN(len(claims))] + r.rng.IntN(100) - 50
	h := rocev2.Headers{BTH: rocev2.BTH{Opcode: rocev2.Acknowledge, PSN: r.start.Add(r.slowest() + c)},
		AETH: rocev2.AETH{Syndrome: []rocev2.Syndrome{rocev2.AckNoLimit, rocev2.NakSequence}[r.rng.IntN(2)]}}
	r.answer(i, h)
}

// honest returns the current members that do not lie.
func (r *run) honest() (members uint16) {
	for i, b := range r.members {
		if !b.liar && !b.dead {
			members |= r.config.Members & (1 << i)
		}
	}
	return members
}

// restart makes the switch lose its state. Later it is programmed again, with or without an initial
// PSN that all have passed.
func (r *run) restart() {
	if r.down || !r.fault(1, "the switch restarts") {
		return
	}
	r.stats.Restarts++
	r.down, r.state = true, ackmerge.State{}
	r.at(r.now+time.Duration(r.rng.IntN(1500))*time.Microsecond, func() {
		r.down = false
		r.config.Epoch++
		if r.config.Learn = r.rng.IntN(2) == 0; !r.config.Learn {
			r.config.InitialPSN = r.start.Add(r.rng.IntN(r.slowest() + 1))
		}
	})
}

func (r *run) slowest() int {
	least := 1 << 40
	for i, b := range r.members {
		if r.config.Members>>i&1 != 0 && !b.liar {
			least = min(least, b.received)
		}
	}
	return least
}

// pump posts, and sends what the sender would send now.
func (r *run) pump() {
	for r.posted < r.messages {
		wr := qp.SendWR{ID: uint64(r.posted), Opcode: qp.OpSend}
		if r.posted%3 != 0 {
			wr.Opcode = qp.OpWrite
		}
		if r.sender.PostSend(&wr, [][]byte{make([]byte, r.rng.IntN(runMessage))}) != nil {
			break
		}
		r.posted++
	}
	var out rc.Out
	for r.sender.Next(r.now, &out) {
		in := rc.In{Headers: out.Headers, Payload: make([]byte, out.PayloadLen)}
		r.carry("data of the sender", func() { r.copy(in) })
	}
	var wc qp.WC
	for r.sender.NextSendWC(&wc) {
		if wc.Status != qp.StatusSuccess { // no burst, death or restart is as long as seven timers
			r.broken = fmt.Errorf("L1: message %d failed at %v: %v", wc.ID, r.now, wc.Status)
			return
		}
		r.completed++
		r.stats.Completed++
	}
	if d := r.sender.Deadline(); d != rc.Never && d != r.wake {
		r.wake = max(d, r.now)
		r.at(r.wake, func() {
			r.sender.Tick(r.now)
			r.pump()
		})
	}
}

// copy is the switch's replication.
func (r *run) copy(in rc.In) {
	for i, b := range r.members {
		if r.down || b.dead || r.config.Members>>i&1 == 0 {
			continue
		}
		r.carry(fmt.Sprintf("PSN %d to member %d", in.PSN, i+1), func() { r.receive(i, b, in) })
	}
}

func (r *run) receive(i int, b *runMember, in rc.In) {
	if b.dead {
		return
	}
	in.CE = r.rng.IntN(100) == 0
	b.qp.Handle(&in, r.now)
	_, epsn := b.qp.PSNs()
	b.received += epsn.Sub(b.epsn)
	b.epsn = epsn
	var wc qp.WC
	for b.qp.NextRecvWC(&wc) && !r.fault(5, "member %d is slow to post receives", i+1) {
		r.post(b, 1)
	}
	var out rc.Out
	for b.qp.Next(r.now, &out) {
		h := out.Headers
		if h.AETH.Syndrome.IsRNR() && h.Opcode == rocev2.Acknowledge {
			r.stats.RNRs++
			r.at(r.now+time.Millisecond, func() { r.post(b, 3) })
		}
		r.carry(fmt.Sprintf("the answer of member %d", i+1), func() { r.answer(i, h) })
	}
}

// answer is the switch's merging.
func (r *run) answer(i int, h rocev2.Headers) {
	if r.down {
		return
	}
	a := ackmerge.Answer{Member: i, CNP: h.Opcode == rocev2.CNP, Syndrome: h.AETH.Syndrome, PSN: h.PSN, MSN: h.AETH.MSN}
	said, verdict := r.merger.merge(&r.config, &r.state, a)
	if verdict != ackmerge.Pass {
		return
	}
	if !a.CNP {
		acked := said.PSN
		if !said.Syndrome.IsAck() {
			acked = acked.Add(-1)
		}
		slowest := r.slowest()
		if ahead := acked.Sub(r.start.Add(slowest - 1)); ahead > 0 {
			r.broken = fmt.Errorf("S1: at %v the sender gets ACKs for %d packets more than the slowest member has", r.now, ahead)
			return
		}
		h.PSN, h.AETH = said.PSN, rocev2.AETH{Syndrome: said.Syndrome, MSN: said.MSN}
	}
	r.carry("the merged answer", func() {
		r.sender.Handle(&rc.In{Headers: h}, r.now)
		r.pump()
	})
}

// carry sends a packet over a link: late, twice, or not at all.
func (r *run) carry(what string, deliver func()) {
	r.stats.Packets++
	if r.fault(50, "%s is lost", what) {
		return
	}
	delay := 5 * time.Microsecond
	if r.fault(50, "%s is late", what) {
		delay += time.Duration(r.rng.IntN(200)) * time.Microsecond
	}
	r.at(r.now+delay, deliver)
	if r.fault(100, "%s is doubled", what) {
		r.at(r.now+delay+time.Duration(r.rng.IntN(100))*time.Microsecond, deliver)
	}
}

func (r *run) at(t time.Duration, do func()) {
	heap.Push(&r.events, timed{t, len(r.events), do})
}

type timed struct {
	at  time.Duration
	seq int
	do  func()
}

// A schedule is a heap of future events.
type schedule []timed

func (s schedule) Len() int { return len(s) }
func (s schedule) Less(i, j int) bool {
	return s[i].at < s[j].at || s[i].at == s[j].at && s[i].seq < s[j].seq
}
func (s schedule) Swap(i, j int) { s[i], s[j] = s[j], s[i] }

// Push adds an event, for package heap.
func (s *schedule) Push(x any) { *s = append(*s, x.(timed)) }

// Pop removes the last, for package heap.
func (s *schedule) Pop() any {
	old := *s
	e := old[len(old)-1]
	*s = old[:len(old)-1]
	return e
}

// shrink searches a small set of faults with which a seed still breaks: it leaves out ever smaller
// parts of them.
func shrink(seed uint64, newMerger func() merger) (*run, error) {
	without := map[int]bool{}
	best, err := random(seed, newMerger(), without)
	if err == nil {
		return best, nil
	}
	for part := max(1, best.nfaults/2); part > 0; {
		fewer := false
		for from := 1; from <= best.nfaults; from += part {
			try := maps.Clone(without)
			for k := from; k < from+part; k++ {
				try[k] = true
			}
			if len(try) == len(without) {
				continue
			}
			if r, e := random(seed, newMerger(), try); e != nil && r.stats.Faults < best.stats.Faults {
				best, err, without, fewer = r, e, try, true
			}
		}
		if !fewer {
			part /= 2
		}
	}
	return best, err
}
