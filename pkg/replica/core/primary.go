package core

import (
	"slices"
	"time"
)

// primary is the state of a node while it is the primary.
type primary struct {
	interval Interval
	state    State
	peers    []peer
	members  []Member // of the group's view
	wanted   *view    // it waits for an answer

	// required are the members without which nothing is acknowledged: those of the map, of a
	// proposed map, and those about to be proposed, except this node.
	required []Member
	granted  []grant // to former primaries, which may not know of this one yet
	acked    uint64  // writes
	former   uint64  // entries up to this one may have been flushed under former primaries
	flushes  []flush
	calls    uint64 // of clients
	hurried  uint64 // entries up to this one should become durable without delay
	hindered hindrance
}

// hindrance is a host because of which the group cannot be formed, although it reports.
type hindrance struct {
	id   ID
	told span
}

// recent is the multiple of Grace for which a hindrance counts after it was told.
const recent = 4

func (n *Node) hinders(id ID, now time.Duration) bool {
	h := &n.lead.hindered
	return h.told.last > 0 && h.id == id && now-h.told.last < recent*n.cfg.Grace
}

// view is a set of members of the group with which operations are to complete.
type view struct {
	number  uint32
	members []Member
}

type flush struct{ call, index uint64 }

// begin begins a round: peering with the acting set. The primary takes no writes until it has ended.
func (n *Node) begin(now time.Duration) {
	l := n.lead
	n.follow = follower{granted: n.follow.granted}
	if l.interval.Round++; l.interval.Round == 1 {
		l.former = n.log.head().Index
	}
	l.state, l.members, l.wanted, l.hurried = Peering, nil, nil, 0
	var peers []peer
	add := func(m Member) {
		if m.ID != n.self.ID && !slices.ContainsFunc(peers, func(p peer) bool { return p.member.ID == m.ID }) {
			peers = append(peers, peer{member: m, heard: now})
		}
	}
	for _, p := range l.peers { // restarted members are known by their newest incarnation
		add(p.member)
	}
	for _, m := range n.osdmap.Acting {
		add(m)
	}
	l.peers = peers
	if n.hard.LastEpochStarted != l.interval.Since {
		n.hard.LastEpochStarted = l.interval.Since
		n.save()
	}
	n.require()
	n.leases(now)
	n.advance(now)
}

// regroup begins another round, with another group.
func (n *Node) regroup(now time.Duration) {
	switch {
	case n.lead.state == Fencing:
		return
	case n.lead.state >= Forming:
		n.do(Dissolve{n.lead.interval})
	}
	n.begin(now)
}

func (n *Node) depose() {
	if n.lead.state >= Forming {
		n.do(Dissolve{n.lead.interval})
	}
	n.do(Deposed{})
	n.lead = nil
}

// recover starts the recovery of a member that is not in the acting set, or has come back with another incarnation.
func (n *Node) recover(m Member, now time.Duration) {
	l := n.lead
	i := slices.IndexFunc(l.peers, func(p peer) bool { return p.member.ID == m.ID })
	switch {
	case i < 0:
		l.peers = append(l.peers, peer{member: m, heard: now})
	case l.peers[i].member.Incarnation < m.Incarnation:
		l.peers[i] = peer{member: m, heard: now}
	default:
		return
	}
	n.require()
	n.leases(now)
	n.advance(now)
}

// require determines what is required.
func (n *Node) require() {
	l := n.lead
	l.required = l.required[:0]
	add := func(m Member) {
		if m != n.self && !slices.Contains(l.required, m) {
			l.required = append(l.required, m)
		}
	}
	for _, m := range n.osdmap.Acting {
		add(m)
	}
	if n.proposal != nil {
		for _, m := range n.proposal.Acting {
			add(m)
		}
	}
	for i := range l.peers {
		p := &l.peers[i]
		if p.promoting = p.promoting && !n.osdmap.Acts(p.member); p.promoting {
			add(p.member)
		}
	}
}

// change proposes another acting set, under the same primary.
func (n *Node) change(acting []Member) {
	n.propose(n.self, n.lead.interval.Since, acting)
	n.require()
}

