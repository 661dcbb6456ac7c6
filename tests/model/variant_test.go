package main

import (
	"math/bits"

	"github.com/mcrdma/mcrdma/pkg/ackmerge"
	"github.com/mcrdma/mcrdma/pkg/rocev2"
)

// A variant is a second implementation of ackmerge.Merge, with optional mistakes.
type variant struct {
	plainLess bool // PSNs compared as numbers
	rawNAK    bool // NAKs are forwarded unchanged
	noEpoch   bool // any record counts
	allSlots  bool // the minimum includes members that have been removed
	noRepeat  bool // an ACK that moves nothing is not forwarded
	literal   bool // the paper: an ACK is forwarded if it is itself the smallest
	noStale   bool // NAKs that were overtaken are forwarded
	noWindow  bool // an answer may have any PSN
	behind    bool // the window is behind what the sender has received
	noSpread  bool // before a decision, records need not be near each other
	pairwise  bool // PSNs compared in pairs, around the circle, without a window
}

// newer compares by distance from base.
func (v variant) newer(a, b, base rocev2.PSN) bool {
	switch {
	case v.plainLess:
		return a > b
	case v.pairwise:
		return a.Sub(b) > 0
	}
	return ahead(a, base) > ahead(b, base)
}

func ahead(psn, base rocev2.PSN) int { return int(psn-base) & rocev2.Mask24 }

// window returns the base of distances, and their maximum.
func (v variant) window(c *ackmerge.Config, s *ackmerge.State, psn rocev2.PSN) (base rocev2.PSN, reach int, undecided bool) {
	base, reach = c.InitialPSN.Add(-1), ackmerge.Window
	if s.Passed.Epoch == c.Epoch || v.noEpoch {
		base = s.Passed.PSN
	} else if c.Learn {
		base, reach, undecided = psn.Add(-ackmerge.Spread), 2*ackmerge.Spread, true
	}
	return base, reach, undecided
}

// outside reports whether an answer is dropped because of its PSN.
func (v variant) outside(psn, base rocev2.PSN, reach int) bool {
	if v.behind {
		psn, base = base, psn
	}
	return !v.noWindow && !v.pairwise && !v.plainLess && ahead(psn, base) > reach
}

func (v variant) merge(c *ackmerge.Config, s *ackmerge.State, a ackmerge.Answer) (ackmerge.Answer, ackmerge.Verdict) {
	if c.Members>>a.Member&1 == 0 {
		return a, ackmerge.NotMember
	}
	if a.CNP {
		return a, ackmerge.Pass
	}
	before := c.InitialPSN.Add(-1)
	known := func(r ackmerge.Record) bool { return r.Epoch == c.Epoch || v.noEpoch }
	ack, psn := a.Syndrome.IsAck(), a.PSN
	if !ack {
		psn = psn.Add(-1)
	}
	own := &s.Acked[a.Member]
	base, heard := own.PSN, known(*own)
	if !heard {
		base = before
	}
	from, reach, undecided := v.window(c, s, psn)
	if v.outside(psn, from, reach) {
		return a, ackmerge.OutsideWindow
	}
	advanced := v.newer(psn, base, from) || undecided || !heard
	if !ack && !v.noStale && !advanced && psn != base {
		return a, ackmerge.StaleNAK
	}
	if advanced {
		*own = ackmerge.Record{Epoch: c.Epoch, MSN: a.MSN, PSN: psn}
	}
	low, silent, far := ackmerge.Record{PSN: psn}, false, false
	if r := *own; known(r) {
		low = r
	}
	members := c.Members
	if v.allSlots {
		members = 1<<maxMembers - 1
	}
	for m := members; m != 0; m &= m - 1 {
		r := s.Acked[bits.TrailingZeros16(m)]
		if !known(r) {
			silent, r = true, ackmerge.Record{PSN: before}
		}
		far = far || ahead(r.PSN, from) > reach && !v.noSpread && !v.pairwise && !v.plainLess
		if v.newer(low.PSN, r.PSN, from) {
			low = r
		}
	}
	news := v.newer(low.PSN, from, from)
	switch {
	case ack && (silent || far), ack && v.literal && v.newer(psn, low.PSN, from), ack && !v.literal && advanced && !news,
		ack && v.noRepeat && !news:
		return a, ackmerge.Absorbed
	case !ack && (far || silent && c.Learn):
		return a, ackmerge.UndecidedNAK
	}
	if news {
		s.Passed = ackmerge.Record{Epoch: c.Epoch, MSN: low.MSN, PSN: low.PSN}
	}
	switch {
	case ack:
		a.PSN, a.MSN, a.Syndrome = low.PSN, low.MSN, rocev2.AckNoLimit
	case !v.rawNAK:
		a.PSN, a.MSN = low.PSN.Add(1), low.MSN
	}
	return a, ackmerge.Pass
}
