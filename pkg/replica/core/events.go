package core

import (
	"slices"
	"time"
)

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

// Tick does the due work.
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

// MapIs is the outcome of ReadMap and Propose: the configuration manager's map, which may be out of
// date.
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
		case m.Epoch > was.Epoch+1: // a host may have lost its place and got it again: its earlier reports do not count
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
		n.lead = &primary{interval: Interval{Since: m.Since}, state: Fencing, granted: slices.Clone(n.follow.grants)}
		if n.follow.group == (Interval{}) {
			n.begin(now)
			return
		}
		n.leave()
	case n.follow.group != Interval{}:
		n.leave() // nothing of the old primary is received any more
	}
}

// replace sets the hosts that may have a copy. Others are forgotten.
func (n *Node) replace(up []ID) {
	n.cfg.Up = up
	n.notices = slices.DeleteFunc(n.notices, func(x notice) bool { return !slices.Contains(up, x.ID) })
	if n.lead != nil {
		n.lead.peers = slices.DeleteFunc(n.lead.peers, func(p peer) bool { return !slices.Contains(up, p.member.ID) })
	}
}

// Left says that the membership in a group has ended, and that all received entries have been
// reported.
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

// Step handles a message.
func (n *Node) Step(m Message, now time.Duration) {
	if m.Volume != n.cfg.Volume || m.To != n.self && m.To != (Member{ID: n.self.ID}) || m.From.ID == n.self.ID || !slices.Contains(n.cfg.Up, m.From.ID) {
		n.refuse()
		return
	}
	switch b := m.Body.(type) {
	case Notify:
		n.notified(m.From, b, now)
		return
	case Report:
		n.reported(m, b, now)
		return
	case Durable:
		n.durable(m, b, now)
		return
	}
	if m.Interval.Since > n.osdmap.Since {
		n.readMap()
		return
	}
	f := &n.follow
	if n.lead != nil || m.From != n.osdmap.Primary || m.Interval.Since != n.osdmap.Since || m.Interval.Round < f.interval.Round && f.interval.Since == n.osdmap.Since {
		n.refuse() // of an older epoch, of an older group, or not the primary
		return
	}
	if m.Interval != f.interval {
		if n.enter(m.Interval); m.Interval != f.interval {
			return
		}
	}
	switch b := m.Body.(type) {
	case Lease:
		n.lease(b, now)
	case Push:
		n.push(b)
	case Start:
		n.start(b)
	case Chunk:
		n.chunk(b)
	}
	n.learn()
	n.fill()
	n.apply()
	n.report()
}
