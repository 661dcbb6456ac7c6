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
	Stray   State = iota // it is not in the acting set; it may be catching up
	Replica              // it is in the acting set, and not the primary
	Fencing              // from here on it is the primary
	Peering
	Forming
	Active // it accepts writes, and serves reads if it has leases
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

// New returns a node with the stored state. The configuration must be valid (Check).
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

// refuse counts violations of the rules.
func (n *Node) refuse() { n.refused++ }

func (n *Node) send(to Member, iv Interval, b Body) {
	if n.disk.hard.Incarnation == n.self.Incarnation { // else a former one might be taken for this one
		n.do(Send{Message{n.cfg.Volume, n.self, to, iv, b}})
	}
}

// persist makes a change durable.
func (n *Node) persist(c Change) {
	d := &n.disk
	d.seq++
	d.pending = append(d.pending, operation{d.seq, n.log.head().Index, n.hard})
	n.do(Persist{d.seq, c})
}

func (n *Node) save() { n.persist(Save{n.hard}) }

func (n *Node) append(v Version) {
	n.log.add(v)
	n.persist(Append{v})
}

// truncate drops the entries after an index. It returns false if the store may have some of them,
// which is possible only if other members' disks have lost stable entries: then the store must be
// copied.
func (n *Node) truncate(after uint64) bool {
	if after < n.hard.Applying {
		n.refuse()
		return false
	}
	n.log.truncate(after)
	n.commit, n.stable = min(n.commit, after), min(n.stable, after)
	n.cap(after)
	n.persist(Truncate{after})
	return true
}

// cap records that entries after an index are no longer those appended earlier.
func (n *Node) cap(index uint64) {
	n.disk.durable = min(n.disk.durable, index)
	for i := range n.disk.pending {
		n.disk.pending[i].head = min(n.disk.pending[i].head, index)
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

func (n *Node) leave() {
	if !n.follow.leaving {
		n.follow.leaving = true
		n.do(Leave{n.follow.group})
	}
}

// storable returns the index up to which entries may be in a store: no acting member can lose
// those.
func (n *Node) storable() uint64 { return min(n.commit, n.stable, n.disk.durable) }

// apply applies stable entries to the store, and trims the log. The limit for applying is recorded
// before, so a log is never truncated below it.
func (n *Node) apply() {
	hard := &n.disk.hard
	if hard.Backfilling || n.hard.Backfilling {
		if n.follow.stage == Pulling {
			n.trim() // the applied entries: the store has them, or gets them with later pieces
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

// trim trims the log, except for entries that acting or returning members may need.
func (n *Node) trim() {
	head := n.log.head().Index
	to := min(n.applied, n.stable, head-min(head, n.cfg.Keep))
	if n.lead != nil {
		for i := range n.lead.peers {
			if base := max(n.lead.peers[i].origin(), n.log.tail.Index); head-base < n.cfg.Limit/2 {
				to = min(to, base)
			}
		}
	}
	if to >= n.log.tail.Index+max(1, n.cfg.Keep/4) {
		n.log.trim(to)
		n.persist(Trim{to})
	}
}
