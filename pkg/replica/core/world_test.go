package core

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"time"
)

const blocks = 3

// A world is all around the nodes of a volume: hosts with disks and clocks, a network, the
// configuration manager, groups, clients. What is to happen is data: so a world can be cloned.
type world struct {
	rnd    *rand.Rand
	now    time.Duration // of the world; hosts have clocks of their own
	calm   bool          // no more faults
	steps  bool          // the explorer says what happens next
	trace  bool
	holds  func(Message) time.Duration // what a message takes longer; nil: nothing
	posts  func() time.Duration        // what a group's operation takes longer; nil: nothing
	syncs  time.Duration               // what a sync takes longer
	pieces int                         // of a store, if more than blocks
	tally  tally
	err    error
	order  uint64
	queue  []*event // which are not changed, as clones have them too
	hosts  []*host
	osdmap Map // the configuration manager's
	away   bool
	groups []*group
	data   map[Version]write // what entries hold
	lost   []ID              // their disks were replaced
	only   uint64            // the epoch in which the operator gave up what came before, but for one copy
	cut    [2]int            // hosts that cannot reach each other
	client client
}

type write struct{ block, value int }

// A host is a machine: its clock, its disk, and its node if that runs.
type host struct {
	id     ID
	rate   int64 // of its clock, in thousandths
	offset time.Duration
	frozen bool
	boasts bool // it claims to have on disk what it never got
	n      *Node
	mem    map[Version]bool // the entries whose content the process has got
	log    []Version        // as the process sees it, after tail
	tail   Version
	disk   disklog
	ops    []Persist // not synced
	store  store
	safe   store // as of the last sync
	chunk  int   // what the chunk holds that its node is given
}

// A store is a disk's blocks, and which entries it has.
type store struct {
	blocks [blocks]int
	to     uint64
}

type disklog struct {
	hard HardState
	tail Version
	log  []Version
}

// A group is an mcrdma group.
type group struct {
	iv      Interval
	lead    Member
	view    []Member // operations complete with it
	asked   []Member // the view that was asked for
	number  uint32   // of the latest view
	posted  []Post   // operations
	done    int      // of them, completed
	members []*place // also those that have left
	add     *place
	formed  bool
	ended   bool
}

// A place is a member's.
type place struct {
	m      Member
	from   int // the first operation that it gets
	got    int // operations that are in its memory: up to here
	told   int // … and told to its node
	closed bool
	gone   bool // the sender knows
}

type kind uint8

const (
	evMessage kind = iota
	evTick
	evSync
	evMap     // the manager's answer
	evPropose // arrives at the manager
	evRead    // the same
	evForm
	evLand // the group's operations at a member
	evComplete
	evLoss // the sender's side notices that a member is gone
	evEnd  // members notice that the group has ended
	evLeft
	evAdd
	evThaw
	evStart
	evReadDone
	evTell     // a node is told what has landed
	evViewLate // AnswerView has not come
)

type event struct {
	at    time.Duration
	order uint64
	kind  kind
	host  Member
	msg   Message
	seq   uint64
	m     Map
	g     int
	iv    Interval
	val   int
	text  string // its name
}

func (w *world) fail(format string, args ...any) {
	if w.err == nil {
		w.err = fmt.Errorf(format, args...)
	}
}

func (w *world) logf(format string, args ...any) {
	if w.trace {
		fmt.Printf("%8v  %s\n", w.now, fmt.Sprintf(format, args...))
	}
}

func (w *world) chance(percent int) bool { return !w.calm && !w.steps && w.rnd.IntN(100) < percent }

func (w *world) later(d time.Duration, e event) {
	if w.steps {
		if d = 0; e.kind == evViewLate {
			return
		}
	}
	w.order++
	e.at, e.order, e.text = w.now+d, w.order, ""
	w.queue = append(w.queue, &e)
}

// soon is how long something takes.
func (w *world) soon() time.Duration {
	if w.steps {
		return 0
	}
	d := time.Duration(100+w.rnd.IntN(5000)) * time.Microsecond
	if w.chance(3) {
		d += time.Duration(w.rnd.IntN(1500)) * time.Millisecond
	}
	return d
}

func (h *host) clock(now time.Duration) time.Duration {
	return time.Second + h.offset + now*time.Duration(h.rate)/1000
}

func (w *world) host(m Member) *host {
	h := w.hosts[m.ID]
	if h.n == nil || h.n.self != m {
		return nil
	}
	return h
}

func (w *world) config(id ID) Config {
	c := Config{Volume: 7, Self: id, Lease: 300 * time.Millisecond, Grace: 400 * time.Millisecond, Beat: 100 * time.Millisecond, Keep: 8, Limit: 40, Near: 4, Batch: 5}
	c.Up = w.osdmap.Up
	return c
}

