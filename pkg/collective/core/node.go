package core

import (
	"fmt"
	"slices"
)

// A Node is a rank. Ranks have ids, which stay when others are lost: Calls have ranks of those that are left. The caller
// performs the actions that Actions returns after each call of a method.
type Node struct {
	layout  Layout
	members members
	epoch   uint8
	lanes   []lane
	actions []Action
}

// A lane carries one operation at a time.
type lane struct {
	all    tx
	one    []tx // by id
	from   []rx // by id and path
	call   *Call
	number uint64 // of operations of this epoch
	turn   int    // of single ranks to be sent to
	quiet  bool   // no message of it has come since Ask was called
	told   bool   // since then, all were told that this rank is in no call
}

// ended: a rank has ended the operations before the one under way, and taken what was sent to it for them.
func (l *lane) ended(id int) {
	l.one[id].ended(id)
	l.all.ended(id)
}

// An ActionType says what to do.
type ActionType uint8

// What to do.
const (
	// Write fills the slot of the message with number Seq at To, with Imm. The message's bytes may change afterward.
	Write ActionType = iota
	// Rewrite writes a slot again, which has a message of Size bytes.
	Rewrite
	// Tell tells To that Seq messages were taken.
	Tell
	// Announce tells all others Imm, in the order of multicast messages, instead of what is still to be announced.
	Announce
	// Also announces more, after that.
	Also
	// Reply tells To Imm, on the way of unicast messages, unless an earlier Reply of the lane to it is still on its way.
	Reply
	// Wake: the lane's Call may have something to do.
	Wake
	// Changed: what is known of the ranks has changed, or what others know. All Calls, and who waits for Shrink, have to look.
	Changed
)

// An Action is something to do.
type Action struct {
	Type    ActionType
	To      int // an id, or All
	Lane    int
	Path    Path // of Tell
	Seq     uint64
	Message Message
	Size    int
	Imm     uint32
	Later   bool // Landed may wait for that of a later message to the same, or some milliseconds
}

// NewNode makes a rank of so many.
func NewNode(id, size int, l Layout) *Node {
	n := &Node{layout: l, members: members{id, make([]State, size)}}
	for range l.Lanes {
		a := lane{one: make([]tx, size), from: make([]rx, size*int(paths))}
		var others []int
		for o := range size {
			if o != id {
				a.one[o] = newTx(l.Slots, o)
				others = append(others, o)
			}
			for p := range paths {
				a.from[o*int(paths)+int(p)] = rx{layout: l}
			}
		}
		a.all = newTx(l.Slots, others...)
		n.lanes = append(n.lanes, a)
	}
	return n
}

// Actions returns what is to be done since the last call, in its order.
func (n *Node) Actions() []Action {
	a := n.actions
	n.actions = nil
	return a
}

// A Failure says why the operations of an epoch have ended.
type Failure struct {
	Lost     []int // ids of ranks that were lost since it began
	GivenUp  bool  // an operation was given up at a rank
	Blame    Blame // if it was
	Excluded bool  // the others go on without this rank
}

// A Group is who takes part in an epoch.
type Group struct {
	IDs   []int // by rank
	state State
}

// Group returns the present one.
func (n *Node) Group() Group { return Group{n.members.alive(), n.members.own()} }

// Failed returns why operations of the group have ended; nil: they go on.
func (n *Node) Failed(g Group) *Failure {
	now := n.members.own()
	if now == g.state {
		return nil
	}
	f := &Failure{GivenUp: now.GivenUp > g.state.GivenUp, Blame: now.Blame, Excluded: now.lost(n.members.me)}
	for _, id := range g.IDs {
		if now.lost(id) {
			f.Lost = append(f.Lost, id)
		}
	}
	return f
}

// Lost says that another rank is lost.
func (n *Node) Lost(id int) { n.grow(State{Lost: 1 << id}) }

// GiveUp ends all operations, at all ranks, which learn the cause.
func (n *Node) GiveUp(b Blame) error {
	s := n.members.own()
	if s.GivenUp >= maxGivenUp {
		return fmt.Errorf("operations were given up %d times, as often as they can be: join again", s.GivenUp)
	}
	s.GivenUp++
	s.Blame = b
	n.grow(s)
	return nil
}

func (n *Node) grow(s State) {
	if n.members.grow(s) {
		n.changed()
	}
}

