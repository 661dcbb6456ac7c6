// Package health decides which of a sender's peers are dead, from how they answer beats. It
// is pure: the caller reports what happens and when, and it returns what has changed.
//
//	t := health.New(health.Config{Interval: …, DeadAfter: …, Grace: …})
//	t.Add(addr, now)
//	…
//	t.Answered(addr, now)       // or t.Refused(addr, now), if no daemon listens there
//	for _, c := range t.Step(now) { … c.Addr became c.State … }
//
// A peer that answers is OK. A peer that is not heard of for half of DeadAfter is Silent,
// and Gone after DeadAfter. One whose host refuses connections is Down: the daemon is gone,
// its applications may live; after Grace it is Gone. A peer that is Gone stays so until it
// is added anew.
//
// The package imports the standard library only.
package health

import (
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
	// For is how long it has not answered.
	For time.Duration
}

// A Tracker follows peers.
type Tracker struct {
	cfg   Config
	peers map[netip.Addr]*peer
	last  time.Time // Step or Blame
}

type peer struct {
	state    State
	answered time.Time // last answer
	heard    time.Time // last answer or refusal
	refused  bool      // the last thing heard was a refusal
}

// New makes a tracker without peers.
func New(cfg Config) *Tracker {
	return &Tracker{cfg: cfg, peers: map[netip.Addr]*peer{}}
}

// Add begins to follow a peer that has just answered. One that is followed and not
// Gone stays what it is.
func (t *Tracker) Add(a netip.Addr, now time.Time) {
	if t.last.IsZero() {
		t.last = now
	}
	if p := t.peers[a]; p == nil || p.state == Gone {
		t.peers[a] = &peer{answered: now, heard: now}
	}
}

// Remove stops following a peer.
func (t *Tracker) Remove(a netip.Addr) { delete(t.peers, a) }

// Peers are those that are followed, in order.
func (t *Tracker) Peers() []netip.Addr {
	out := make([]netip.Addr, 0, len(t.peers))
	for a := range t.peers {
		out = append(out, a)
	}
	slices.SortFunc(out, netip.Addr.Compare)
	return out
}

// Follows says whether a peer is followed.
func (t *Tracker) Follows(a netip.Addr) bool { return t.peers[a] != nil }

// State is a peer's; OK if it is not followed.
func (t *Tracker) State(a netip.Addr) State {
	if p := t.peers[a]; p != nil {
		return p.state
	}
	return OK
}

// Answered says that a peer has answered.
func (t *Tracker) Answered(a netip.Addr, now time.Time) {
	if p := t.peers[a]; p != nil {
		p.answered, p.heard, p.refused = now, now, false
	}
}

// Refused says that a peer's host has refused a connection: the host is there, and
// the daemon is not.
func (t *Tracker) Refused(a netip.Addr, now time.Time) {
	if p := t.peers[a]; p != nil {
		p.heard, p.refused = now, true
	}
}

// excuse blames no peer for the time in which the caller itself was held up.
func (t *Tracker) excuse(now time.Time) {
	if pause := now.Sub(t.last); len(t.peers) > 0 && pause > t.cfg.DeadAfter/8+t.cfg.Interval {
		for _, p := range t.peers {
			p.answered = earlier(p.answered.Add(pause-t.cfg.Interval), now)
			p.heard = earlier(p.heard.Add(pause-t.cfg.Interval), now)
		}
	}
	t.last = now
}

// Step returns which peers have changed, in order of their addresses. If the caller itself
// was held up since the last step, no peer is blamed for that time.
func (t *Tracker) Step(now time.Time) []Change {
	t.excuse(now)
	var out []Change
	for _, a := range t.Peers() {
		p := t.peers[a]
		if s := t.judge(p, now); s != p.state {
			p.state = s
			out = append(out, Change{a, s, now.Sub(p.answered)})
		}
	}
	return out
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

func (t *Tracker) judge(p *peer, now time.Time) State {
	silence := now.Sub(p.heard)
	switch {
	case p.state == Gone || silence >= t.cfg.DeadAfter || now.Sub(p.answered) >= t.cfg.Grace:
		return Gone
	case silence >= t.cfg.DeadAfter/2:
		return Silent
	case p.refused:
		return Down
	}
	return OK
}

// missed is how many beats in a row make a peer the suspect of a stall, if they are
// a quarter of DeadAfter, too.
const missed = 3

// Blame says which of these peers are to blame for a stall that the data path reports:
// those that do not answer either. They are Gone from now on. If no peer answers, this side
// may be to blame, and only time tells. One whose host refuses is among them if down is
// true: its applications may be well, and the caller may know another way to find out.
func (t *Tracker) Blame(among []netip.Addr, now time.Time, down bool) []Change {
	t.excuse(now)
	var out []Change
	answers := false
	for _, a := range among {
		p := t.peers[a]
		if p == nil || p.state == Gone {
			continue
		}
		silent := now.Sub(p.answered)
		refuses := p.refused && now.Sub(p.heard) < t.cfg.DeadAfter/4
		switch {
		case refuses && !down:
			answers = true // its host answers
		case p.refused || silent >= missed*t.cfg.Interval && silent >= t.cfg.DeadAfter/4:
			out = append(out, Change{a, Gone, silent})
		default:
			answers = true
		}
	}
	out = slices.DeleteFunc(out, func(c Change) bool { return !answers && !t.peers[c.Addr].refused })
	for _, c := range out {
		t.peers[c.Addr].state = Gone
	}
	return out
}
