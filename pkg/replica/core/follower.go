package core

import (
	"cmp"
	"slices"
	"time"
)

// follower is a node's state towards the primary.
type follower struct {
	interval Interval
	group    Interval // of the membership; zero: there is none
	leaving  bool     // it is being closed
	next     Interval // to be entered after that

	match       uint64 // the log is the primary's up to here
	cut, landed uint64 // entries received by the group; 0: none
	commit      uint64 // the primary's
	stable      uint64
	started     bool

	granted time.Duration // when a lease was granted last
	grants  []grant       // the last grant to each primary, less than Grace ago
	heard   time.Duration // when a lease was last requested; 0: never
	sent    time.Duration // the request that was granted

	stage  Backfill
	cursor uint64 // of the next chunk; Full: the last one has arrived
	fill   uint64 // the chunks may have entries up to this one
}

// grant is a lease that was granted.
type grant struct {
	to Member
	at time.Duration
}

// enter begins an interval, when the group of an older one has been left.
func (n *Node) enter(iv Interval) {
	f := &n.follow
	if f.group != (Interval{}) {
		f.next = iv
		n.leave()
		return
	}
	n.follow = follower{interval: iv, granted: f.granted, grants: f.grants, heard: f.heard}
	if n.hard.Backfilling {
		n.follow.stage = Incomplete
	}
}

// lease grants a lease: this node does not take over before Grace has passed. So it grants none while
// the outcome of its own proposal is not known.
func (n *Node) lease(b Lease, now time.Duration) {
	f := &n.follow
	if b.Epoch > n.osdmap.Epoch {
		n.readMap()
	}
	f.heard = now
	if n.proposal == nil && b.Sent > 0 {
		f.granted, f.sent = now, b.Sent
		f.grants = slices.DeleteFunc(f.grants, func(g grant) bool { return g.to == n.osdmap.Primary || now-g.at >= n.cfg.Grace })
		f.grants = append(f.grants, grant{n.osdmap.Primary, now})
	}
	f.commit, f.stable = max(f.commit, b.Commit), max(f.stable, b.Stable)
	if b.Hurry > n.disk.durable {
		n.do(Hurry{b.Hurry})
	}
}

// learn adopts the primary's commit index, as far as the log is the primary's.
func (n *Node) learn() {
	f := &n.follow
	n.commit = max(n.commit, min(f.commit, f.match))
	n.stable = max(n.stable, min(f.stable, f.match))
}

// Join decides whether this node joins the group of an interval.
func (n *Node) Join(iv Interval) bool {
	f := &n.follow
	if n.lead != nil || iv != f.interval || f.group != (Interval{}) || n.osdmap.Since != iv.Since {
		return false
	}
	f.group = iv
	return true
}

// Landed says that an entry has been received by the group.
func (n *Node) Landed(iv Interval, p Post, _ time.Duration) {
	f := &n.follow
	i := p.Version.Index
	if iv != f.group || iv != f.interval || p.Version.Epoch != iv.Since || i == 0 || f.landed != 0 && i != f.landed+1 {
		n.refuse()
		return
	}
	if f.landed = i; f.cut == 0 {
		f.cut = i
	}
	f.commit, f.stable = max(f.commit, p.Commit), max(f.stable, p.Stable)
	n.absorb()
	n.learn()
	n.apply()
}

// absorb appends received entries, if nothing before them is missing.
func (n *Node) absorb() {
	f := &n.follow
	for f.landed != 0 && f.match+1 >= f.cut && f.match < f.landed {
		if !n.extend(Version{f.group.Since, f.match + 1}) {
			return
		}
	}
}

// extend makes v, which follows what is matched, an entry of the log.
func (n *Node) extend(v Version) bool {
	if !n.log.has(v) {
		if n.log.head().Index >= v.Index {
			if !n.truncate(v.Index - 1) {
				return false
			}
		}
		n.append(v)
	}
	n.follow.match = v.Index
	return true
}

