package core

import "time"

// peer is another member, in or out of the acting set.
type peer struct {
	member Member
	heard  time.Duration // of a report; at first when the interval began
	lease  time.Duration // when the newest granted request was sent; 0: none
	known  bool          // it has reported its log

	next           uint64 // the log is the same up to here, by its first report
	match, durable uint64
	started        bool
	refill         bool // its store must be copied, by its first report
	old            bool // all of its log is older than what is trimmed here: if it is acting, its disk has lost stable entries
	stage          Backfill
	cursor         uint64 // of the chunk that it asks for

	pushed attempt // by the entry after which the store copy began
	asked  attempt // for a chunk, by its cursor
	reset  reset

	adding    bool   // to the group
	present   bool   // in the newest requested view
	left      bool   // while it was being added, it has joined and left again
	from      uint64 // the group sends it the entries from this one on; 0: none
	promoting bool   // it has all acknowledged entries, and will be proposed
}

// attempt is the last long message sent to a member.
type attempt struct {
	from  uint64
	begun time.Duration // when it was first sent; 0: it has arrived, or nothing was sent
	took  time.Duration // how long the previous one took until it was known to have arrived
	wait  time.Duration // time after the last transmission until it counts as lost
	again time.Duration // when that is
	calls uint64        // of clients, when it was sent
	rest  time.Duration // pause for clients' calls: nothing more is sent before; 0: no pause
}

const (
	// patience is the multiple of the previous attempt's time that an attempt may take. The link
	// may be slow or busy, and retransmissions make it slower.
	patience = 4
	// longest is the maximum time, in leases, until a retransmission.
	longest = 16
	// pace is the pause of a backfill after each piece while clients have calls, as a multiple of
	// the piece's time. Even if calls stood still while a piece is sent, they would lose only a
	// seventh.
	pace = 6
)

// due reports whether to send a message: it differs from the last one, or that was probably lost.
func (a *attempt) due(from uint64, now, lease time.Duration) bool {
	if a.from != from {
		a.from, a.begun = from, 0
	}
	switch {
	case a.begun == 0:
		a.begun, a.wait = now, min(patience*max(lease, a.took), longest*lease)
	case now < a.again:
		return false
	default:
		a.wait = min(2*a.wait, longest*lease)
	}
	a.again = now + a.wait
	return true
}

// arrived records that the attempt has arrived.
func (a *attempt) arrived(now time.Duration) {
	if a.begun != 0 {
		a.took, a.begun = now-a.begun, 0
	}
}

// reset is the latest Push with Reset that was sent. It may still arrive, unless the member has
// advanced.
type reset struct {
	sent       bool
	have, tail uint64
}

func (p *peer) resetPending() bool {
	return p.reset.sent && p.match <= p.reset.have && (p.stage != Filled || p.match < p.reset.tail)
}

// base returns the entry after which the member may need entries of the log.
func (p *peer) base() uint64 { return max(p.match, p.next, p.durable) }

func (p *peer) leased(now, lease time.Duration) bool { return p.lease > 0 && now-p.lease < lease }

func (n *Node) peer(m Member) *peer {
	for i := range n.lead.peers {
		if p := &n.lead.peers[i]; p.member == m {
			return p
		}
	}
	return nil
}
