package packed

import (
	"time"

	"github.com/mcrdma/mcrdma/pkg/ackmerge"
	"github.com/mcrdma/mcrdma/pkg/rocev2"
)

// Window is how many packets an answer may lie behind the last one sent, that one counted.
const Window = 1 << 15

// MaxGap is how long CNPs can be kept back after one that is passed on.
const MaxGap = 1 << 20 * time.Nanosecond

// A Record is a PSN and an MSN, of each the low 16 bits.
type Record uint32

// Pack makes a record.
func Pack(psn rocev2.PSN, msn uint32) Record { return Record(psn<<16) | Record(msn&0xffff) }

// after reports whether r is later than s.
func (r Record) after(s Record) bool { return int32(r-s) > 0 }

// Config is what the tables say of a group. It may change while packets flow.
type Config struct {
	Members uint16 // a bit for each current member
	CNPGap  uint32 // ns between CNPs that are passed on, up to MaxGap; 0: all are
}

// State is a group's registers: of each member and of what was passed on; of the last PSN sent
// (bits 31 to 8); of when a CNP was passed on, in nanoseconds modulo 2^32.
type State struct {
	Acked  [ackmerge.MaxMembers]Record
	Passed Record
	Sent   uint32
	CNPAt  uint32
}

// Reset returns the state that the control plane writes for a group whose first packet is
// initial.
func Reset(initial rocev2.PSN, now time.Duration) State {
	before := initial.Add(-1)
	s := State{Passed: Pack(before, 0), Sent: uint32(before) << 8, CNPAt: uint32(now - MaxGap)}
	for i := range s.Acked {
		s.Acked[i] = s.Passed - 1
	}
	return s
}

// Send notes that the sender's packet psn passes the switch. One that no sender can be at yet is not
// noted: its PSN was spoiled on the way.
func (s *State) Send(psn rocev2.PSN) {
	if d := int32(uint32(psn)<<8 - s.Sent); d > 0 && d < Window<<8 {
		s.Sent += uint32(d)
	}
}

// Merge processes an answer that arrives at now, as [ackmerge.Merge] does.
func Merge(c *Config, s *State, a ackmerge.Answer, now time.Duration) (ackmerge.Answer, ackmerge.Verdict) {
	if uint(a.Member) >= ackmerge.MaxMembers || c.Members>>a.Member&1 == 0 {
		return ackmerge.Answer{}, ackmerge.NotMember
	}
	if a.CNP {
		return s.notify(c, a, uint32(now))
	}
	ack := a.Syndrome.IsAck()
	psn := a.PSN & rocev2.Mask24 // the last one that is acknowledged
	if !ack {
		if !a.Syndrome.IsRNR() && !a.Syndrome.IsNak() {
			return ackmerge.Answer{}, ackmerge.BadSyndrome
		}
		psn = psn.Add(-1)
	}
	if (s.Sent>>8-uint32(psn))&rocev2.Mask24 >= Window {
		return ackmerge.Answer{}, ackmerge.OutsideWindow
	}
	own := Pack(psn, a.MSN)
	low, was := s.chain(c.Members, a.Member, own)
	if !ack && was.after(own) {
		return ackmerge.Answer{}, ackmerge.StaleNAK
	}
	passed := s.Passed
	if low.after(passed) {
		s.Passed = low
	}
	switch {
	case !ack:
		low = s.Passed + 1<<16
	case passed.after(low) || low == passed && own.after(was):
		return ackmerge.Answer{}, ackmerge.Absorbed
	default:
		a.Syndrome = rocev2.AckNoLimit
	}
	a.PSN = rocev2.PSN(behind(uint32(a.PSN), uint32(low>>16)))
	a.MSN = behind(a.MSN, uint32(low))
	return a, ackmerge.Pass
}

// chain takes an answer through the members' stages. It returns the lowest record, and what the member's
// own was before.
func (s *State) chain(members uint16, member int, own Record) (low, was Record) {
	low = own
	for i := range s.Acked {
		mem := &s.Acked[i]
		switch {
		case i == member:
			was = *mem
			if own.after(*mem) {
				*mem = own
			}
		case members>>i&1 == 1 && low.after(*mem):
			low = *mem
		}
	}
	return low, was
}

// behind returns the number of 24 bits that is less than 2^15 behind n, or n, and has these low 16 bits.
func behind(n, low uint32) uint32 {
	if n&0x8000 == 0 && low&0x8000 != 0 {
		n -= 1 << 16
	}
	return n&0xff0000 | low&0xffff
}

// notify processes a CNP. The last one counts as long as it is less than MaxGap further back than the
// gap: time is a circle, too.
func (s *State) notify(c *Config, a ackmerge.Answer, now uint32) (ackmerge.Answer, ackmerge.Verdict) {
	if since := int32(now - c.CNPGap - s.CNPAt); c.CNPGap != 0 && since < 0 && since >= -int32(MaxGap) {
		return ackmerge.Answer{}, ackmerge.FilteredCNP
	}
	s.CNPAt = now
	return a, ackmerge.Pass
}
