package engine

import "slices"

// What all members have, for a root that wants to know it: members tell the root how many
// messages are complete there, and it takes the least.

// A tally counts messages.
type tally struct {
	// At the root, if it wants to know.
	counts []int64 // complete messages of each member
	least  int64
	behind int   // members that have no more than the least
	said   int64 // what the root's owner was told

	// At a receiver.
	asked bool
	told  int64  // what the root was told
	msg   []byte // in which it is told; kept so that telling doesn't allocate
}

func (t *tally) start(members int) {
	t.counts, t.behind = make([]int64, members), members
}

// set notes at the root how many messages are complete at a member: no fewer than
// before.
func (t *tally) set(member int, count int64) {
	if t.counts == nil {
		return
	}
	if was := t.counts[member]; was == t.least && count > was {
		t.behind--
	}
	t.counts[member] = count
	if t.behind > 0 {
		return
	}
	t.least = slices.Min(t.counts)
	for _, c := range t.counts {
		if c == t.least {
			t.behind++
		}
	}
}

// nextEverywhere reports at the root what all members have.
func (e *Engine) nextEverywhere() (Action, bool) {
	t := &e.tally
	if t.said == t.least {
		return Action{}, false
	}
	t.said = t.least
	return Action{Kind: Everywhere, Size: t.said}, true
}

// nextCount tells the root what this receiver has. It comes after all else, so that one
// control message covers as many messages as possible. The last one is not needed: barrier
// also tells the root that the receiver has everything.
func (e *Engine) nextCount() (Action, bool) {
	t := &e.tally
	if !t.asked || t.told == e.complete || e.told {
		return Action{}, false
	}
	t.told = e.complete
	t.msg = (&control{kind: kindCount, number: t.told}).append(t.msg[:0])
	return Action{Kind: Tell, Peer: 0, Msg: t.msg}, true
}