// changed: what is known has changed. It is told, and operations end.
func (n *Node) changed() {
	s := n.members.own()
	for i := range n.lanes {
		l := &n.lanes[i]
		for id := range l.one {
			l.one[id].queue = nil
			if s.lost(id) {
				l.all.drop(id)
			}
		}
		l.all.queue = nil
	}
	n.actions = append(n.actions, Action{Type: Announce, To: All, Imm: s.imm()}, Action{Type: Changed})
}

// Ask is called now and then. If something is awaited, and no message has come since the last time, all others are told what is known here, new or not: one that does
// not acknowledge that is lost, even if no rank has anything else to send to it. They are also told in which calls of quiet lanes this rank waits: see claim.
func (n *Node) Ask() {
	waits, quiet := !n.members.agreed(), true
	for i := range n.lanes {
		waits = waits || n.lanes[i].call != nil
		quiet = quiet && n.lanes[i].quiet
	}
	if waits && quiet {
		n.actions = append(n.actions, Action{Type: Announce, To: All, Imm: n.members.own().imm()})
	}
	for i := range n.lanes {
		l := &n.lanes[i]
		if c := l.call; l.quiet && c != nil && n.Failed(c.Group) == nil {
			n.actions = append(n.actions, Action{Type: Also, To: All, Imm: c.claim().imm()})
		}
		l.quiet, l.told = true, false
	}
}

func (n *Node) wake(lane int) { n.actions = append(n.actions, Action{Type: Wake, Lane: lane}) }

// Shrink returns the group of those that are left, once all of them are known to know the same; ok is false until then.
func (n *Node) Shrink() (g Group, ok bool) {
	s := n.members.own()
	if s.lost(n.members.me) || !n.members.agreed() {
		return g, false
	}
	if e := s.epoch(); e != n.epoch {
		n.epoch = e
		for i := range n.lanes {
			l := &n.lanes[i]
			l.number, l.all.inEpoch = 0, epochCount{}
			for id := range l.one {
				l.one[id].inEpoch = epochCount{}
			}
			for at := range l.from {
				if l.from[at].newEpoch() {
					n.tell(i, at)
				}
				n.purge(i, at)
			}
		}
	}
	return n.Group(), true
}

// A Call is an operation under way.
type Call struct {
	Group
	op     *Op
	lane   int
	number uint64
	hash   uint32
	heard  map[int]claim // of other ranks that wait, by rank; nil: none was heard, as nearly always
	passed map[int]claim // of ranks that have ended their operation of this number, and have sent all of it
	window uint64        // see Task.window
	unsent int           // messages that wait for a slot
	held   []int         // messages that Take has returned and that are not free, by rank and path
}

// Begin begins an operation of the present group on a lane that has none.
func (n *Node) Begin(g Group, lane int, op *Op) *Call {
	l := &n.lanes[lane]
	c := &Call{Group: g, op: op, lane: lane, number: l.number, hash: op.Hash(l.number), window: op.window(n.layout.Slots), held: make([]int, len(g.IDs)*int(paths))}
	l.number++
	l.all.begin()
	for i := range l.one {
		l.one[i].begin()
	}
	for i := range l.from {
		l.from[i].begin()
	}
	l.call, l.turn = c, op.Rank+1
	n.Progress(c)
	return c
}

// End ends an operation, also if it is not finished. What Take has returned is free then.
func (n *Node) End(c *Call) {
	n.lanes[c.lane].call = nil
	for i, held := range c.held {
		n.free(c.lane, c.IDs[i/int(paths)]*int(paths)+i%int(paths), held, 0)
	}
}

// Finished says that an operation needs nothing more. Like Take and Progress, it looks into the Op.
func (n *Node) Finished(c *Call) bool { return c.op.Done() && c.unsent == 0 }

// An Arrival is a message for Op.Arrive.
type Arrival struct {
	From int // a rank
	Path Path
	Data []byte
}

// Take returns what has arrived for an operation. The error is a Mismatch.
func (n *Node) Take(c *Call) (list []Arrival, err error) {
	l := &n.lanes[c.lane]
	for r, id := range c.IDs {
		before := len(list)
		for p := range paths {
			q := &l.from[id*int(paths)+int(p)]
			most := min(c.op.Want(r, p), len(q.waiting))
			i := 0
			for ; i < most && q.waiting[i].Epoch == n.epoch; i++ {
				if !q.waiting[i].of(c.hash) {
					return nil, &Mismatch{r, q.waiting[i].Kind, c.op.Kind, false}
				}
				list = append(list, Arrival{r, p, q.waiting[i].Data})
			}
			q.waiting = q.waiting[i:]
			q.inEpoch.all += uint64(i) //nolint:gosec // not negative
			c.held[r*int(paths)+int(p)] += i
		}
		if len(list) > before {
			l.ended(id)
		} else if err := c.differs(r); err != nil { // what is in list still has to arrive at the Op, which wants it until then
			return nil, err
		}
	}
	if len(list) > 0 {
		n.pump(c.lane, All)
		n.pump(c.lane, c.IDs[0])
	}
	return list, nil
}

