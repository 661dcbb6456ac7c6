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
