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
	stage          Backfill
	cursor         uint64 // of the chunk that it asks for
	recovery

	adding    bool   // to the group
	barred    span   // from when to when it could not be added
	present   bool   // in the newest requested view
	left      bool   // while it was being added, it has joined and left again
	from      uint64 // the group sends it the entries from this one on; 0: none
	promoting bool   // it has all acknowledged entries, and will be proposed
}

// span is the time from the first event of a kind to the last; zero: there was none.
type span struct{ first, last time.Duration }

func (s *span) length() time.Duration { return s.last - s.first }

// add adds an event, after a pause as the first.
func (s *span) add(now, pause time.Duration) {
	if s.last == 0 || now-s.last >= pause {
		s.first = now
	}
	s.last = now
}

// recovery is what a member is sent that it lacks.
type recovery struct {
	refill bool    // its store must be copied, by its first report
	old    bool    // all of its log is older than what is trimmed here: if it is acting, its disk has lost stable entries
	pushed attempt // by the entry after which the store copy began
	asked  attempt // for a chunk, by its cursor
	reset  reset
	race   race
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

// race is between a member that is catching up and clients that write: what each has got of the log
// since it began, in bytes.
type race struct {
	base, head uint64        // sizes up to the member's base and to the head when it began
	gained     time.Duration // when the member, or a client while others wait, has got something; 0: there is no race
}

// race begins, or goes on, when a member has got what is after from.
func (n *Node) race(p *peer, from uint64, now time.Duration) {
	if r := &p.race; r.gained == 0 || now-r.gained >= n.cfg.Lease {
		r.base, r.head = n.size(from), n.size(n.log.head().Index)
	}
	p.race.gained = now
}

// outruns reports that clients must wait for a member that is catching up. Otherwise they would
// write more than half as much as it gets, or so much that the log is trimmed after it is known
// that the member needs no further copy of the store. If it gets nothing for a lease after all
// earlier writes are done, or cannot be added to the group, they do not wait.
func (n *Node) outruns(p *peer, now time.Duration) bool {
	r, head, base := &p.race, n.log.head().Index, p.origin()
	switch lacks := head - base; {
	case p.barred.length() >= recent*n.cfg.Grace && now-p.barred.last < longest*n.cfg.Lease:
		return false // it would not be added either way; at times they wait, as it may be possible again
	case r.gained == 0 || now-r.gained >= n.cfg.Lease || lacks <= n.cfg.Near || p.from != 0 && base+1 >= p.from:
		return false
	case (p.from != 0 || p.reset.sent) && lacks+1 >= n.cfg.Limit/2:
		return true
	default:
		return p.from == 0 && n.size(head)-r.head > (n.size(base)-r.base)/2
	}
}

func (n *Node) size(index uint64) uint64 {
	if n.cfg.Size == nil {
		return index
	}
	return n.cfg.Size(index)
}

// base returns the entry after which the member may need entries of the log.
func (p *peer) base() uint64 { return max(p.match, p.next, p.durable) }

// origin is base, or where the member's log begins anew.
func (p *peer) origin() uint64 { return max(p.base(), p.reset.tail) }

func (p *peer) leased(now, lease time.Duration) bool { return p.lease > 0 && now-p.lease < lease }

func (n *Node) peer(m Member) *peer {
	for i := range n.lead.peers {
		if p := &n.lead.peers[i]; p.member == m {
			return p
		}
	}
	return nil
}
