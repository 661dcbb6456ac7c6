package main

import (
	"errors"
	"fmt"

	"github.com/mcrdma/mcrdma/pkg/ackmerge"
	"github.com/mcrdma/mcrdma/pkg/qp/rc"
	"github.com/mcrdma/mcrdma/pkg/rocev2"
)

// errImpossible: the action is impossible here, such as an outcome for a merged answer where there
// is none.
var errImpossible = errors.New("cannot happen")

// canSend reports whether the loaded sender would send now.
func (m *machine) canSend() bool { return m.sender.Deadline() <= instant }

// timers returns what happens when nothing else does: held packets arrive after all, or the
// sender's timer expires, or the wait after an RNR NAK ends. Where timers may be early they may
// expire at any time.
func (m *machine) timers(w *world) []action {
	busy := m.canSend()
	for i := range w.n {
		busy = busy || w.members[i].answers.n > 0
	}
	if !busy {
		for i := range w.n {
			if w.members[i].held.n > 0 {
				return []action{{kind: late, member: byte(i)}}
			}
		}
		if w.held.n > 0 {
			return []action{{kind: lateMerged}}
		}
	}
	d := m.sender.Deadline()
	switch {
	case d == rc.Never || d <= instant:
		return nil
	case !busy && d < instant+ackTimeout:
		return []action{{kind: retry}}
	case !busy:
		return []action{{kind: timeout}}
	case w.left.earlyTimeouts > 0:
		return []action{{kind: earlyTimeout}}
	}
	return nil
}

// fair returns what happens next if nothing goes wrong any more: repairs first (a dead or lying
// member is removed), then packets in flight, the sender, and its timers last.
func (m *machine) fair(w *world) (action, bool) {
	m.sender.LoadState(w.sender, instant)
	if m.canSend() {
		return action{kind: send}, true
	}
	for i := range w.n {
		if b := &w.members[i]; (b.dead || b.liar) && b.current {
			return action{kind: remove, member: byte(i)}, true
		}
	}
	for i := range w.n {
		if w.members[i].answers.n > 0 {
			return action{kind: answer, member: byte(i)}, true
		}
	}
	for _, a := range m.timers(w) {
		return a, true
	}
	return action{}, false
}

// take takes an action. An error other than errImpossible says what it broke.
func (m *machine) take(w *world, a action) error {
	f := &w.left
	b := &w.members[a.member]
	switch a.kind {
	case send, loseSend:
		m.sender.LoadState(w.sender, instant)
		m.sender.Next(instant, &m.out)
		w.sender = m.senderState(instant)
		if a.kind == loseSend {
			f.losses--
			return nil
		}
		m.replicate(w, a)
	case late:
		m.receive(b, b.held.take(0))
	case answer:
		p := b.answers.take(a.over)
		if a.over > 0 {
			f.reorderings--
		}
		return m.answer(w, int(a.member), p, a.outcome(0), a.anew)
	case lie:
		f.lies--
		return m.answer(w, int(a.member), a.claim(), arrives, a.anew)
	case loseAnswer:
		f.losses--
		b.answers.take(0)
	case doubleAnswer:
		f.duplicates--
		return m.answer(w, int(a.member), b.answers.p[0], arrives, false)
	case lateMerged:
		return m.tell(w, w.held.take(0))
	case timeout, earlyTimeout, retry:
		if a.kind == earlyTimeout {
			f.earlyTimeouts--
		}
		m.sender.LoadState(w.sender, instant)
		at := m.sender.Deadline()
		m.sender.Tick(at)
		w.sender = m.senderState(at)
		return m.failed()
	default:
		m.manage(w, b, a.kind)
	}
	return nil
}

// manage takes actions that are not about packets.
func (m *machine) manage(w *world, b *member, k kind) {
	switch k {
	case die:
		w.left.deaths--
		b.dead = true
		b.held, b.answers = queue{}, queue{}
	case remove:
		if w.left.removals > 0 {
			w.left.removals--
		}
		b.current = false
	}
}

// reaches reports whether the switch sends copies to member i, and the member can receive them.
func (w *world) reaches(i int) bool {
	return w.members[i].current && !w.members[i].dead
}

// replicate copies the packets in m.out to the current members.
func (m *machine) replicate(w *world, a action) {
	p := packet{psn: encodePSN(m.out.PSN), ack: m.out.AckReq}
	if want := p.headers(); want.Opcode != m.out.Opcode {
		panic(fmt.Sprintf("the sender sends %v, the model expected %v", m.out.Opcode, want.Opcode))
	}
	for i := range w.n {
		if !w.reaches(i) {
			continue
		}
		b, x := &w.members[i], a.outcome(i)
		w.left.spend(x)
		late := b.held
		for range x.times() {
			m.receive(b, p)
		}
		if x.times() > 0 { // has overtaken what was held
			b.held = queue{}
			for _, p := range late.all() {
				m.receive(b, p)
			}
		}
		if x == held || x == echoed {
			b.held.push(p)
		}
	}
}

