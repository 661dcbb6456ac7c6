package main

import (
	"math/bits"

	"github.com/mcrdma/mcrdma/pkg/ackmerge"
	"github.com/mcrdma/mcrdma/pkg/rocev2"
)

// A variant is ackmerge.Step written a second time, with mistakes to choose from.
type variant struct {
	plainLess bool // PSNs compared as numbers
	rawNAK    bool // NAKs passed on as they are
	noEpoch   bool // any record counts
	allSlots  bool // the minimum over members that are gone, too
	noRepeat  bool // an ACK that moves nothing is not passed on
	literal   bool // the paper: an ACK is passed on if it is itself the smallest
	noStale   bool // NAKs that were overtaken are passed on
}

func (v variant) newer(a, b rocev2.PSN) bool {
	if v.plainLess {
		return a > b
	}
	return a.Sub(b) > 0
}

func (v variant) step(c *ackmerge.Config, s *ackmerge.State, a ackmerge.Answer) (ackmerge.Answer, ackmerge.Verdict) {
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
	advanced := v.newer(psn, base) || !heard && c.Learn
	if !ack && !v.noStale && !advanced && psn != base {
		return a, ackmerge.StaleNAK
	}
	if advanced || !heard && psn == base {
		*own = ackmerge.Record{Epoch: c.Epoch, MSN: a.MSN, PSN: psn}
	}
	low, silent := ackmerge.Record{PSN: psn}, false
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
		if v.newer(low.PSN, r.PSN) {
			low = r
		}
	}
	news := s.Passed.Epoch != c.Epoch || v.newer(low.PSN, s.Passed.PSN)
	switch {
	case ack && silent, ack && v.literal && v.newer(psn, low.PSN), ack && !v.literal && advanced && !news,
		ack && v.noRepeat && !news:
		return a, ackmerge.Absorbed
	case !ack && silent && c.Learn:
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
