package core

import (
	"fmt"
	"math/bits"
	"slices"
)

// MaxRanks is how many ranks there are at most: a group has 16 receivers.
const MaxRanks = 17

// maxGivenUp is how often operations may be given up; then it takes another Join.
const maxGivenUp = 120

// A Cause is why operations were given up.
type Cause uint8

// The causes.
const (
	ContextEnded Cause = iota
	OpStopped          // a function that combines has not returned
	Differs            // a rank's call is not that of another
	Closing            // a rank closes, while another does something else
	causes
)

// A Blame says which rank is the cause that operations were given up. If several are, at a time, the larger one counts.
type Blame uint8

const blameBits = 7 // MaxRanks for each cause

// Blames makes one, of a rank's id.
func Blames(id int, c Cause) Blame { return Blame(int(c)*MaxRanks + id) } //nolint:gosec // both are small

// ID returns the rank's.
func (b Blame) ID() int { return int(b) % MaxRanks }

// Cause returns the cause.
func (b Blame) Cause() Cause { return Cause(b / MaxRanks) }

// A State is what a rank knows. It only grows.
type State struct {
	Lost    uint32 // a bit for the id of each rank
	GivenUp uint8  // how often operations were given up
	Blame   Blame  // for the last time
}

// epoch numbers states.
func (s State) epoch() uint8 { return uint8(bits.OnesCount32(s.Lost)) + s.GivenUp } //nolint:gosec // at most 17

// with returns what both know.
func (s State) with(o State) State {
	lost := s.Lost | o.Lost
	if o.GivenUp > s.GivenUp || o.GivenUp == s.GivenUp && o.Blame > s.Blame {
		s = o
	}
	s.Lost = lost
	return s
}

func (s State) lost(id int) bool { return s.Lost>>id&1 == 1 }

// stateImm marks immediate data that are a state.
const (
	stateImm  = 1 << 31
	countBits = 7 // of GivenUp
	lostAt    = countBits + blameBits
)

// Others are of a message: its lane, the lowest bits of its number, and, if it has no trailer, what that would say.
const (
	laneAt   = 28
	wholeImm = 1 << 27 // without a trailer
	seqAt    = 19      // eight bits, as a ring has less than half as many slots as they count
	epochAt  = 11
	kindAt   = 8
	kindMask = 1<<(epochAt-kindAt) - 1
	hashMask = 1<<kindAt - 1
)

func messageImm(lane int, seq uint64) uint32 {
	return uint32(lane)<<laneAt | uint32(uint8(seq))<<seqAt //nolint:gosec // lanes are few; the lowest bits are meant
}

// imm is the state as immediate data.
func (s State) imm() uint32 {
	return stateImm | s.Lost<<lostAt | uint32(s.Blame)<<countBits | uint32(s.GivenUp)
}

// stateOf is the inverse.
func stateOf(imm uint32, size int) (State, error) {
	s := State{Lost: imm &^ stateImm >> lostAt, Blame: Blame(imm >> countBits & (1<<blameBits - 1)), GivenUp: uint8(imm & (1<<countBits - 1))} //nolint:gosec // of so many bits
	if s.Lost>>size != 0 || s.GivenUp > maxGivenUp || s.Blame.ID() >= size || s.Blame.Cause() >= causes {
		return s, fmt.Errorf("immediate data %#x: %w", imm, errMessage)
	}
	return s, nil
}

// members are what all ranks know, as far as is known here.
type members struct {
	me    int
	state []State
}

func (m *members) own() State { return m.state[m.me] }

// grow adds to what this rank knows, and says whether it is news.
func (m *members) grow(s State) bool {
	before := m.state[m.me]
	m.state[m.me] = before.with(s)
	return m.state[m.me] != before
}

// hear takes what another rank knows. What those that are lost say does not count.
func (m *members) hear(from int, s State) (news bool) {
	if m.own().lost(from) {
		return false
	}
	m.state[from] = m.state[from].with(s)
	return m.grow(s)
}

// alive lists the ranks that are left.
func (m *members) alive() (ids []int) {
	for id := range m.state {
		if !m.own().lost(id) {
			ids = append(ids, id)
		}
	}
	return ids
}

// agreed says whether all that are left are known to know the same.
func (m *members) agreed() bool {
	return !slices.ContainsFunc(m.alive(), func(id int) bool { return m.state[id] != m.own() })
}
