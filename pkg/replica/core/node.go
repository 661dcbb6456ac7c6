package core

import (
	"slices"
	"time"
)

// A State is what a node is to its volume.
//
//	state        event                                            next
//	Stray        it is in the acting set                          Replica
//	Replica      Grace has passed since it granted a lease,       Fencing
//	             and its compare-and-swap succeeds
//	Stray        all of the acting set have restarted, its log    Fencing
//	             is the best, and its compare-and-swap succeeds
//	Fencing      it has left its old group                        Peering
//	Peering      all acting members have the primary's log and    Forming
//	             have recorded the epoch, and are enough
//	Forming      the group is formed                              Active
//	Forming,     the group has failed                             Peering
//	Active
//	all          the map has another primary                      Replica, Stray
type State uint8

// States of a node.
const (
	Stray   State = iota // it is not in the acting set; what it lacks may be on its way
	Replica              // it is in the acting set, and not the primary
	Fencing              // from here on it is the primary
	Peering
	Forming
	Active // only now it takes writes, and serves reads if it has leases
)

func (s State) String() string {
	return [...]string{"stray", "replica", "fencing", "peering", "forming", "active"}[s]
}

// A Node is one host's part in a volume. Its methods are for one goroutine at a time. Times are of
// the host's monotonic clock, and above 0.
type Node struct {
	cfg  Config
	self Member
	hard HardState
	log  history
	disk disk

	commit  uint64 // entries that were, or could have been, acknowledged
	stable  uint64 // entries that are durable at all acting members
	applied uint64 // entries that the store has

	osdmap   Map
	proposal *Map // its outcome is not known
	asking   bool // for the map

	follow  follower
	lead    *primary // nil: it does not lead
	notices []notice // of the latest incarnation of each other host

	beat    time.Duration // when the next is due
	refused uint64        // messages and events that broke a rule
	out     []Action
}

type notice struct {
	Member
	Notify
}

// New makes a node of what is stored. The configuration must be checked.
func New(cfg Config, s Stored, now time.Duration) *Node {
	n := &Node{cfg: cfg, hard: s.HardState, log: history{s.Tail, slices.Clone(s.Runs)}}
	n.disk.durable, n.disk.hard = n.log.head().Index, s.HardState
	n.applied = s.Tail.Index
	n.stable = max(s.Applying, s.Tail.Index)
	n.commit = n.stable
	n.hard.Incarnation = max(s.Incarnation+1, cfg.Boot)
	if n.hard.Born == 0 {
		n.hard.Born = n.hard.Incarnation
	}
	n.self = Member{cfg.Self, n.hard.Incarnation}
	n.follow.granted = now // an earlier incarnation may have granted one
	n.save()
	n.apply()
	return n
}

// Take returns the actions since the last call, in order.
func (n *Node) Take() []Action {
	out := n.out
	n.out = nil
	return out
}

func (n *Node) do(a Action) {
	if n.out == nil {
		n.out = make([]Action, 0, 8) // as many as a write has
	}
	n.out = append(n.out, a)
}

// refuse counts what broke a rule.
func (n *Node) refuse() { n.refused++ }

func (n *Node) send(to Member, iv Interval, b Body) {
	if n.disk.hard.Incarnation == n.self.Incarnation { // else a former one might be taken for this one
		n.do(Send{Message{n.cfg.Volume, n.self, to, iv, b}})
	}
}

// Status is what others may know of a node.
type Status struct {
	State                           State
	Self                            Member
	Map                             Map
	Head                            Version
	Commit, Stable, Applied, Refuse uint64
	Backfilling                     bool
	// Leased: reads are served, and writes acknowledged.
	Leased bool
	Disk   HardState // that is durable
	Synced Version   // the last entry of the log that is
}

// Status returns the node's present status.
func (n *Node) Status(now time.Duration) Status {
	synced, _ := n.log.at(n.disk.durable)
	return Status{n.State(), n.self, n.osdmap, n.log.head(), n.commit, n.stable, n.applied, n.refused, n.hard.Backfilling, n.leased(now), n.disk.hard, synced}
}

// State is what the node is.
func (n *Node) State() State {
	switch {
	case n.lead != nil:
		return n.lead.state
	case n.osdmap.Acts(n.self):
		return Replica
	}
	return Stray
}

// Deadline is when Tick must be called if nothing else happens.
func (n *Node) Deadline() time.Duration {
	due := n.beat
	if n.lead != nil {
		for i := range n.lead.peers {
			if at := n.lead.peers[i].asked.rest; at > 0 {
				due = min(due, at)
			}
		}
	}
	return due
}

// Tick does what is due.
func (n *Node) Tick(now time.Duration) {
	if n.lead != nil {
		n.resume(now)
	}
	if now < n.beat {
		return
	}
	n.beat = now + n.cfg.Beat
	n.asking = false
	if n.proposal != nil {
		n.do(Propose{*n.proposal})
	}
	if n.lead != nil {
		n.tickPrimary(now)
	} else {
		n.tickFollower(now)
	}
}