// Progress takes what the operation has done with arrivals. Of one that has failed nothing is sent any more.
func (n *Node) Progress(c *Call) {
	sends, frees := c.op.Take()
	l := &n.lanes[c.lane]
	if c.op.meets() && c.op.Done() { // all have begun it
		for _, id := range c.IDs {
			l.ended(id)
		}
	}
	if n.Failed(c.Group) != nil {
		sends = nil
	}
	for _, s := range sends {
		m := Message{Data: s.Data, Hash: c.hash, Kind: c.op.Kind, Epoch: n.epoch, call: c}
		c.unsent++
		if s.To == All {
			l.all.queue = append(l.all.queue, m)
		} else {
			one := &l.one[c.IDs[s.To]]
			one.queue = append(one.queue, m)
		}
	}
	for _, f := range frees {
		c.held[f.From*int(paths)+int(f.Path)] -= f.N
		at := c.IDs[f.From]*int(paths) + int(f.Path)
		window := c.window
		if q := &l.from[at]; uint64(c.op.Plan(f.From, f.Path)) <= max(q.told, q.begun)-q.begun+window { //nolint:gosec // not negative
			window = 0
		}
		n.free(c.lane, at, f.N, window)
	}
	if len(sends) > 0 {
		n.pump(c.lane, All)
		n.pump(c.lane, c.IDs[0])
	}
}

func (n *Node) free(lane, at, messages int, window uint64) {
	if messages > 0 && n.lanes[lane].from[at].free(messages, window) {
		n.tell(lane, at)
	}
}

func (n *Node) tell(lane, at int) {
	n.actions = append(n.actions, Action{Type: Tell, To: at / int(paths), Path: Path(at % int(paths)), Lane: lane, Seq: n.lanes[lane].from[at].told}) //nolint:gosec // small
}

func (n *Node) ring(lane, to int) *tx {
	if to == All {
		return &n.lanes[lane].all
	}
	return &n.lanes[lane].one[to]
}

// pump sends what there are slots for: to all, or to single ranks, which take turns.
func (n *Node) pump(lane, to int) {
	if to == All {
		for n.sendNext(lane, All) {
		}
		return
	}
	l := &n.lanes[lane]
	if l.call == nil {
		return
	}
	ids, flying := l.call.IDs, 0
	for _, id := range ids {
		flying += l.one[id].flying
	}
	for idle := 0; idle < len(ids) && flying < n.layout.Slots; l.turn++ {
		if n.sendNext(lane, ids[l.turn%len(ids)]) {
			flying++
			idle = 0
		} else {
			idle++
		}
	}
}

// sendNext sends the next message to a rank or All, if it may be sent now.
func (n *Node) sendNext(lane, to int) bool {
	t := n.ring(lane, to)
	m, seq, ok := t.next()
	if !ok {
		return false
	}
	at := t.slot(seq)
	*at = inSlot{len(m.Data), n.layout.imm(m, lane, seq)}
	n.actions = append(n.actions, Action{Type: Write, To: to, Lane: lane, Seq: seq, Message: m, Size: at.size, Imm: at.imm, Later: n.later(lane, to, m.call)})
	ids := m.call.IDs
	if to != All && !m.call.op.meets() { // otherwise all learn it before they end the operation
		ids = []int{to}
	}
	for _, id := range ids {
		for p := range int(paths) {
			n.lanes[lane].from[id*int(paths)+p].spoken()
		}
	}
	if m.call.unsent--; m.call.unsent == 0 {
		n.wake(lane)
	}
	return true
}

// later says whether a message that is sent now need not be acknowledged soon: its operation ends without that, and there are slots for the next
// ones. With 8 slots, every fourth message is acknowledged soon.
func (n *Node) later(lane, to int, c *Call) bool {
	flying := 0
	if l := &n.lanes[lane]; to == All {
		flying = l.all.flying
	} else {
		for i := range l.one {
			flying += l.one[i].flying
		}
	}
	return c.op.single() && 2*flying < n.layout.Slots
}