// receive gives a packet to a member and sends its answer.
func (m *machine) receive(b *member, p packet) {
	m.receiver.LoadState(b.state, instant)
	in := rc.In{Headers: p.headers(), Payload: zeros[:]}
	m.receiver.Handle(&in, instant)
	for m.receiver.Next(instant, &m.reply) {
		b.answers.push(packet{psn: encodePSN(m.reply.PSN), syndrome: m.reply.AETH.Syndrome, msn: byte(m.reply.AETH.MSN)})
		if b.unready && m.reply.AETH.Syndrome.IsRNR() { // then it becomes ready
			m.post(m.recvs - 1)
			b.unready = false
		}
	}
	b.state = m.receiverState()
}

var zeros [mtu]byte

// answer gives an answer to the switch, and the merged answer, if any, to the sender.
func (m *machine) answer(w *world, i int, p packet, x outcome, anew bool) error {
	b := &w.members[i]
	if anew {
		w.left.restarts--
		w.learn, w.passed = m.relearn, ackmerge.Record{}
		for j := range w.n {
			w.members[j].record = ackmerge.Record{}
		}
	}
	if !b.liar {
		b.said = max(b.said, byte(p.acknowledges()))
	}
	c := ackmerge.Config{Epoch: m.epoch, InitialPSN: startPSN, Learn: w.learn}
	s := ackmerge.State{Passed: w.passed}
	for j := range w.n {
		s.Acked[j] = w.members[j].record
		if w.members[j].current {
			c.Members |= 1 << j
		}
	}
	said, verdict := m.merger.merge(&c, &s, ackmerge.Answer{Member: i, Syndrome: p.syndrome, PSN: p.wire(), MSN: uint32(p.msn)})
	w.passed = s.Passed
	for j := range w.n {
		w.members[j].record = s.Acked[j]
	}
	if verdict != ackmerge.Pass {
		if x != arrives {
			return errImpossible
		}
		return nil
	}
	out := packet{psn: encodePSN(said.PSN), syndrome: said.Syndrome, msn: byte(said.MSN)}
	if err := w.checkS1(out); err != nil {
		return err
	}
	w.left.spend(x)
	late := w.held
	for range x.times() {
		if err := m.tell(w, out); err != nil {
			return err
		}
	}
	if x.times() > 0 {
		w.held = queue{}
		for _, p := range late.all() {
			if err := m.tell(w, p); err != nil {
				return err
			}
		}
	}
	if x == held || x == echoed {
		w.held.push(out)
	}
	return nil
}

// times returns how often a packet arrives immediately.
func (f outcome) times() int {
	switch f {
	case lost, held:
		return 0
	case doubled:
		return 2
	}
	return 1
}

// acknowledges returns the number of packets that an answer acknowledges.
func (p packet) acknowledges() int {
	n := p.wire().Sub(startPSN)
	if p.syndrome.IsAck() {
		n++
	}
	return n
}

// checkS1: an answer to the sender acknowledges only what every current member that is no liar has
// acknowledged to the switch.
func (w *world) checkS1(p packet) error {
	for i := range w.n {
		if b := &w.members[i]; b.current && !b.liar && p.acknowledges() > int(b.said) {
			return fmt.Errorf("S1: the sender is told that %d packets arrived; member %d has said so of %d",
				p.acknowledges(), i+1, b.said)
		}
	}
	return nil
}

// tell gives a merged answer to the sender.
func (m *machine) tell(w *world, p packet) error {
	m.sender.LoadState(w.sender, instant)
	h := rocev2.Headers{BTH: rocev2.BTH{Opcode: rocev2.Acknowledge, PSN: p.wire()},
		AETH: rocev2.AETH{Syndrome: p.syndrome, MSN: uint32(p.msn)}}
	m.sender.Handle(&rc.In{Headers: h}, instant)
	w.sender = m.senderState(instant)
	return m.failed()
}

func (m *machine) failed() error {
	if status, _, failed := m.sender.Failed(); failed {
		return fmt.Errorf("L1: the sender's queue pair failed: %v", status)
	}
	return nil
}

func (a action) outcome(i int) outcome { return outcome(a.outcomes >> (3 * i) & 7) }

// spend subtracts an outcome from the remaining faults, if enough are left.
func (f *faults) spend(x outcome) bool {
	l, d, r := byte(0), byte(0), byte(0)
	switch x {
	case lost:
		l = 1
	case held:
		r = 1
	case doubled:
		d = 1
	case echoed:
		d, r = 1, 1
	}
	if f.losses < l || f.duplicates < d || f.reorderings < r {
		return false
	}
	f.losses, f.duplicates, f.reorderings = f.losses-l, f.duplicates-d, f.reorderings-r
	return true
}
