package engine

import "slices"

// How many messages all members have, for a root that asked for it: members report to the root how
// many messages are complete, and it takes the minimum.

// A tally counts messages.
type tally struct {
	// At the root, if Everywhere is enabled.
	counts []int64 // complete messages of each member
	least  int64
	behind int   // members that have only the minimum
	said   int64 // last number reported to the root's owner

	// At a receiver.
	asked bool
	told  int64  // last number reported to the root
	msg   []byte // the control message for it; reused so that it does not allocate
}

func (t *tally) start(members int) {
	t.counts, t.behind = make([]int64, members), members
}

// set records at the root how many messages are complete at a member; the number never decreases.
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

// nextEverywhere reports at the root how many messages all members have.
func (e *Engine) nextEverywhere() (Action, bool) {
	t := &e.tally
	if t.said == t.least {
		return Action{}, false
	}
	t.said = t.least
	return Action{Kind: Everywhere, Size: t.said}, true
}

// nextCount tells the root how many messages this receiver has. It comes after all other actions,
// so that one control message covers as many messages as possible. It omits the last number,
// because barrier also tells the root that the receiver has all messages.
func (e *Engine) nextCount() (Action, bool) {
	t := &e.tally
	if !t.asked || t.told == e.complete || e.told {
		return Action{}, false
	}
	t.told = e.complete
	t.msg = (&control{kind: kindCount, number: t.told}).append(t.msg[:0])
	return Action{Kind: Tell, Peer: 0, Msg: t.msg}, true
}
