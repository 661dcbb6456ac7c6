package core

import "time"

// Status is the published status of a node.
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

// State returns the node's state.
func (n *Node) State() State {
	switch {
	case n.lead != nil:
		return n.lead.state
	case n.osdmap.Acts(n.self):
		return Replica
	}
	return Stray
}

// Waits returns why requests wait at this primary, or why there is none, and for which hosts; "": they
// do not wait, as far as the node knows.
func (n *Node) Waits(now time.Duration) (why string, hosts []ID) {
	l := n.lead
	if l == nil {
		if hosts := n.replaced(); len(hosts) > 0 {
			return "all acting hosts have started again, and copies are new or incomplete, without what these hosts had", hosts
		}
		return "", nil
	}
	waits := func(why string, lacks func(p *peer) bool) (string, []ID) {
		var hosts []ID
		for _, m := range l.required {
			if p := n.peer(m); p == nil || lacks(p) {
				hosts = append(hosts, m.ID)
			}
		}
		return why, hosts
	}
	switch {
	case len(n.osdmap.Acting) < n.osdmap.MinSize:
		return "fewer hosts act than min_size", nil
	case l.state == Fencing:
		return "it leaves the group of the former primary", nil
	case l.state == Peering:
		return waits("acting hosts do not have its log yet", func(p *peer) bool { return !p.started })
	case l.state == Forming:
		return "the group is being formed", nil
	case !n.leased(now):
		return waits("it has no lease", func(p *peer) bool { return !p.leased(now, n.cfg.Lease) })
	case l.wanted != nil:
		return "the map must change before the group goes on", nil
	case n.full():
		return waits("the log is full, and not on disk everywhere", func(p *peer) bool { return p.durable <= n.stable })
	}
	for i := range l.peers {
		if p := &l.peers[i]; n.outruns(p, now) {
			return "writes are slowed down for a host that is catching up", []ID{p.member.ID}
		}
	}
	if len(l.flushes) > 0 && l.flushes[0].index <= n.commit {
		return waits("a flush is not on disk everywhere", func(p *peer) bool { return p.durable < l.flushes[0].index })
	}
	return "", nil
}

// replaced returns the acting hosts without their copies, if none of the acting hosts still has everything in memory:
// revive waits for the operator to remove them from the map, or to bring the copies back.
func (n *Node) replaced() (hosts []ID) {
	for _, m := range n.osdmap.Acting {
		x := notice{n.self, Notify{HardState: n.disk.hard}}
		if m.ID != n.self.ID {
			i := n.noticeOf(m.ID)
			if i < 0 {
				return nil
			}
			x = n.notices[i]
		}
		if x.Member.Incarnation <= m.Incarnation {
			return nil
		}
		if x.lacks(m) {
			hosts = append(hosts, m.ID)
		}
	}
	return hosts
}
