// Package health decides which of a sender's peers are dead, by their answers to beats. It is pure:
// the caller reports events with their times, and gets the changes.
//
//	t := health.New(health.Config{Interval: …, DeadAfter: …, Grace: …})
//	t.Add(addr, now)
//	…
//	t.Answered(addr, now)       // or t.Refused(addr, now), if no daemon listens there
//	for _, c := range t.Tick(now, busy) { … c.Addr became c.State … } // every Interval
//
// A peer that answers is OK. A peer that has not answered for half of DeadAfter is Silent, and
// after DeadAfter it is Gone. One whose host refuses connections is Down: the daemon has ended, but
// its applications may be alive; after Grace it is Gone. A peer that is Gone stays so until it is
// added again.
//
// # The caller's own delay
//
// Silence is counted in the caller's own time. Tick must be called every Interval. If a call is
// late by more than a part of Interval, the caller was held up, and its own time stood still for
// that long.
//
// # The adaptive timeout
//
// A peer that is slow to answer gets more time than DeadAfter: eight times the longest recent
// silence that ended with an answer, but at most three times DeadAfter. A delay of the caller's own
// counts as such a silence, because its cause may delay the peer, too. The maximum decays by 1/256
// with each answer. This is like other adaptive detectors (Chen, Toueg, Aguilera 2002; phi accrual:
// Hayashibara et al. 2004), with a maximum in place of a distribution: delays of busy hosts come in
// bursts, which neither mean nor deviation of earlier silences predict. If the peer was busy when it
// answered last, or the caller has been busy since, the peer gets three times DeadAfter.
//
// # While data stalls
//
// When the data path reports that nothing is acknowledged, less silence is enough: if another peer
// answers, Blame makes those peers Gone that have not answered for the longest of three Intervals,
// a quarter of DeadAfter (for a busy peer, half), and twice the longest recent silence. Suspects
// covers those that refuse connections. A peer whose kernel acknowledges data, or all of it (Acknowledged), is
// slow, but its host is up: it gets as much time as without a stall.
package health

import (
	"maps"
	"math"
	"net/netip"
	"slices"
	"time"
)

// Config says how patient to be. All must be positive.
type Config struct {
	Interval  time.Duration // of beats
	DeadAfter time.Duration // of silence
	Grace     time.Duration // of refusals
}

// A State is what is believed of a peer.
type State uint8

// States.
const (
	OK State = iota
	Silent
	Down
	Gone
)

var names = [...]string{"ok", "silent", "down", "gone"}

func (s State) String() string {
	if int(s) < len(names) {
		return names[s]
	}
	return "?"
}

// A Change is a peer's new state.
type Change struct {
	Addr  netip.Addr
	State State
	Was   State         // before
	Since time.Time     // when it changed
	For   time.Duration // how long it has not answered
}

// A Tracker follows peers. Times of peers are in the caller's own time.
type Tracker struct {
	cfg     Config
	peers   map[netip.Addr]*peer
	due     time.Time     // of the next Tick
	skipped time.Duration // for how long own time has stood still
	late    time.Duration // of late: the longest for which it did
}

type peer struct {
	state    State
	was      State
	since    time.Time     // it is in state
	answered time.Time     // last answer
	heard    time.Time     // last answer or refusal
	refused  bool          // the last thing heard was a refusal
	slowest  time.Duration // of late: the longest silence that ended
	busy     bool          // its host was busy at its last answer, or the caller's has been since
	acked    time.Time     // its kernel acknowledged something
}

const (
	maxPatience = 3   // times DeadAfter
	perSilence  = 8   // DeadAfter is at least so many of the longest silences of late
	inStall     = 4   // the part of it that is enough while the data path stalls
	busyInStall = 2   // the same, of a peer that is busy
	fade        = 256 // the part of what is of late that each answer, or Tick, takes away
	tolerance   = 4   // the part of Interval by which Tick may be late and no time stands still
)