// Synced says that all changes up to seq are durable.
func (n *Node) Synced(seq uint64, now time.Duration) {
	if seq > n.disk.seq {
		n.refuse()
		return
	}
	was := n.disk.hard
	n.disk.synced(seq)
	n.fill()
	n.apply()
	switch f := &n.follow; {
	case n.lead != nil:
		n.advance(now)
	case n.disk.hard == was && n.reports() && f.group == f.interval:
		n.send(n.osdmap.Primary, f.interval, Durable{min(f.match, n.disk.durable)})
	default:
		n.report()
	}
}

// readMap asks for the map, once in a beat.
func (n *Node) readMap() {
	if !n.asking {
		n.asking = true
		n.do(ReadMap{})
	}
}

// propose asks for a change of the map. Until a newer map is known, it may take effect at any time.
func (n *Node) propose(primary Member, since uint64, acting []Member) {
	m := n.osdmap
	m.Epoch, m.Since, m.Primary, m.Acting = m.Epoch+1, since, primary, acting
	n.proposal = &m
	n.do(Propose{m})
}

// MapIs is the map that the configuration manager has, or had.
func (n *Node) MapIs(m Map, now time.Duration) {
	n.asking = false
	if m.Epoch <= n.osdmap.Epoch || m.Epoch < n.hard.Epoch {
		return
	}
	was := n.osdmap
	n.osdmap, n.proposal = m, nil
	n.hard.Epoch = m.Epoch
	n.save()
	if m.Up != nil {
		n.replace(m.Up)
	}
	switch {
	case m.Since == was.Since:
		switch {
		case n.lead == nil:
		case m.Epoch > was.Epoch+1: // a host may have lost its place and got it again: what it has said does not count
			n.regroup(now)
		default:
			n.require()
			n.advance(now)
		}
		return
	case n.lead != nil:
		n.depose()
	}
	n.follow.granted = now // the new primary gets its time
	switch {
	case m.Primary == n.self:
		n.lead = &primary{interval: Interval{Since: m.Since}, state: Fencing, granted: n.follow.grants}
		if n.follow.group == (Interval{}) {
			n.begin(now)
			return
		}
		n.leave()
	case n.follow.group != Interval{}:
		n.leave() // nothing of the old primary lands here any more
	}
}

// replace takes the hosts that may have a copy. Those that are not among them any more are forgotten.
func (n *Node) replace(up []ID) {
	n.cfg.Up = up
	n.notices = slices.DeleteFunc(n.notices, func(x notice) bool { return !slices.Contains(up, x.ID) })
	if n.lead != nil {
		n.lead.peers = slices.DeleteFunc(n.lead.peers, func(p peer) bool { return !slices.Contains(up, p.member.ID) })
	}
}

func (n *Node) leave() {
	if !n.follow.leaving {
		n.follow.leaving = true
		n.do(Leave{n.follow.group})
	}
}

// Left says that the membership in a group has ended, and that all that has landed was told.
func (n *Node) Left(iv Interval, now time.Duration) {
	f := &n.follow
	if iv != f.group {
		return
	}
	f.group, f.leaving, f.cut, f.landed = Interval{}, false, 0, 0
	if n.lead != nil && n.lead.state == Fencing {
		n.begin(now)
	} else if f.next != (Interval{}) {
		n.enter(f.next)
		n.report()
	}
}

// storable is up to where entries may be in a store: those that no acting member can lose.
func (n *Node) storable() uint64 { return min(n.commit, n.stable, n.disk.durable) }

// apply has the store take what is stable, and drops what the log need not keep. What the store may
// have is recorded before: so a log is never truncated below that.
func (n *Node) apply() {
	hard := &n.disk.hard
	if hard.Backfilling || n.hard.Backfilling {
		if n.follow.stage == Pulling {
			n.trim() // what was applied: the store has it, or gets it with later pieces
		}
		return
	}
	if to := min(hard.Applying, n.log.head().Index); to > n.applied {
		n.applied = to
		n.do(Apply{To: to})
	}
	if to := n.storable(); to > n.hard.Applying && n.hard.Applying == hard.Applying {
		n.hard.Applying = to
		n.save()
	}
	n.trim()
}

// trim keeps what a member of the acting set may need, and what members that return may.
func (n *Node) trim() {
	head := n.log.head().Index
	to := min(n.applied, n.stable, head-min(head, n.cfg.Keep))
	if n.lead != nil && head-n.log.tail.Index < n.cfg.Limit/2 {
		for i := range n.lead.peers {
			to = min(to, n.lead.peers[i].base())
		}
	}
	if to >= n.log.tail.Index+max(1, n.cfg.Keep/4) {
		n.log.trim(to)
		n.persist(Trim{to})
	}
}
