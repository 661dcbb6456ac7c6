package ackmerge

import (
	"math/bits"
	"time"

	"github.com/mcrdma/mcrdma/pkg/rocev2"
)

// MaxMembers is the number of members that a group can have at one switch.
const MaxMembers = 16

// Config is what the control plane says of a group. It may change while packets
// flow; State lives on.
type Config struct {
	Members    uint16 // a bit for each current member
	Epoch      uint16 // not 0, which is what State begins with
	InitialPSN rocev2.PSN
	Learn      bool          // InitialPSN is not known
	CNPGap     time.Duration // time between CNPs that are passed on; 0: all are
}

// Record is what has been acknowledged, in the epoch in which it was noted.
type Record struct {
	Epoch uint16
	MSN   uint32 // 24 bits
	PSN   rocev2.PSN
}

// State is what a switch keeps of a group. The zero value is that of a switch
// that has just started.
type State struct {
	Acked  [MaxMembers]Record // by each member
	Passed Record             // to the sender
	CNPAt  time.Duration      // when a CNP was passed on last; 0: never
}

// Answer is what a member sent: an acknowledgement, positive or negative, or a
// CNP.
type Answer struct {
	Member   int
	CNP      bool
	Syndrome rocev2.Syndrome
	PSN      rocev2.PSN
	MSN      uint32
}

// Verdict is what becomes of an answer.
type Verdict uint8

// Verdicts. All but Pass are reasons to drop it, and have a counter of their
// own at the switch.
const (
	Pass         Verdict = iota // goes to the sender, rewritten
	NotMember                   // of a member that was removed
	BadSyndrome                 // neither ACK nor RNR NAK nor NAK
	Absorbed                    // an ACK that tells the sender nothing
	StaleNAK                    // the member has acknowledged the packet since
	UndecidedNAK                // not every member has been heard of yet
	FilteredCNP                 // too soon after another one
)

// Step takes in an answer that arrives at now, and says what becomes of it. If it
// is to be passed on, the Answer that is returned is what the sender sees. A
// Member out of range is no member.
func Step(c *Config, s *State, a Answer, now time.Duration) (Answer, Verdict) {
	if uint(a.Member) >= MaxMembers || c.Members>>a.Member&1 == 0 || c.Epoch == 0 {
		return a, NotMember
	}
	if a.CNP {
		if c.CNPGap != 0 && s.CNPAt != 0 && now-s.CNPAt < c.CNPGap {
			return a, FilteredCNP
		}
		s.CNPAt = now
		return a, Pass
	}
	ack := a.Syndrome.IsAck()
	psn := a.PSN & rocev2.Mask24 // the last one that is acknowledged
	if !ack {
		if !a.Syndrome.IsRNR() && !a.Syndrome.IsNak() {
			return a, BadSyndrome
		}
		psn = psn.Add(-1)
	}
	advanced, stale := s.note(c, a.Member, psn, a.MSN)
	if stale && !ack {
		return a, StaleNAK
	}
	lowest, silent := s.lowest(c, a.Member)
	news := s.Passed.Epoch != c.Epoch || lowest.PSN.Sub(s.Passed.PSN) > 0
	switch {
	case ack && (silent || advanced && !news):
		return a, Absorbed
	case !ack && silent && c.Learn:
		return a, UndecidedNAK
	}
	if news {
		s.Passed = lowest
	}
	a.MSN = lowest.MSN
	if ack {
		a.Syndrome = rocev2.AckNoLimit
		a.PSN = lowest.PSN
	} else {
		a.PSN = lowest.PSN.Add(1)
	}
	return a, Pass
}

// note records that member i has everything up to psn. Advanced: that is more
// than it was known to have. Stale: it is less.
func (s *State) note(c *Config, i int, psn rocev2.PSN, msn uint32) (advanced, stale bool) {
	r := &s.Acked[i]
	heard := r.Epoch == c.Epoch
	distance := 1 // to a member of which nothing is known, anything is news
	if heard {
		distance = psn.Sub(r.PSN)
	} else if !c.Learn {
		distance = psn.Sub(c.before())
	}
	if distance > 0 || distance == 0 && !heard {
		*r = Record{c.Epoch, msn & rocev2.Mask24, psn}
	}
	return distance > 0, distance < 0
}

// lowest is the record of the current member that is farthest behind; of several,
// that of own, or else the first. Silent: there is a member that has not been
// heard of in this epoch.
func (s *State) lowest(c *Config, own int) (low Record, silent bool) {
	low = s.record(c, own)
	for m := c.Members; m != 0; m &= m - 1 {
		r := s.record(c, bits.TrailingZeros16(m))
		silent = silent || r.Epoch != c.Epoch
		if r.PSN.Sub(low.PSN) < 0 {
			low = r
		}
	}
	low.Epoch = c.Epoch
	return low, silent
}

// record is what member i has acknowledged, or what is taken for granted if it has
// not been heard of; its epoch is then another.
func (s *State) record(c *Config, i int) Record {
	if r := s.Acked[i]; r.Epoch == c.Epoch {
		return r
	}
	return Record{PSN: c.before()}
}

func (c *Config) before() rocev2.PSN { return c.InitialPSN.Add(-1) }

var verdicts = [...]string{"pass", "not a member", "bad syndrome", "absorbed", "stale NAK", "undecided NAK", "CNP filtered"}

// String names the verdict.
func (v Verdict) String() string { return verdicts[v] }