// without returns the acting set without the members that are gone, as far as MinSize allows.
func (n *Node) without(gone func(Member) bool) []Member {
	acting := slices.Clone(n.osdmap.Acting)
	for _, m := range n.osdmap.Acting {
		if m != n.self && gone(m) && len(acting) > n.osdmap.MinSize {
			acting = slices.DeleteFunc(acting, func(x Member) bool { return x == m })
		}
	}
	return acting
}

// leases requests leases from all members.
func (n *Node) leases(now time.Duration) {
	if n.disk.hard.Epoch < n.lead.interval.Since {
		return
	}
	for i := range n.lead.peers {
		n.send(n.lead.peers[i].member, n.lead.interval, Lease{n.osdmap.Epoch, now, n.commit, n.stable, n.lead.hurried})
	}
}

func (n *Node) tickPrimary(now time.Duration) {
	l := n.lead
	if l.state == Fencing {
		return
	}
	n.leases(now)
	for i := range l.peers {
		if p := &l.peers[i]; now-p.heard < n.cfg.Lease {
			n.tend(p, now)
		}
	}
	if !n.leased(now) {
		n.readMap() // another may be the primary
	}
	acting := n.without(func(m Member) bool {
		p := n.peer(m)
		return p == nil || now-p.heard > n.cfg.Grace || p.old && p.refill || n.hinders(m.ID, now) && l.hindered.told.length() > n.cfg.Grace
	})
	if n.proposal == nil && len(acting) < len(n.osdmap.Acting) {
		n.change(acting)
	}
	n.advance(now)
}

// member returns the sender of a message of the current interval; nil: unknown, or of another
// interval.
func (n *Node) member(m Message) *peer {
	if n.lead == nil || m.Interval != n.lead.interval || n.lead.state == Fencing {
		return nil
	}
	return n.peer(m.From)
}

// reported handles a member's report.
func (n *Node) reported(m Message, r Report, now time.Duration) {
	p := n.member(m)
	if p == nil || r.Received > n.log.head().Index || r.Durable > r.Received || r.Sent > now || r.Backfill > Filled {
		n.refuse() // it claims what it cannot have
		return
	}
	was := *p
	p.heard = now
	if p.lease = max(p.lease, r.Sent); p.lease > 0 { // it knows of this primary, and does not serve, whatever becomes of it
		n.lead.granted = slices.DeleteFunc(n.lead.granted, func(g grant) bool { return g.to == p.member })
	}
	if !p.known && len(r.Log) > 0 {
		p.known = true
		p.next = n.log.common(r.Log).Index
		p.refill = p.next < n.log.tail.Index || r.Applying > p.next || r.Backfill == Incomplete
		p.old = r.Log[len(r.Log)-1].Compare(n.log.tail) < 0
		n.race(p, p.next, now)
	}
	p.durable = max(p.durable, r.Durable)
	if r.Received >= p.match { // else it is late
		p.match, p.started, p.stage, p.cursor = r.Received, r.Started, r.Backfill, r.Cursor
		p.refill = p.refill && p.stage < Pulling
	}
	if p.match > was.match {
		p.pushed.arrived(now)
		n.race(p, was.origin(), now)
	}
	if p.stage == Pulling && was.stage == Pulling && p.cursor > was.cursor {
		if p.asked.arrived(now); p.asked.calls != n.lead.calls {
			p.asked.rest = now + pace*min(p.asked.took, patience*n.cfg.Lease)
		}
	}
	if !was.known || p.match > was.match || p.stage != was.stage || p.cursor != was.cursor {
		n.tend(p, now) // else with the next beat
	}
	n.advance(now)
}

// durable handles a member's report about its disk. The entries are in its memory, too; but match is
// of the newest Report, which comes another way and would seem late.
func (n *Node) durable(m Message, b Durable, now time.Duration) {
	p := n.member(m)
	if p == nil || b.Index > n.log.head().Index {
		n.refuse() // it claims what it cannot have
		return
	}
	p.heard = now
	p.durable = max(p.durable, b.Index)
	n.advance(now)
}

// settle determines which entries are durable at all required members.
func (n *Node) settle() {
	stable := n.disk.durable
	for _, m := range n.lead.required {
		if p := n.peer(m); p != nil {
			stable = min(stable, p.durable)
		} else {
			stable = 0
		}
	}
	n.stable = max(n.stable, min(stable, n.commit))
	n.apply()
}