// push appends entries of a Push to the log.
func (n *Node) push(b Push) {
	f := &n.follow
	if b.Reset {
		n.reset(b.Prev, b.Have)
		return
	}
	if f.stage == Incomplete || !n.log.has(b.Prev) {
		return
	}
	i := b.Prev.Index
	if k := len(b.Runs); k > 0 && b.Runs[k-1].Index-i > n.cfg.Limit {
		n.refuse() // no log is so long
		return
	}
	f.match = max(f.match, i)
	for _, r := range b.Runs {
		for ; i < r.Index; i++ {
			if i == f.match { // otherwise it has this one, or could not append the one before
				n.extend(Version{r.Epoch, i + 1})
			}
		}
	}
	n.absorb()
}

// start agrees to the primary's log, and drops what is beyond it.
func (n *Node) start(b Start) {
	f := &n.follow
	if f.match < b.Head.Index || !n.log.has(b.Head) || f.stage == Incomplete || f.stage == Pulling {
		return
	}
	if n.log.head().Index > f.match && !n.truncate(f.match) {
		return
	}
	f.started = true
	if n.hard.LastEpochStarted != f.interval.Since {
		n.hard.LastEpochStarted = f.interval.Since
		n.save()
	}
}

// reset begins a backfill. A member of the acting set never needs one, and its log may be the only one.
func (n *Node) reset(tail Version, have uint64) {
	f := &n.follow
	if f.match != have || f.match >= tail.Index && (f.match > 0 || f.stage >= Pulling) || n.osdmap.Holds(n.self.ID) {
		return
	}
	n.hard.Backfilling, n.hard.Applying = true, tail.Index
	n.save()
	n.log = history{tail: tail}
	n.cap(0)
	n.persist(Reset{tail})
	n.commit, n.stable, n.applied = tail.Index, tail.Index, tail.Index
	f.match, f.stage, f.cursor, f.fill = tail.Index, Pulling, 0, tail.Index
	f.started = false
	n.absorb()
}

// chunk handles a piece of the store. Before the cursor, the store has the entries up to applied: a
// piece that is older than that would lack entries that were skipped because they were beyond the
// cursor.
func (n *Node) chunk(b Chunk) {
	f := &n.follow
	if f.stage != Pulling || b.Cursor != f.cursor || b.Applied < n.applied || b.Next <= b.Cursor || !n.disk.hard.Backfilling {
		return
	}
	n.do(Install{b})
	f.cursor, f.fill = b.Next, max(f.fill, b.Applied)
	if to := min(n.storable(), b.Applied); to > n.applied && f.cursor != Full {
		n.applied = to
		n.do(Apply{to, true, f.cursor})
	}
}

// fill ends a backfill when all entries that the chunks may contain are durable in the log.
func (n *Node) fill() {
	f := &n.follow
	switch {
	case f.stage != Pulling || f.cursor != Full || min(f.match, n.disk.durable) < f.fill:
	case n.hard.Backfilling:
		n.commit, n.stable = max(n.commit, f.fill), max(n.stable, f.fill)
		n.hard.Backfilling, n.hard.Applying = false, max(n.applied, f.fill)
		n.save()
	case !n.disk.hard.Backfilling:
		f.stage = Filled
	}
}

// reports says whether this node may report to the primary: it is durable that no older primary
// counts here.
func (n *Node) reports() bool {
	f := &n.follow
	return n.lead == nil && !f.leaving && f.interval.Since != 0 && f.interval.Since == n.osdmap.Since && n.disk.hard.Epoch >= f.interval.Since
}

// report sends this node's progress to the primary.
func (n *Node) report() {
	f := &n.follow
	if !n.reports() {
		return
	}
	r := Report{Sent: f.sent, Applying: n.hard.Applying, Received: f.match, Durable: min(f.match, n.disk.durable),
		Started: f.started && n.disk.hard.LastEpochStarted == f.interval.Since, Backfill: f.stage}
	if !r.Started {
		r.Log = n.log.list()
	}
	if f.stage == Pulling {
		if r.Cursor = f.cursor; !n.disk.hard.Backfilling {
			return
		}
	}
	n.send(n.osdmap.Primary, f.interval, r)
}

