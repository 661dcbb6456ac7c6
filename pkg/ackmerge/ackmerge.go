package ackmerge

import (
	"math/bits"
	"time"

	"github.com/mcrdma/mcrdma/pkg/rocev2"
)

// MaxMembers is the number of members that a group can have at one switch.
const MaxMembers = 16

// Window is how far ahead of the PSN passed on an answer may be: less than half of all PSNs, so
// that any two records can be compared. With Config.Learn, Spread is how far from an answer the
// members' records may be for the first PSN to be passed on. The slowest is then at most twice
// Spread behind; the rest of the window is for the sender's packets in flight.
const (
	Window = 1 << 22
	Spread = 1 << 20
)

// Config is the control plane's configuration of a group. It may change while packets flow;
// State stays.
type Config struct {
	Members    uint16 // a bit for each current member
	Epoch      uint16 // not 0, which is that of a new State
	InitialPSN rocev2.PSN
	Learn      bool          // InitialPSN is unknown
	CNPGap     time.Duration // minimum time between CNPs passed on; 0: all are
}

// Record is an acknowledgement, with the epoch in which it was recorded.
type Record struct {
	Epoch uint16
	MSN   uint32 // 24 bits
	PSN   rocev2.PSN
}

// State is a switch's state of a group. The zero value is that of a switch that has just started.
type State struct {
	Acked  [MaxMembers]Record // by each member
	Passed Record             // to the sender
	CNPAt  time.Duration      // when the last CNP was passed on; 0: never
}

// Answer is a packet from a member: an acknowledgement, positive or negative, or a CNP.
type Answer struct {
	Member   int
	CNP      bool
	Syndrome rocev2.Syndrome
	PSN      rocev2.PSN
	MSN      uint32
}

// Verdict says what happens to an answer.
type Verdict uint8

// Verdicts. All but Pass are reasons to drop it, and have a counter of their
// own at the switch.
const (
	Pass          Verdict = iota // goes to the sender, rewritten
	NotMember                    // from a removed member
	BadSyndrome                  // neither ACK nor RNR NAK nor NAK
	Absorbed                     // an ACK that tells the sender nothing
	StaleNAK                     // the member has acknowledged the packet since
	UndecidedNAK                 // not every member has answered yet
	FilteredCNP                  // too soon after another one
	OutsideWindow                // behind the PSN passed on, or too far ahead of it
)

// Merge processes an answer that arrives at now. If the verdict is Pass, the Answer returned is to
// be sent to the sender; otherwise it is empty. A Member out of range counts as no member.
func Merge(c *Config, s *State, a Answer, now time.Duration) (Answer, Verdict) {
	if uint(a.Member) >= MaxMembers || c.Members>>a.Member&1 == 0 || c.Epoch == 0 {
		return Answer{}, NotMember
	}
	if a.CNP {
		if s.CNPAt != 0 && now-s.CNPAt < c.CNPGap {
			return Answer{}, FilteredCNP
		}
		s.CNPAt = now
		return a, Pass
	}
	ack := a.Syndrome.IsAck()
	psn := a.PSN & rocev2.Mask24 // the last one that is acknowledged
	if !ack {
		if !a.Syndrome.IsRNR() && !a.Syndrome.IsNak() {
			return Answer{}, BadSyndrome
		}
		psn = psn.Add(-1)
	}
	v := view{c: c, s: s}
	v.look(psn)
	if v.ahead(psn) > v.reach {
		return Answer{}, OutsideWindow
	}
	advanced, stale := v.note(a.Member, psn, a.MSN)
	if stale && !ack {
		return Answer{}, StaleNAK
	}
	lowest, silent, far := v.lowest(a.Member)
	news := v.ahead(lowest.PSN) > 0
	switch {
	case ack && (silent || far || advanced && !news):
		return Answer{}, Absorbed
	case !ack && (far || silent && c.Learn):
		return Answer{}, UndecidedNAK
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

// A view is a group's state as seen from where PSNs are measured.
type view struct {
	c         *Config
	s         *State
	base      rocev2.PSN // what the sender was told
	reach     uint32     // how far ahead of that a PSN counts
	undecided bool       // it was told nothing yet, and the initial PSN is not known
}

// look finds where PSNs are measured from when a member has acknowledged psn.
func (v *view) look(psn rocev2.PSN) {
	v.reach = Window
	switch {
	case v.s.Passed.Epoch == v.c.Epoch:
		v.base = v.s.Passed.PSN
	case v.c.Learn:
		v.base, v.reach, v.undecided = psn.Add(-Spread), 2*Spread, true
	default:
		v.base = v.c.before()
	}
}

// ahead is how far psn lies ahead of the base, around the circle.
func (v *view) ahead(psn rocev2.PSN) uint32 { return uint32(psn-v.base) & rocev2.Mask24 }

// note records that member i has everything up to psn. Advanced: that is more
// than it was known to have, or nothing is decided yet. Stale: it is less.
func (v *view) note(i int, psn rocev2.PSN, msn uint32) (advanced, stale bool) {
	r := &v.s.Acked[i]
	now, known := v.ahead(psn), v.ahead(r.PSN)
	if v.undecided || r.Epoch != v.c.Epoch || now > known {
		*r = Record{v.c.Epoch, msn & rocev2.Mask24, psn}
		return true, false
	}
	return false, now < known
}

// lowest is the record of the current member that is farthest behind; of several,
// that of own, or else the first. Silent: there is a member that has not been
// heard of in this epoch. Far: there is one whose PSN cannot be compared.
func (v *view) lowest(own int) (low Record, silent, far bool) {
	low = v.record(own)
	for m := v.c.Members; m != 0; m &= m - 1 {
		r := v.record(bits.TrailingZeros16(m))
		silent = silent || r.Epoch != v.c.Epoch
		far = far || v.ahead(r.PSN) > v.reach
		if v.ahead(r.PSN) < v.ahead(low.PSN) {
			low = r
		}
	}
	return low, silent, far
}

// record returns what member i has acknowledged, or what is assumed if it has not been
// heard of; its epoch is then another.
func (v *view) record(i int) Record {
	if r := v.s.Acked[i]; r.Epoch == v.c.Epoch {
		return r
	}
	return Record{PSN: v.c.before()}
}

func (c *Config) before() rocev2.PSN { return c.InitialPSN.Add(-1) }

var verdicts = [...]string{"pass", "not a member", "bad syndrome", "absorbed", "stale NAK", "undecided NAK", "CNP filtered", "outside the window"}

// String names the verdict.
func (v Verdict) String() string { return verdicts[v] }