// Landed says that the device is done with the oldest message to a rank, or All, of which that was not said. If it is not ok, by unicast,
// the connection was lost, and the message may have come; it is sent again.
func (n *Node) Landed(lane, to int, ok bool) {
	t := n.ring(lane, to)
	for seq, end := t.landed(ok); seq < end; seq++ {
		at := t.slot(seq)
		n.actions = append(n.actions, Action{Type: Rewrite, To: to, Lane: lane, Seq: seq, Size: at.size, Imm: at.imm})
	}
	n.pump(lane, to)
}

// Acked says that a rank has taken so many of the messages that came on a path, of all that were sent. The error is that it cannot
// have.
func (n *Node) Acked(id, lane int, p Path, messages uint64) error {
	to := id
	if p == Multicast {
		to = All
	}
	if err := n.ring(lane, to).ack(id, messages); err != nil {
		return err
	}
	n.pump(lane, to)
	return nil
}

// Arrived says that a rank has written so many bytes to this one's memory for it, with immediate data. The error is that it breaks
// the rules.
func (n *Node) Arrived(id int, p Path, memory []byte, written int, imm uint32) error {
	if imm&stateImm != 0 {
		s, err := stateOf(imm, len(n.members.state))
		if err == nil && n.members.hear(id, s) {
			n.changed()
		}
		n.actions = append(n.actions, Action{Type: Changed})
		return err
	}
	lane := int(imm &^ claimImm >> laneAt)
	if lane >= len(n.lanes) {
		return fmt.Errorf("lane %d: %w", lane, errMessage)
	}
	if imm&claimImm != 0 {
		n.claimed(id, p, lane, claimOf(imm))
		return nil
	}
	at := id*int(paths) + int(p)
	q := &n.lanes[lane].from[at]
	switch {
	case uint8(imm>>seqAt) == uint8(q.arrived): //nolint:gosec // the lowest bits are meant
	case p == Unicast:
		return nil // it came before, or comes again behind what was lost
	default:
		return fmt.Errorf("a message is missing before %#x: %w", imm, errMessage)
	}
	from := n.layout.At(p, lane, q.arrived)
	m, err := n.layout.parse(memory[from:from+n.layout.Slot()], written, imm, q.arrived)
	if err != nil {
		return err
	}
	n.lanes[lane].quiet = false
	q.arrived++
	q.waiting = append(q.waiting, m)
	n.purge(lane, at)
	if c := n.lanes[lane].call; c != nil && len(q.waiting) == 1 {
		n.wake(lane)
	}
	return nil
}

// claimed takes what another rank says of its calls. Take compares it with the call under way here.
func (n *Node) claimed(id int, p Path, lane int, theirs claim) {
	l := &n.lanes[lane]
	c, now := l.call, n.members.own()
	if now.epoch() != n.epoch || c != nil && n.Failed(c.Group) != nil {
		return // calls have failed
	}
	if p == Unicast {
		if c != nil && theirs.hash == uint32(n.epoch) {
			c.passed = noted(c.passed, slices.Index(c.IDs, id), theirs)
			n.wake(lane)
		}
		return
	}
	if n.members.state[id] != now {
		return // it is not of this epoch
	}
	reply := claim{lane: lane, number: l.number % claimNumbers}
	if c != nil {
		c.heard = noted(c.heard, slices.Index(c.IDs, id), theirs)
		n.wake(lane)
		reply.kind, reply.number = c.op.Kind, c.number%claimNumbers
	}
	if !reply.after(theirs) {
		return
	}
	if c == nil && !l.told { // otherwise Ask does it
		l.told = true
		n.actions = append(n.actions, Action{Type: Also, To: All, Imm: reply.imm()})
	}
	if t := &l.one[id]; t.done == t.sent { // it gets the reply after all messages to it alone, as none is sent again
		reply.hash = uint32(n.epoch)
		n.actions = append(n.actions, Action{Type: Reply, To: id, Lane: lane, Imm: reply.imm()})
	}
}

// purge frees messages of epochs that have ended.
func (n *Node) purge(lane, at int) {
	q := &n.lanes[lane].from[at]
	old := 0
	for old < len(q.waiting) && q.waiting[old].Epoch < n.epoch {
		old++
	}
	q.waiting = q.waiting[old:]
	if c := n.lanes[lane].call; c != nil && n.Failed(c.Group) != nil {
		// It may look into messages before these, and slots are free in their order: End frees all.
		if rank := slices.Index(c.IDs, at/int(paths)); rank >= 0 {
			c.held[rank*int(paths)+at%int(paths)] += old
			return
		}
	}
	q.begun += uint64(old) //nolint:gosec // few; those may come after Begin, and the sender counts the operation's from behind them
	n.free(lane, at, old, 0)
}