// tickFollower looks for a primary, or becomes one.
func (n *Node) tickFollower(now time.Duration) {
	f := &n.follow
	if f.heard == 0 || now-f.heard >= n.cfg.Lease {
		n.readMap()
		if !n.osdmap.Acts(n.self) && n.osdmap.Epoch > 0 && n.disk.hard.Epoch == n.osdmap.Epoch {
			head, _ := n.log.at(n.disk.durable)
			for _, id := range n.cfg.Up {
				if id != n.self.ID {
					n.send(Member{ID: id}, Interval{}, Notify{n.disk.hard, head})
				}
			}
		}
	}
	if n.proposal != nil || n.osdmap.Epoch > 1 && now-f.granted < n.cfg.Grace { // epoch 1 has had no primary, and so no lease
		return
	}
	if n.osdmap.Acts(n.self) {
		n.takeOver()
	} else if n.osdmap.Holds(n.self.ID) {
		n.revive(now)
	}
}

// takeOver makes this member the primary: it has all acknowledged entries, and the old primary's
// leases have expired. The old primary stays in the acting set only if otherwise too few members
// would have everything.
func (n *Node) takeOver() {
	rest := slices.DeleteFunc(slices.Clone(n.osdmap.Acting), func(m Member) bool { return m == n.osdmap.Primary })
	if len(rest) < n.osdmap.MinSize {
		rest = n.osdmap.Acting
	}
	n.propose(n.self, n.osdmap.Epoch+1, rest)
}

// revive makes this member the primary after all acting members have restarted: all have notified
// their logs, and this one's is the best. A volume that was never used does without some of them:
// nothing that they have is missed.
func (n *Node) revive(now time.Duration) {
	mine := notice{n.self, Notify{HardState: n.disk.hard}}
	mine.Head, _ = n.log.at(n.disk.durable)
	var acting []Member
	for _, m := range n.osdmap.Acting {
		x := mine
		if m.ID != n.self.ID {
			i := n.noticeOf(m.ID)
			switch {
			case i < 0 && n.osdmap.Unused() && now-n.follow.granted >= n.cfg.Grace:
				continue
			case i < 0 || n.notices[i].Member.Incarnation <= m.Incarnation:
				return // it may be alive, and then it takes over
			}
			x = n.notices[i]
		}
		if x.lacks(m) {
			return // its disk was replaced: the operator removes it from the map, or brings the old disk back
		}
		if x.better(&mine) {
			return
		}
		acting = append(acting, x.Member)
	}
	if len(acting) < len(n.osdmap.Acting) && len(acting) < n.osdmap.MinSize {
		return
	}
	n.propose(n.self, n.osdmap.Epoch+1, acting)
}

// noticeOf returns the index of a host's notice; -1: it has not notified.
func (n *Node) noticeOf(id ID) int {
	return slices.IndexFunc(n.notices, func(x notice) bool { return x.ID == id })
}

// lacks reports that a host's copy was made after it became an acting member, and so is another one than it had then, or is
// incomplete.
func (x *notice) lacks(m Member) bool {
	return m.Incarnation != 0 && x.Born > m.Incarnation || x.Backfilling
}

// better reports whether this log is better than another.
func (x *notice) better(y *notice) bool {
	return cmp.Or(cmp.Compare(x.LastEpochStarted, y.LastEpochStarted), x.Head.Compare(y.Head), cmp.Compare(y.ID, x.ID)) > 0
}

// notified handles another node's Notify.
func (n *Node) notified(from Member, b Notify, now time.Duration) {
	if b.Epoch > n.osdmap.Epoch {
		n.readMap()
	}
	i := n.noticeOf(from.ID)
	switch {
	case b.Incarnation != from.Incarnation:
		n.refuse()
		return
	case i < 0:
		n.notices = append(n.notices, notice{from, b})
	case from.Incarnation >= n.notices[i].Member.Incarnation:
		n.notices[i] = notice{from, b}
	default:
		return
	}
	if n.lead != nil && n.lead.state != Fencing {
		n.recover(from, now)
	}
}
