package engine

import (
	"container/heap"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"
	"time"
)

// A simulator runs a whole group of engines in virtual time. Each member has a
// full-duplex link, which blocks to or from different peers share equally. The
// bytes are symbols: each block carries what the root put there.
type simulator struct {
	t       testing.TB
	rng     *rand.Rand
	now     time.Duration
	seq     int
	events  simEvents
	members []*simMember
	last    map[simQueue]time.Duration
	wires   map[simQueue][]*flow // what each connection carries, one after the other
	steps   int                  // events delivered and actions carried out
	trace   func(format string, args ...any)

	// What the test chooses.
	blockTime time.Duration              // of a block of full size
	factor    func(from, to int) float64 // how much slower a link is; nil: 1
	latency   func() time.Duration       // of everything
	words     int                        // … times this for control messages, if it isn't 0
	kill      map[int][]int              // which members die before which step
	killedAt  time.Duration
	lied      bool                                         // a member has
	pause     func(m int, now time.Duration) time.Duration // until when a member does nothing
	script    []int64                                      // sizes of the messages
	provide   func(m int, number int64) (wait time.Duration, refuse bool)
	tamper    func(from, to int, a *Action) // may change what goes over the wire
}

// A simMember is one engine and the memory of its application.
type simMember struct {
	*Engine
	dead, ended bool
	endedAt     time.Duration
	out, in     []*flow
	posted      [][]Span // by peer
	memory      map[int64]map[int64]symbol
	spare       symbol
	slots       []symbol      // the ring
	leaving     map[int64]int // blocks of each message that are on their way out
	sizes       map[int64]int64
	complete    int64
	closed      bool
	joined      bool
	finishedAt  []time.Duration // of each message
	everywhere  int64           // what the root was told last
	counted     int             // control messages about that
	held        int             // posted receives now, and
	mostHeld    int             // at most
}

// A symbol stands for a block's bytes.
type symbol struct {
	message, off int64
	length       int
}

// A simQueue is a stream in which order is kept.
type simQueue struct {
	from, to int
	kind     byte
}

type simEvent struct {
	at   time.Duration
	seq  int
	from int
	to   int // whose event it is
	do   func(m *simMember)
	kind byte
	wire func() // if not nil, it is only a call of this
}

type simEvents []*simEvent

func (q simEvents) Len() int { return len(q) }
func (q simEvents) Less(i, j int) bool {
	return q[i].at < q[j].at || q[i].at == q[j].at && q[i].seq < q[j].seq
}
func (q simEvents) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q *simEvents) Push(x any)   { *q = append(*q, x.(*simEvent)) }
func (q *simEvents) Pop() any {
	old := *q
	e := old[len(old)-1]
	*q = old[:len(old)-1]
	return e
}

func memberNames(n int) []string {
	var s []string
	for i := range n {
		s = append(s, "m"+strconv.Itoa(i))
	}
	return s
}

func newSimulator(t testing.TB, seed uint64, cfg Config, n int) *simulator {
	return newSimulatorOf(t, seed, cfg, n, func(int, *Config) {})
}

func newSimulatorOf(t testing.TB, seed uint64, cfg Config, n int, adapt func(i int, c *Config)) *simulator {
	s := &simulator{
		t: t, rng: rand.New(rand.NewPCG(seed, 7)), last: map[simQueue]time.Duration{}, wires: map[simQueue][]*flow{},
		blockTime: time.Millisecond, trace: func(string, ...any) {},
	}
	s.latency = func() time.Duration { return 0 }
	for i := range n {
		c := cfg
		c.Self = i
		if c.Members == nil {
			c.Members = memberNames(n)
		}
		adapt(i, &c)
		e, err := New(c)
		if err != nil {
			t.Fatal(err)
		}
		s.members = append(s.members, &simMember{Engine: e, posted: make([][]Span, n), memory: map[int64]map[int64]symbol{}, sizes: map[int64]int64{}, leaving: map[int64]int{}})
	}
	return s
}

// after makes something happen at a member, not before what the same queue holds
// already.
func (s *simulator) after(delay time.Duration, from, to int, kind byte, do func(m *simMember)) {
	at := s.now + delay
	q := simQueue{from, to, kind}
	at = max(at, s.last[q])
	s.last[q] = at
	s.seq++
	heap.Push(&s.events, &simEvent{at: at, seq: s.seq, from: from, to: to, kind: kind, do: do})
}

