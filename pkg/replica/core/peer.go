package core

import "time"

// peer is another member, in or out of the acting set.
type peer struct {
	member Member
	heard  time.Duration // of a report; at first when the interval began
	lease  time.Duration // when the newest request that it has granted was sent; 0: none was
	known  bool          // it has reported its log

	next           uint64 // the log is the same up to here, by its first report
	match, durable uint64
	started        bool
	refill         bool // its store has to be copied, by its first report
	old            bool // all of its log is older than what is trimmed here: if it is acting, its disk has lost what was stable
	stage          Backfill
	cursor         uint64 // of the chunk that it asks for

	pushed attempt // by the entry after which it began
	asked  attempt // for a chunk, by its cursor
	reset  reset

	adding    bool   // to the group
	present   bool   // in the newest view that was asked for
	left      bool   // while it was being added it has come, and left again
	from      uint64 // it gets the entries from this one on by the group; 0: it gets none
	promoting bool   // it has all that is acknowledged, and is going to be proposed
}

// attempt is what was sent to a member last, and is long to send.
type attempt struct {
	from  uint64
	begun time.Duration // when it was sent first; 0: it has arrived, or nothing was sent
	took  time.Duration // what came before it, until that was known to have arrived
	wait  time.Duration // from when it was sent last until it has probably been lost
	again time.Duration // when that is
	calls uint64        // of clients, when it was sent
	rest  time.Duration // nothing more is sent before, as clients have calls; 0: they have none
}

const (
	// patience is how many times as long as the one before an attempt may take. The link may be slow, or busy: what is
	// sent again then makes it slower.
	patience = 4
	// longest is after how many leases something is sent again at the latest.
	longest = 16
	// pace is how many times as long as a piece took a backfill rests after it, if clients have calls meanwhile. Even if
	// they stood still while a piece is sent they would lose a seventh.
	pace = 6
)

// due says whether something is to be sent: it is something else, or has probably been lost.
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

// arrived says that what was sent has arrived.
func (a *attempt) arrived(now time.Duration) {
	if a.begun != 0 {
		a.took, a.begun = now-a.begun, 0
	}
}

// reset is the latest Push with Reset that was sent. It may still arrive, unless the member has gone on.
type reset struct {
	sent       bool
	have, tail uint64
}

func (p *peer) resetPending() bool {
	return p.reset.sent && p.match <= p.reset.have && (p.stage != Filled || p.match < p.reset.tail)
}

// base is the entry after which it may need entries of the log.
func (p *peer) base() uint64 { return max(p.match, p.next) }

func (p *peer) leased(now, lease time.Duration) bool { return p.lease > 0 && now-p.lease < lease }

func (n *Node) peer(m Member) *peer {
	for i := range n.lead.peers {
		if p := &n.lead.peers[i]; p.member == m {
			return p
		}
	}
	return nil
}