func newWorld(hosts, acting, minSize int) *world {
	w := &world{data: map[Version]write{}, cut: [2]int{-1, -1}}
	w.osdmap = Map{Epoch: 1, MinSize: minSize}
	for i := range hosts {
		w.hosts = append(w.hosts, &host{id: ID(i), rate: 1000})
		w.osdmap.Up = append(w.osdmap.Up, ID(i))
		if i < acting {
			w.osdmap.Acting = append(w.osdmap.Acting, Member{ID: ID(i)})
		}
	}
	w.client.begin()
	return w
}

// start starts a host's node with what its disk has.
func (w *world) start(h *host) {
	d := &h.disk
	s := Stored{HardState: d.hard, Tail: d.tail}
	hist := history{tail: d.tail}
	for _, v := range d.log {
		hist.add(v)
	}
	s.Runs = hist.runs
	h.log, h.tail, h.mem, h.ops = slices.Clone(d.log), d.tail, map[Version]bool{}, nil
	for _, v := range d.log {
		h.mem[v] = true
	}
	h.store.to = d.tail.Index
	h.frozen = false
	h.n = New(w.config(h.id), s, h.clock(w.now))
	w.logf("%d starts, incarnation %d, log %v", h.id, h.n.self.Incarnation, d.log)
	w.settle(h)
	w.tick(h)
}

// crash ends a host's process; what was not synced is lost, or not.
func (w *world) crash(h *host, keep int) {
	if h.n == nil {
		return
	}
	w.tally.crashes++
	w.tally.refused += int(h.n.refused)
	for i := range min(keep, len(h.ops)) {
		h.disk.change(h.ops[i].Change)
	}
	if !w.steps && w.rnd.IntN(2) == 0 {
		h.store = h.safe
	}
	m := h.n.self
	h.n = nil
	w.logf("%d crashes, has %v after %v", h.id, h.disk.log, h.disk.tail)
	w.client.gone(w, m)
	for i, g := range w.groups {
		w.departed(i, g, m)
	}
}

// departed: a member of a group, or its sender, is not there any more.
func (w *world) departed(i int, g *group, m Member) {
	if g.ended {
		return
	}
	if g.lead == m {
		g.ended = true
		w.later(w.soon(), event{kind: evEnd, g: i})
		return
	}
	for _, p := range g.members {
		if p.m == m {
			p.closed = true
			w.later(w.soon(), event{kind: evLoss, g: i, host: m})
		}
	}
	if g.add != nil && g.add.m == m {
		g.add.closed = true
	}
}

func (d *disklog) change(c Change) {
	switch c := c.(type) {
	case Append:
		d.log = append(d.log, c.Version)
	case Truncate:
		d.log = slices.DeleteFunc(d.log, func(v Version) bool { return v.Index > c.After })
	case Reset:
		d.tail, d.log = c.Tail, nil
	case Trim:
		for len(d.log) > 0 && d.log[0].Index <= c.To {
			d.tail, d.log = d.log[0], d.log[1:]
		}
	case Save:
		d.hard = c.HardState
	}
}

func (w *world) tick(h *host) {
	if h.n != nil && !w.steps {
		d := (h.n.Deadline() - h.clock(w.now)) * 1000 / time.Duration(h.rate)
		w.later(max(d, 0)+time.Duration(w.rnd.IntN(1000))*time.Microsecond, event{kind: evTick, host: h.n.self})
	}
}

// settle carries out a node's actions.
func (w *world) settle(h *host) {
	for h.n != nil && w.err == nil {
		list := h.n.Take()
		if len(list) == 0 {
			break
		}
		for _, a := range list {
			w.perform(h, a)
		}
	}
	w.check()
}

func (w *world) reachable(a, b ID) bool {
	return w.calm || !(w.cut[0] == int(a) && w.cut[1] == int(b) || w.cut[0] == int(b) && w.cut[1] == int(a) || w.cut[1] == -2 && (w.cut[0] == int(a) || w.cut[0] == int(b)))
}