// resume continues backfills after their pauses.
func (n *Node) resume(now time.Duration) {
	for i := range n.lead.peers {
		if p := &n.lead.peers[i]; p.asked.rest > 0 && now >= p.asked.rest {
			p.asked.rest = 0
			n.tend(p, now)
		}
	}
}

// tend sends a member the next data that it lacks. Long messages are repeated only after there was
// time for an answer. Between pieces of the store there are pauses for clients.
func (n *Node) tend(p *peer, now time.Duration) {
	l := n.lead
	if !p.known {
		return
	}
	head := n.log.head().Index
	limit := head
	if p.from != 0 {
		limit = p.from - 1
	}
	to := func(b Body) { n.send(p.member, l.interval, b) }
	switch base := p.base(); {
	case p.refill || base < n.log.tail.Index: // by now the log has been trimmed
		if !n.osdmap.Holds(p.member.ID) && !slices.Contains(l.required, p.member) {
			v, _ := n.log.at(n.applied)
			if !p.reset.sent || p.reset.have != p.match {
				p.race = race{}
				n.race(p, v.Index, now)
			}
			p.started, p.next, p.reset = false, 0, reset{true, p.match, v.Index}
			to(Push{Prev: v, Reset: true, Have: p.match})
		}
		return
	case p.match < limit:
		if p.pushed.due(base, now, n.cfg.Lease) {
			v, _ := n.log.at(base)
			to(Push{Prev: v, Runs: n.log.between(base, min(limit, base+n.cfg.Batch))})
		}
	case p.stage != Pulling && !p.started && (l.state == Peering || p.from != 0):
		v, _ := n.log.at(p.match)
		to(Start{v})
	}
	if p.stage == Pulling && p.cursor != Full && p.asked.rest == 0 && p.asked.due(p.cursor, now, n.cfg.Lease) {
		p.asked.calls = l.calls
		to(Chunk{Cursor: p.cursor, Applied: n.applied})
	}
	if l.state == Active && p.from == 0 && !p.adding && head-p.match <= n.cfg.Near && l.wanted == nil && !slices.ContainsFunc(l.members, func(m Member) bool { return m.ID == p.member.ID }) {
		p.adding = true
		n.do(Add{l.interval, p.member})
	}
}

// Added says that the group sends a member the entries from one on; 0: it could not be added.
func (n *Node) Added(iv Interval, m Member, from uint64, now time.Duration) {
	if n.lead == nil || iv != n.lead.interval || n.lead.state != Active {
		return
	}
	if p := n.peer(m); p != nil && p.adding {
		if p.adding = false; from > 0 && from <= n.log.head().Index+1 && !p.left {
			p.from, p.barred = from, span{}
			n.tend(p, now)
		} else {
			p.barred.add(now, longest*n.cfg.Lease)
		}
		p.left = false
	}
	n.advance(now)
}

// advance continues as far as possible.
func (n *Node) advance(now time.Duration) {
	l := n.lead
	if l.state == Fencing || n.disk.hard.Epoch < l.interval.Since {
		return
	}
	n.answerView()
	n.promote(now)
	if l.state == Peering {
		n.activate()
	}
	n.settle()
	n.release(now)
}

// activate ends peering, when all acting members have this log and have recorded the epoch. Then
// all of it is committed, because whichever of them becomes the next primary has it.
func (n *Node) activate() {
	l := n.lead
	for _, m := range l.required {
		if p := n.peer(m); p == nil || !p.started {
			return
		}
	}
	if n.disk.hard.LastEpochStarted != l.interval.Since {
		return
	}
	n.commit = n.log.head().Index
	if len(n.osdmap.Acting) < n.osdmap.MinSize || n.proposal != nil {
		return
	}
	l.state = Forming
	for _, m := range l.required {
		l.members = append(l.members, m)
		n.peer(m).from = n.commit + 1
	}
	n.do(Form{l.interval, slices.Clone(l.members)})
}

// Formed says that the group is formed, or cannot be.
func (n *Node) Formed(iv Interval, ok bool, now time.Duration) {
	l := n.lead
	if l == nil || iv != l.interval || l.state != Forming {
		return
	}
	if !ok {
		n.begin(now)
		return
	}
	l.state, l.hindered = Active, hindrance{}
	n.advance(now)
}

