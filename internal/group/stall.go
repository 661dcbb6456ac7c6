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
// A receiver that asks for time (RNR NAK) or lacks packets has answered, but not if the stall is
// long: one that is never ready is no better than a dead one. If then none acknowledges anything,
// those that ask for time are to blame.
type Stall struct {
	receivers   []netip.Addr
	long        bool
	first, last Counts
	looks       int
	asked       [minAsked]int // after how many looks the first packets were there, of a pause each; 0: not yet
}

// NewStall begins with the counters before the first pause.
func NewStall(f *Formation, long bool, c Counts) *Stall {
	return &Stall{receivers: f.Addrs(), long: long, first: c, last: c}
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
func (s *Stall) Look(c Counts) (answered []netip.Addr) {
	s.looks++
	for _, a := range s.receivers {
		if s.answers(c, a) != s.answers(s.last, a) {
			answered = append(answered, a)
		}
	}
	sent := c.Packets > s.last.Packets
	if c.Packets == 0 && s.looks > 1 { // in the first pause, answers may be to older packets
		sent = len(answered) > 0
	}
	if next := slices.Index(s.asked[:], 0); sent && next >= 0 {
		s.asked[next] = s.looks
	}
	s.last = c
	return answered
}

// Without leaves out receivers that are to blame for another reason.
func (s *Stall) Without(gone []netip.Addr) {
	s.receivers = slices.DeleteFunc(s.receivers, func(a netip.Addr) bool { return slices.Contains(gone, a) })
}

// Due reports that all had time to answer.
func (s *Stall) Due() bool {
	latest := s.asked[minAsked-1]
	return latest > 0 && s.looks >= s.asked[0]+LooksEach && s.looks > latest
}

// Over says that there is nothing more to be learned by looking.
func (s *Stall) Over() bool { return len(s.Still()) == 0 || s.Due() || s.looks == maxLooks }

// Still are the receivers that have answered nothing since the first count.
func (s *Stall) Still() (list []netip.Addr) {
	for _, a := range s.receivers {
		if s.answers(s.last, a) == s.answers(s.first, a) {
			list = append(list, a)
		}
	}
	return list
}

// Blame returns the receivers to blame, once Over, if the sender still waits then.
func (s *Stall) Blame() (list []netip.Addr) {
	switch still := s.Still(); {
	case s.Due() && s.Alive():
		return still
	case s.long && !s.Alive():
		for _, a := range still {
			if s.last.Answers[a].RNRNAKs > s.first.Answers[a].RNRNAKs {
				list = append(list, a)
			}
		}
	}
	return list
}

// Alive says that a receiver has answered.
func (s *Stall) Alive() bool { return len(s.Still()) < len(s.receivers) }
