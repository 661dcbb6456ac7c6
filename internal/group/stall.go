package group

import "net/netip"

// LooksEach is the number of pauses within which a receiver must answer a packet; after that it is
// to blame for a stall.
const LooksEach = 4

// maxLooks is the number of pauses after which a Stall in which too little was sent is given up.
const maxLooks = 3 * LooksEach

// Counts are what a switch has counted of a formation.
type Counts struct {
	Packets uint64                // of the sender; 0 where all receivers are behind one other switch, which copies them
	Answers map[netip.Addr]uint64 // of each receiver
}

// A Stall finds the receivers that stall a formation, by the switch's counters after each of
// several pauses of equal length. To blame are those that have answered nothing although a packet
// was sent LooksEach pauses ago, and another later, because one may be lost. Only answers to sent
// packets can be missing: between two packets, a sender may wait for its timer, or for its turn at
// its device. Where the switch counts no packets, the answers of others show that one was sent.
type Stall struct {
	receivers    []netip.Addr
	first, last  Counts
	looks        int
	asked, again int // after how many looks the first packet was there, and another; 0: not yet
}

// NewStall begins with the counters before the first pause.
func NewStall(f *Formation, c Counts) *Stall {
	return &Stall{receivers: f.Addrs(), first: c, last: c}
}

// Look records the counters after one more pause, and returns the receivers that have answered in
// it.
func (s *Stall) Look(c Counts) (answered []netip.Addr) {
	s.looks++
	for _, a := range s.receivers {
		if c.Answers[a] != s.last.Answers[a] {
			answered = append(answered, a)
		}
	}
	sent := c.Packets > s.last.Packets
	if c.Packets == 0 && s.looks > 1 { // in the first pause, answers may be to older packets
		sent = len(answered) > 0
	}
	switch {
	case sent && s.asked == 0:
		s.asked = s.looks
	case sent && s.again == 0:
		s.again = s.looks
	}
	s.last = c
	return answered
}

// Due reports that all had time to answer.
func (s *Stall) Due() bool {
	return s.again > 0 && s.looks >= s.asked+LooksEach && s.looks > s.again
}

// Over says that there is nothing more to be learnt by looking.
func (s *Stall) Over() bool { return len(s.Still()) == 0 || s.Due() || s.looks == maxLooks }

// Still are the receivers that have answered nothing since the first count.
func (s *Stall) Still() (list []netip.Addr) {
	for _, a := range s.receivers {
		if s.last.Answers[a] == s.first.Answers[a] {
			list = append(list, a)
		}
	}
	return list
}

// Alive says that a receiver has answered.
func (s *Stall) Alive() bool { return len(s.Still()) < len(s.receivers) }