// Hindered says that the group cannot be formed because of a host, before Formed says that it cannot.
// If that lasts for Grace, the group is formed without that host, if enough others are left.
func (n *Node) Hindered(iv Interval, by ID, now time.Duration) {
	l := n.lead
	if l == nil || iv != l.interval || l.state != Forming {
		return
	}
	if l.hindered.id != by {
		l.hindered = hindrance{id: by}
	}
	l.hindered.told.add(now, recent*n.cfg.Grace)
}

// GroupEnded says that the group has failed. What has not completed stays in the log.
func (n *Node) GroupEnded(iv Interval, now time.Duration) {
	if l := n.lead; l != nil && iv == l.interval && l.state >= Forming {
		n.begin(now)
	}
}

// promote proposes a member for the acting set that has all entries in memory, and all stable,
// flushed or trimmed ones on disk. The member is required from before the proposal on, so none of
// these indexes advances without it.
func (n *Node) promote(now time.Duration) {
	l := n.lead
	for i := range l.peers {
		p := &l.peers[i]
		if !p.started || p.resetPending() || n.osdmap.Acts(p.member) || n.proposal != nil {
			continue
		}
		if p.promoting && now-p.heard > n.cfg.Lease {
			p.promoting = false
			n.require()
			continue
		}
		ready := l.state == Peering && (n.osdmap.Holds(p.member.ID) || !n.hinders(p.member.ID, now))
		if l.state == Active {
			ready = l.wanted == nil && slices.Contains(l.members, p.member) && p.from != 0 && max(p.match, p.durable)+1 >= p.from
		}
		if !ready || now-p.heard > n.cfg.Lease {
			continue
		}
		if !p.promoting {
			p.promoting = true
			n.require()
		}
		if p.durable >= max(n.stable, l.former) && (l.state == Peering || p.leased(now, n.cfg.Lease)) {
			acting := slices.DeleteFunc(slices.Clone(n.osdmap.Acting), func(m Member) bool { return m.ID == p.member.ID })
			n.change(append(acting, p.member))
		}
	}
}

// View asks whether operations may complete when the members of a view have them. AnswerView
// answers, once all acting members of the map are in the view.
func (n *Node) View(iv Interval, number uint32, members []Member, now time.Duration) {
	l := n.lead
	if l == nil || iv != l.interval || l.state < Forming {
		n.do(AnswerView{iv, number, false})
		return
	}
	l.wanted = &view{number, slices.Clone(members)}
	for i := range l.peers {
		p := &l.peers[i]
		was := p.present
		if p.present = slices.Contains(members, p.member); !p.present {
			p.promoting, p.from, p.race = false, 0, race{}
			p.left = p.left || was && p.adding
		}
	}
	n.require()
	n.advance(now)
}

func (n *Node) answerView() {
	l := n.lead
	w := l.wanted
	if w == nil {
		return
	}
	missing := func(m Member) bool { return !slices.Contains(w.members, m) }
	switch {
	case !slices.ContainsFunc(l.required, missing):
		l.members, l.wanted = w.members, nil
		n.do(AnswerView{l.interval, w.number, true})
	case n.proposal != nil:
	default:
		acting := n.without(missing)
		if slices.ContainsFunc(acting, func(m Member) bool { return m != n.self && missing(m) }) {
			l.wanted = nil
			n.do(AnswerView{l.interval, w.number, false}) // it waits for members to come back
			return
		}
		n.change(acting)
	}
}

// leased reports that no other node can be the primary now: all members that could take over have
// granted a lease less than Lease ago, counted from the request.
func (n *Node) leased(now time.Duration) bool {
	l := n.lead
	if l == nil || l.state != Active {
		return false
	}
	for _, m := range l.required {
		if p := n.peer(m); p == nil || !p.leased(now, n.cfg.Lease) {
			return false
		}
	}
	for _, g := range l.granted { // the operator may have removed it from the acting set since
		if now-g.at < n.cfg.Grace {
			return false
		}
	}
	return true
}

// release acknowledges completed calls.
func (n *Node) release(now time.Duration) {
	l := n.lead
	if !n.leased(now) {
		return
	}
	if n.commit > l.acked {
		l.acked = n.commit
		n.do(Ack{n.commit})
	}
	l.flushes = slices.DeleteFunc(l.flushes, func(f flush) bool {
		if f.index <= n.stable {
			n.do(Flushed{f.call})
		}
		return f.index <= n.stable
	})
}