// run runs until nothing more happens.
func (s *simulator) run() {
	for i := range s.members {
		s.after(s.latency(), i, i, 'i', func(*simMember) {})
	}
	for len(s.events) > 0 {
		ev := heap.Pop(&s.events).(*simEvent)
		s.now = ev.at
		if ev.wire != nil {
			ev.wire()
			continue
		}
		m := s.members[ev.to]
		if m.dead || m.ended {
			continue
		}
		if s.pause != nil {
			if until := s.pause(ev.to, s.now); until > s.now {
				ev.at = until
				heap.Push(&s.events, ev)
				continue
			}
		}
		if !s.step(ev.to) {
			continue
		}
		ev.do(m)
		s.perform(ev.to)
		if s.steps > 10_000_000 {
			s.t.Fatal("the simulation doesn't end")
		}
	}
}

// step counts, kills members that are due to die, and reports whether the member is alive.
func (s *simulator) step(i int) bool {
	s.steps++
	for _, victim := range s.kill[s.steps] {
		if m := s.members[victim]; !m.dead && !m.ended {
			s.die(victim)
		}
	}
	return !s.members[i].dead
}

// die kills a member: of what it sent and others have not yet seen, each gets a
// part, then Down.
func (s *simulator) die(i int) {
	s.trace("%v: member %d dies", s.now, i)
	s.members[i].dead, s.killedAt = true, s.now
	cut := map[simQueue]bool{}
	all := slices.Clone(s.events)
	slices.SortFunc(all, func(a, b *simEvent) int { return a.seq - b.seq })
	for _, ev := range all {
		q := simQueue{ev.from, ev.to, ev.kind}
		if ev.from == i && ev.to != i {
			if cut[q] || s.rng.IntN(3) == 0 {
				cut[q] = true
				ev.do = func(*simMember) {}
			}
		}
	}
	s.hangUp(i)
}

// hangUp tells all others that a member's connections ended, after all that it sent.
func (s *simulator) hangUp(i int) {
	for j := range s.members {
		if j == i {
			continue
		}
		at := s.now + s.latency()
		for _, kind := range []byte{'t', 'b', 'r', 's', 'u', 'f'} {
			at = max(at, s.last[simQueue{i, j, kind}])
		}
		s.after(at-s.now, i, j, 'd', func(m *simMember) { m.Down(i, fmt.Errorf("member %d is gone", i)) })
	}
}

// perform carries out a member's actions.
func (s *simulator) perform(i int) {
	m := s.members[i]
	for {
		a, ok := m.Next()
		if !ok {
			return
		}
		if !s.step(i) {
			return
		}
		s.trace("%v: member %d: %+v", s.now, i, a)
		if s.tamper != nil {
			s.tamper(i, a.Peer, &a)
		}
		switch a.Kind {
		case PostRecv:
			m.posted[a.Peer] = append(m.posted[a.Peer], a.Span)
			m.held++
			m.mostHeld = max(m.mostHeld, m.held)
			s.after(s.latency(), i, a.Peer, 'r', func(p *simMember) { p.Ready(i) })
		case SendBlock:
			s.send(i, a)
		case Tell:
			if a.Peer >= len(s.members) {
				continue // there is no such member, whatever this one thinks
			}
			msg := slices.Clone(a.Msg)
			if kind(msg[0]) == kindCount {
				m.counted++
			}
			s.after(s.latency()*time.Duration(max(1, s.words)), i, a.Peer, 't', func(p *simMember) { p.Told(i, msg) })
		case Joined:
			m.joined = true
			if i == 0 {
				s.begin(m)
			}
		case Open:
			s.open(i, a)
		case PutSmall:
			sym, imm := symbol{a.Span.Message, 0, a.Span.Len}, a.Imm
			s.after(s.latency(), i, a.Peer, 'u', func(p *simMember) {
				p.slots = append(p.slots, sym)
				p.Small(i, imm, sym.length)
			})
		case CopySmall:
			m.store(a.Span, m.slots[0])
			m.slots = m.slots[1:]
		case FreeSmall:
			s.after(s.latency(), i, 0, 'f', func(p *simMember) { p.Freed(i, int(a.Size)) })
		case Copy:
			m.store(a.Span, m.spare)
		case Complete:
			s.completed(i, a.Span.Message)
		case Everywhere:
			s.everywhere(i, a.Size)
		case Closed, Failed:
			m.ended, m.endedAt, m.closed = true, s.now, a.Kind == Closed
			s.hangUp(i)
			return
		}
	}
}