func (w *world) perform(h *host, a Action) {
	n := h.n
	if _, ok := a.(Send); !ok || w.steps {
		w.logf("%d: %T %+v", h.id, a, a)
	}
	switch a := a.(type) {
	case Send:
		w.sendMessage(h, a.Message)
	case Persist:
		w.persist(h, a)
	case Apply:
		w.apply(h, a)
	case Install:
		w.install(h, a.Chunk)
	case ReadMap:
		w.ask(event{kind: evRead, host: n.self})
	case Propose:
		if w.steps && slices.ContainsFunc(w.queue, func(e *event) bool { return e.kind == evPropose && e.host == n.self && reflect.DeepEqual(e.m, a.Map) }) {
			break
		}
		w.ask(event{kind: evPropose, host: n.self, m: a.Map})
		if w.chance(10) {
			w.later(w.soon()+time.Second, event{kind: evPropose, host: n.self, m: a.Map})
		}
	case Form:
		w.tally.forms++
		g := &group{iv: a.Interval, lead: n.self, view: a.Members, number: 1}
		for _, m := range a.Members {
			g.members = append(g.members, &place{m: m})
		}
		w.groups = append(w.groups, g)
		w.later(w.soon(), event{kind: evForm, g: len(w.groups) - 1})
	case Add:
		i := w.group(n.self, a.Interval)
		if i < 0 || w.groups[i].ended || w.groups[i].add != nil {
			n.Added(a.Interval, a.Member, 0, h.clock(w.now))
			break
		}
		w.groups[i].add = &place{m: a.Member}
		w.later(w.soon(), event{kind: evAdd, g: i})
	case Post:
		i := w.group(n.self, n.lead.interval)
		if i < 0 || w.groups[i].ended {
			break
		}
		w.groups[i].posted = append(w.groups[i].posted, a)
		held := time.Duration(0)
		if w.posts != nil {
			held = w.posts()
		}
		for _, p := range w.groups[i].members {
			w.later(w.soon()+held, event{kind: evLand, g: i, host: p.m, val: 0})
		}
		if len(w.groups[i].members) == 0 {
			w.completes(i)
		}
	case AnswerView:
		w.answered(h, a)
	case Dissolve:
		if i := w.group(n.self, a.Interval); i >= 0 && !w.groups[i].ended {
			w.groups[i].ended = true
			w.later(w.soon(), event{kind: evEnd, g: i})
		}
	case Leave:
		for i, g := range w.groups {
			for _, p := range g.members {
				if p.m == n.self && g.iv == a.Interval {
					p.closed = true
					w.later(w.soon(), event{kind: evLoss, g: i, host: p.m})
				}
			}
		}
		w.later(w.soon(), event{kind: evLeft, host: n.self, iv: a.Interval})
	case Ack:
		w.client.acked(w, h, a.Index)
	case Flushed:
		w.client.flushed(w, h, a.Call)
	case Deposed:
		w.client.gone(w, n.self)
	}
}

func (w *world) group(lead Member, iv Interval) int {
	return slices.IndexFunc(w.groups, func(g *group) bool { return g.lead == lead && g.iv == iv })
}

func (w *world) sendMessage(h *host, m Message) {
	if !w.reachable(m.From.ID, m.To.ID) {
		return
	}
	switch b := m.Body.(type) {
	case Chunk:
		if b.Next = b.Cursor + 1; b.Next >= uint64(max(blocks, w.pieces)) { // a hostile member asks for what is beyond the end, too
			b.Next = Full
		}
		m.Body = b
	case Report:
		if h.boasts && w.chance(20) {
			b.Durable = b.Received + 1 + uint64(w.rnd.IntN(100))
			m.Body = b
		}
	case Durable:
		if h.boasts && w.chance(20) {
			m.Body = Durable{h.n.log.head().Index + 1000} // more than its primary has
		}
	}
	val := 0
	if b, ok := m.Body.(Chunk); ok && b.Cursor < blocks {
		val = h.store.blocks[b.Cursor] // as it is now
	}
	held := time.Duration(0)
	if w.holds != nil {
		held = w.holds(m)
	}
	for range 1 + btoi(w.chance(5)) - btoi(w.chance(5)) {
		w.later(w.soon()+held, event{kind: evMessage, host: Member{ID: m.To.ID}, msg: m, val: val})
	}
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

func (w *world) persist(h *host, a Persist) {
	switch c := a.Change.(type) {
	case Append:
		if !h.mem[c.Version] {
			w.fail("%d appends %v and has never got it", h.id, c.Version)
		}
		if last := (&disklog{tail: h.tail, log: h.log}).head(); c.Version.Index != last.Index+1 {
			w.fail("%d appends %v after %v", h.id, c.Version, last)
		}
	case Truncate:
		w.tally.truncated++
		if c.After < h.store.to {
			w.fail("%d truncates after %d, and the store has %d", h.id, c.After, h.store.to)
		}
	}
	d := disklog{tail: h.tail, log: h.log}
	d.change(a.Change)
	h.tail, h.log = d.tail, slices.Clip(d.log)
	switch c := a.Change.(type) {
	case Reset:
		w.tally.backfills++
		h.store.to = c.Tail.Index
	case Trim:
		h.safe = h.store
	case Save:
		if !c.HardState.Backfilling {
			h.safe = h.store
		}
		for _, v := range h.log { // later values are larger
			if x := w.data[v]; !c.HardState.Backfilling && v.Index <= h.store.to && h.store.blocks[x.block] < x.value {
				w.fail("the store of %d has %d entries, and block %d is %d and not %d", h.id, h.store.to, x.block, h.store.blocks[x.block], x.value)
			}
		}
	}
	h.ops = append(h.ops, a)
	if !w.steps {
		w.later(w.soon()+w.syncs, event{kind: evSync, host: h.n.self, seq: a.Seq})
	}
}

func (d *disklog) head() Version {
	if len(d.log) == 0 {
		return d.tail
	}
	return d.log[len(d.log)-1]
}

func (h *host) at(i uint64) (Version, bool) {
	if i == h.tail.Index {
		return h.tail, true
	}
	if i < h.tail.Index || i > h.tail.Index+uint64(len(h.log)) {
		return Version{}, false
	}
	return h.log[i-h.tail.Index-1], true
}