// New makes a tracker without peers.
func New(cfg Config) *Tracker {
	return &Tracker{cfg: cfg, peers: map[netip.Addr]*peer{}}
}

// own returns the caller's own time.
func (t *Tracker) own(now time.Time) time.Time {
	if late := now.Sub(t.due); late > t.cfg.Interval/tolerance && !t.due.IsZero() {
		t.skipped += late
		t.due = now
		t.late = max(t.late, t.most(late))
	}
	return now.Add(-t.skipped)
}

// most bounds a silence by what makes the caller as patient as it can be.
func (t *Tracker) most(silence time.Duration) time.Duration {
	return min(silence, maxPatience*t.cfg.DeadAfter*inStall/perSilence)
}

// Add begins to follow a peer that has just answered. One that is followed and not
// Gone stays what it is.
func (t *Tracker) Add(a netip.Addr, now time.Time) {
	own := t.own(now)
	if t.due.IsZero() {
		t.due = now.Add(t.cfg.Interval)
	}
	if p := t.peers[a]; p == nil || p.state == Gone {
		t.peers[a] = &peer{since: now, answered: own, heard: own}
	}
}

// Remove stops following a peer.
func (t *Tracker) Remove(a netip.Addr) { delete(t.peers, a) }

// Peers are those that are followed, in order.
func (t *Tracker) Peers() []netip.Addr {
	return slices.SortedFunc(maps.Keys(t.peers), netip.Addr.Compare)
}

// Follows says whether a peer is followed.
func (t *Tracker) Follows(a netip.Addr) bool { return t.peers[a] != nil }

// State is a peer's; OK if it is not followed.
func (t *Tracker) State(a netip.Addr) State { return t.Last(a, t.due).State }

// Last is the latest change of a peer's state, and how long it has not answered by now; zero if it is
// not followed.
func (t *Tracker) Last(a netip.Addr, now time.Time) Change {
	if p := t.peers[a]; p != nil {
		return Change{a, p.state, p.was, p.since, t.own(now).Sub(p.answered)}
	}
	return Change{Addr: a}
}

// Answered says that a peer has answered: a beat or any other call.
func (t *Tracker) Answered(a netip.Addr, now time.Time) {
	if p := t.peers[a]; p != nil {
		own := t.own(now)
		p.slowest = max(t.most(own.Sub(p.heard)), p.slowest-p.slowest/fade)
		p.answered, p.heard, p.refused = own, own, false
	}
}

// Acknowledged says that a peer's kernel has acknowledged what was sent to the peer, some time ago.
func (t *Tracker) Acknowledged(a netip.Addr, now time.Time, ago time.Duration) {
	if p := t.peers[a]; p != nil {
		p.acked = t.own(now).Add(-ago)
	}
}

// Busy says whether a peer's host has more work than it can do at once, as an answer of it says.
func (t *Tracker) Busy(a netip.Addr, busy bool) {
	if p := t.peers[a]; p != nil {
		p.busy = busy
	}
}

// Patience is how much longer than usual the slowest of these peers may take: 1 to 3.
func (t *Tracker) Patience(among []netip.Addr) float64 {
	most := t.cfg.DeadAfter
	for _, a := range among {
		if p := t.peers[a]; p != nil {
			most = max(most, t.patience(p))
		}
	}
	return float64(most) / float64(t.cfg.DeadAfter)
}

// Refused says that a peer's host has refused a connection: the host is there, and
// the daemon is not.
func (t *Tracker) Refused(a netip.Addr, now time.Time) {
	if p := t.peers[a]; p != nil {
		p.heard, p.refused = t.own(now), true
	}
}