// begin gives the root all messages.
func (s *simulator) begin(m *simMember) {
	for j, size := range s.script {
		if err := m.Send(size); err != nil {
			s.t.Fatal(err)
		}
		m.sizes[int64(j)] = size
	}
	m.Close()
}

func (m *simMember) store(span Span, sym symbol) {
	if m.memory[span.Message] == nil {
		m.memory[span.Message] = map[int64]symbol{}
	}
	m.memory[span.Message][span.Off] = sym
}

// send takes a block to its peer.
func (s *simulator) send(i int, a Action) {
	m, to := s.members[i], a.Peer
	sym := symbol{a.Span.Message, a.Span.Off, a.Span.Len}
	if i != 0 {
		sym = m.memory[a.Span.Message][a.Span.Off]
	}
	sym.length = a.Span.Len
	work := float64(s.blockTime) * float64(a.Span.Len) / float64(m.BlockSize())
	if s.factor != nil {
		work *= s.factor(i, to)
	}
	f := &flow{from: i, to: to, left: work}
	imm := a.Imm
	m.leaving[a.Span.Message]++
	f.over = func() {
		s.after(s.latency(), to, i, 's', func(m *simMember) {
			m.leaving[a.Span.Message]--
			m.Sent(to)
		})
		s.after(s.latency(), i, to, 'b', func(p *simMember) { p.arrived(s, i, imm, sym) })
	}
	if work == 0 && len(s.wires[simQueue{from: i, to: to}]) == 0 {
		f.over()
		return
	}
	conn := simQueue{from: i, to: to}
	s.wires[conn] = append(s.wires[conn], f)
	if len(s.wires[conn]) == 1 {
		s.start(f)
	}
}

// start lets a flow begin that is the first on its connection.
func (s *simulator) start(f *flow) {
	f.since = s.now
	from, to := s.members[f.from], s.members[f.to]
	from.out, to.in = append(from.out, f), append(to.in, f)
	s.share(f)
}

// A flow is a block on its way.
type flow struct {
	from, to int
	left     float64 // nanoseconds that the rest takes at the full rate
	rate     float64
	since    time.Duration
	version  int
	over     func()
}

// share updates the rates of all flows at the two ends of one.
func (s *simulator) share(f *flow) {
	for _, flows := range [][]*flow{s.members[f.from].out, s.members[f.to].in} {
		for _, g := range flows {
			s.rate(g)
		}
	}
}

func (s *simulator) rate(g *flow) {
	rate := min(1/float64(len(s.members[g.from].out)), 1/float64(len(s.members[g.to].in)))
	if rate == g.rate {
		return
	}
	g.left -= g.rate * float64(s.now-g.since)
	g.rate, g.since = rate, s.now
	g.version++
	version := g.version
	s.seq++
	heap.Push(&s.events, &simEvent{at: s.now + time.Duration(math.Ceil(g.left/rate)), seq: s.seq, wire: func() {
		if g.version != version {
			return
		}
		same := func(f *flow) bool { return f == g }
		from, to := s.members[g.from], s.members[g.to]
		from.out, to.in = slices.DeleteFunc(from.out, same), slices.DeleteFunc(to.in, same)
		s.share(g)
		if !from.dead {
			g.over()
		}
		conn := simQueue{from: g.from, to: g.to}
		s.wires[conn] = s.wires[conn][1:]
		if len(s.wires[conn]) > 0 {
			s.start(s.wires[conn][0])
		}
	}})
}

// arrived puts a block where the member wants it.
func (m *simMember) arrived(s *simulator, from int, imm uint32, sym symbol) {
	if len(m.posted[from]) > 0 {
		span := m.posted[from][0]
		m.posted[from] = slices.Delete(m.posted[from], 0, 1)
		m.held--
		if span.Message == Spare {
			m.spare = sym
		} else {
			m.store(span, sym)
		}
	}
	m.Received(from, imm, sym.length)
}

