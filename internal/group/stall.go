package group

import (
	"net/netip"
	"slices"
)

// LooksEach is the number of pauses within which a receiver must answer a packet; after that it is
// to blame for a stall.
const LooksEach = 4

// minAsked is the number of packets, or of their answers, that must all be lost for a receiver that is
// well to be blamed: each crosses several links, so where packets are lost, two of them may be.
const minAsked = 3

// maxLooks is the number of pauses after which a Stall in which too little was sent is given up.
const maxLooks = 5 * LooksEach

// Counts are what a switch has counted of a formation, read at one time.
type Counts struct {
	Packets uint64                 // of the sender; 0 where all receivers are behind one other switch, which copies them
	Answers map[netip.Addr]Answers // of each receiver
}

// Answers are the kinds of a receiver's answers.
type Answers struct{ ACKs, SequenceNAKs, RNRNAKs, FatalNAKs uint64 }

// A Stall finds the receivers that stall a formation, by the switch's counters after each of
// several pauses of equal length. To blame are those that have answered nothing although a packet
// was sent LooksEach pauses ago, and others in two later pauses, because two may be lost. Only
// answers to sent packets can be missing: between two packets, a sender may wait for its timer, or
// for its turn at its device. Where the switch counts no packets, the answers of others show that
// one was sent.
//
// A check ends when there is a receiver to blame, and for the next one of the same formation Resume
// goes on from there: a second receiver may have failed meanwhile, and the sender's packets are few.
//
// A receiver that asks for time (RNR NAK) or lacks packets has answered, but not if the stall is
// long: one that is never ready is no better than a dead one. If then none acknowledges anything,
// those that ask for time are to blame.
type Stall struct {
	receivers   []silence
	long        bool
	first, last Counts // of the present check
	begun       int    // after how many looks
	looks       int
	heard       int // how many looks had been made at the last answer of any
}

// A silence is how long a receiver has answered nothing.
type silence struct {
	addr  netip.Addr
	since int           // how many looks had been made at its last answer
	asked [minAsked]int // after how many looks the first packets since then were there, of a pause each; 0: not yet
}

// NewStall begins with the counters before the first pause.
func NewStall(f *Formation, long bool, c Counts) *Stall {
	s := &Stall{long: long, first: c, last: c}
	for _, a := range f.Addrs() {
		s.receivers = append(s.receivers, silence{addr: a})
	}
	return s
}

// Resume begins another check, of the receivers that the formation still has, with the counters
// before its first pause. The time since the last check does not count.
func (s *Stall) Resume(f *Formation, long bool, c Counts) *Stall {
	if s == nil || s.long != long {
		return NewStall(f, long, c)
	}
	s.note(c, false)
	s.begun, s.first = s.looks, c
	before := s.receivers
	s.receivers = nil
	for _, a := range f.Addrs() {
		r := silence{addr: a, since: s.looks}
		if i := slices.IndexFunc(before, func(r silence) bool { return r.addr == a }); i >= 0 {
			r = before[i]
		}
		s.receivers = append(s.receivers, r)
	}
	return s
}

// answers counts those of a receiver that show that it is not to blame.
func (s *Stall) answers(c Counts, a netip.Addr) uint64 {
	n := c.Answers[a]
	if s.long {
		return n.ACKs
	}
	return n.ACKs + n.SequenceNAKs + n.RNRNAKs
}

// Look records the counters after one more pause, and returns the receivers that have answered in
// it.
func (s *Stall) Look(c Counts) []netip.Addr {
	s.looks++
	return s.note(c, s.looks > s.begun+1)
}

// note records counters. newer says that answers are to packets of the check.
func (s *Stall) note(c Counts, newer bool) (answered []netip.Addr) {
	for i, r := range s.receivers {
		if s.answers(c, r.addr) != s.answers(s.last, r.addr) {
			answered = append(answered, r.addr)
			s.receivers[i] = silence{addr: r.addr, since: s.looks}
		}
	}
	if len(answered) > 0 {
		for i := range s.receivers {
			s.receivers[i].forgive(s.heard, s.looks)
		}
		s.heard = s.looks
	}
	sent := c.Packets > s.last.Packets || c.Packets == 0 && newer && len(answered) > 0
	for i := range s.receivers {
		r := &s.receivers[i]
		if next := slices.Index(r.asked[:], 0); sent && next >= 0 && !slices.Contains(answered, r.addr) {
			r.asked[next] = s.looks
		}
	}
	s.last = c
	return answered
}

// forgive is called when none had answered from one look to another. If that is longer than a receiver may
// take, the cause is common to all, and only what was asked before counts: when it ends, not all answer at
// the same time.
func (r *silence) forgive(from, to int) {
	if to-from <= LooksEach {
		return
	}
	for i, at := range r.asked {
		if at > from {
			r.asked[i] = 0
		}
	}
}

// Without leaves out receivers that are to blame for another reason.
func (s *Stall) Without(gone []netip.Addr) {
	s.receivers = slices.DeleteFunc(s.receivers, func(r silence) bool { return slices.Contains(gone, r.addr) })
}

// due reports that a receiver had time to answer.
func (s *Stall) due(r silence) bool {
	latest := r.asked[minAsked-1]
	return latest > 0 && s.looks >= r.asked[0]+LooksEach && s.looks > latest
}

// Unheard reports that none has answered in the check, and all had time.
func (s *Stall) Unheard() bool {
	return !s.Alive() && !slices.ContainsFunc(s.receivers, func(r silence) bool { return !s.due(r) })
}

// Over says that a receiver is to blame, or that there is nothing more to be learned by looking.
func (s *Stall) Over() bool {
	return len(s.Still()) == 0 || s.looks >= s.begun+maxLooks || s.looks > s.begun && (s.Unheard() || len(s.silent()) > 0)
}

// Still are the receivers that have answered nothing in the check.
func (s *Stall) Still() (list []netip.Addr) {
	for _, r := range s.receivers {
		if r.since <= s.begun {
			list = append(list, r.addr)
		}
	}
	return list
}

// silent returns the receivers that had time to answer, as others have done.
func (s *Stall) silent() (list []netip.Addr) {
	last := 0
	for _, r := range s.receivers {
		last = max(last, r.since)
	}
	for _, r := range s.receivers {
		if s.due(r) && last >= max(r.asked[0], s.begun+1) {
			list = append(list, r.addr)
		}
	}
	return list
}

// Blame returns the receivers to blame, once Over, if the sender still waits then.
func (s *Stall) Blame() []netip.Addr {
	if s.long && !s.Alive() {
		return slices.DeleteFunc(s.Still(), func(a netip.Addr) bool {
			return s.last.Answers[a].RNRNAKs == s.first.Answers[a].RNRNAKs
		})
	}
	return s.silent()
}

// Alive says that a receiver has answered in the check.
func (s *Stall) Alive() bool { return len(s.Still()) < len(s.receivers) }