// Tick returns which peers have changed, in order of their addresses. It is to be called every
// Interval, from New on. busy says that the caller's host has more work than it can do at once: no
// peer that has not answered since is given up as soon as usual.
func (t *Tracker) Tick(now time.Time, busy bool) []Change {
	own := t.own(now)
	t.due = now.Add(t.cfg.Interval)
	t.late -= t.late / fade
	var out []Change
	for _, a := range t.Peers() {
		p := t.peers[a]
		p.busy = p.busy || busy
		if s := t.judge(p, own); s != p.state {
			p.state, p.was, p.since = s, p.state, now
			out = append(out, t.Last(a, now))
		}
	}
	return out
}

// patience is how long a peer may be silent.
func (t *Tracker) patience(p *peer) time.Duration {
	if p.busy {
		return maxPatience * t.cfg.DeadAfter
	}
	return min(max(t.cfg.DeadAfter, perSilence*t.slowest(p)), maxPatience*t.cfg.DeadAfter)
}

// slowest is the longest silence of late, the caller's own delay counted.
func (t *Tracker) slowest(p *peer) time.Duration { return max(p.slowest, t.late) }

func (t *Tracker) judge(p *peer, own time.Time) State {
	silence, patience := own.Sub(p.heard), t.patience(p)
	switch {
	case p.state == Gone || silence >= patience || own.Sub(p.answered) >= t.cfg.Grace:
		return Gone
	case silence >= patience/2:
		return Silent
	case p.refused:
		return Down
	}
	return OK
}

// missed is how many beats in a row make a peer the suspect of a stall, if they take long enough.
const missed = 3

// suspectIn is how long a peer may still be silent while the data path stalls.
func (t *Tracker) suspectIn(p *peer, own time.Time) time.Duration {
	least := max(missed*t.cfg.Interval, t.cfg.DeadAfter/inStall)
	if p.busy {
		least = max(least, t.cfg.DeadAfter/busyInStall)
	}
	silent := own.Sub(p.answered)
	in := max(least, perSilence*t.slowest(p)/inStall) - silent
	if !p.acked.IsZero() {
		in = max(in, least-own.Sub(p.acked))
	}
	return min(in, t.patience(p)-silent)
}

// SuspectIn is how long it takes at least until another of these peers is one of the Suspects,
// unless a host refuses.
func (t *Tracker) SuspectIn(among []netip.Addr, now time.Time) time.Duration {
	own, least := t.own(now), time.Duration(math.MaxInt64)
	for _, a := range among {
		if p := t.peers[a]; p != nil && p.state != Gone {
			if in := t.suspectIn(p, own); in > 0 {
				least = min(least, in)
			}
		}
	}
	return least
}

// Blame says which of these peers are to blame for a stall that the data path reports: the
// Suspects. They are Gone from now on.
func (t *Tracker) Blame(among []netip.Addr, now time.Time, down bool) []Change {
	out := t.Suspects(among, now, down)
	for _, c := range out {
		p := t.peers[c.Addr]
		p.state, p.was, p.since = Gone, p.state, now
	}
	return out
}

// Suspects are those of these peers that do not answer while the data path stalls. If no peer has
// answered in the latter half of a peer's silence, this side may be to blame, and only time tells.
// One whose host refuses is among them if down is true: its applications may be well, and the
// caller may know another way to find out.
func (t *Tracker) Suspects(among []netip.Addr, now time.Time, down bool) []Change {
	own, latest := t.own(now), time.Duration(math.MaxInt64)
	var out []Change
	for _, a := range among {
		p := t.peers[a]
		if p == nil || p.state == Gone {
			continue
		}
		refuses := p.refused && own.Sub(p.heard) < t.cfg.DeadAfter/4
		switch {
		case refuses && !down:
			latest = 0 // its host answers
		case p.refused || t.suspectIn(p, own) <= 0:
			out = append(out, Change{a, Gone, p.state, now, own.Sub(p.answered)})
		default:
			latest = min(latest, own.Sub(p.answered))
		}
	}
	return slices.DeleteFunc(out, func(c Change) bool { return latest > c.For/2 && !t.peers[c.Addr].refused })
}