// open asks the application for memory.
func (s *simulator) open(i int, a Action) {
	m := s.members[i]
	m.sizes[a.Span.Message] = a.Size
	for before := m.complete; before < a.Span.Message; before++ {
		if size := m.sizes[before]; size <= int64(m.cfg.Prompt) && !s.lied {
			s.t.Fatalf("member %d: message %d is opened when message %d of %d bytes isn't complete", i, a.Span.Message, before, size)
		}
	}
	if s.provide == nil {
		m.Provide()
		return
	}
	wait, refuse := s.provide(i, a.Span.Message)
	answer := func(m *simMember) {
		if refuse {
			m.Refuse("no room")
		} else {
			m.Provide()
		}
	}
	if wait == 0 {
		answer(m)
		return
	}
	s.after(wait, i, i, 'p', answer)
}

// completed checks a message that a member says is complete.
func (s *simulator) completed(i int, number int64) {
	m := s.members[i]
	if number != m.complete {
		s.t.Fatalf("member %d: message %d complete after %d", i, number, m.complete-1)
	}
	m.complete++
	m.finishedAt = append(m.finishedAt, s.now)
	if n := m.leaving[number]; n != 0 {
		s.t.Fatalf("member %d: message %d is complete, but %d blocks of it are on their way", i, number, n)
	}
	if s.lied {
		return // nothing is known of what liars sent
	}
	if m.sizes[number] != s.script[number] {
		s.t.Fatalf("member %d: message %d has %d bytes instead of %d", i, number, m.sizes[number], s.script[number])
	}
	if i == 0 {
		return
	}
	at := int64(0)
	for at < m.sizes[number] {
		sym, ok := m.memory[number][at]
		if !ok || sym.message != number || sym.off != at || sym.length == 0 {
			s.t.Fatalf("member %d: message %d is torn at %d: %+v", i, number, at, sym)
		}
		at += int64(sym.length)
	}
	if at != m.sizes[number] {
		s.t.Fatalf("member %d: message %d has %d bytes instead of %d", i, number, at, m.sizes[number])
	}
}

// everywhere checks that all have what one member says all have.
func (s *simulator) everywhere(i int, n int64) {
	m := s.members[i]
	if i != 0 || !m.cfg.Everywhere || n <= m.everywhere {
		s.t.Fatalf("member %d says that all have %d messages, after %d", i, n, m.everywhere)
	}
	m.everywhere = n
	for j, o := range s.members {
		if o.complete < n && !s.lied {
			s.t.Fatalf("member %d has %d messages, and all are said to have %d", j, o.complete, n)
		}
	}
}

// check checks what must hold at the end, whatever happened.
func (s *simulator) check() {
	s.t.Helper()
	clean := false
	for i, m := range s.members {
		if m.dead {
			continue
		}
		if !m.ended {
			s.t.Fatalf("member %d hangs: phase %d, %d of %d complete, spare %d, recvs %v, sendings %v", i, m.phase, m.Engine.complete, m.total, m.Engine.spare, m.recvs, m.sendings)
		}
		clean = clean || m.closed
		if f := m.Failure(); m.closed == (f != nil) {
			s.t.Fatalf("member %d: closed %v, failure %v", i, m.closed, f)
		} else if f != nil && f.Complete != m.complete {
			s.t.Fatalf("member %d says that %d messages are complete, and got %d", i, f.Complete, m.complete)
		}
	}
	for i, m := range s.members {
		if clean && m.complete != int64(len(s.script)) {
			s.t.Fatalf("a clean close, but member %d has %d of %d messages", i, m.complete, len(s.script))
		}
		if clean && m.cfg.Everywhere && i == 0 && m.everywhere != m.complete && m.closed {
			s.t.Fatalf("a clean close, but all are said to have %d of %d messages", m.everywhere, m.complete)
		}
		if !s.lied && (int64(m.counted) > m.complete || m.counted > 0 && !s.members[0].cfg.Everywhere) {
			s.t.Fatalf("member %d told %d times what it has, %d messages", i, m.counted, m.complete)
		}
		if m.mostHeld > max(samePeer, 1+m.cfg.Ahead) {
			s.t.Fatalf("member %d had %d receives posted", i, m.mostHeld)
		}
	}
}

// checkClean checks that all members ended well.
func (s *simulator) checkClean() {
	s.t.Helper()
	s.check()
	for i, m := range s.members {
		if !m.closed {
			s.t.Fatalf("member %d: %v", i, m.Failure())
		}
	}
}
