package answers

import (
	"math/rand/v2"
	"time"

	"github.com/mcrdma/mcrdma/pkg/ackmerge"
	"github.com/mcrdma/mcrdma/pkg/rocev2"
)

// A Stream is a sender and its members, drawn at random: what they send and answer, late, twice, in any
// order, and what a member that lies makes up. The first member may be one. It knows of each what it has
// received, in positions: packet i of the sender has position i+1, and the MSN of a position is the same for all.
type Stream struct {
	Members  uint16 // current ones
	rng      *rand.Rand
	window   int // packets that the sender may have under way
	max      int // members
	initial  rocev2.PSN
	epoch    uint16
	n        int
	liar     bool
	sent     int
	told     int
	received [ackmerge.MaxMembers]int
	said     []ackmerge.Answer
	now      time.Duration
	gap      time.Duration
}

// NewStream returns a stream of groups with up to max members, whose sender has at most window packets under way.
func NewStream(rng *rand.Rand, window, max int) *Stream {
	s := &Stream{rng: rng, window: window, max: max}
	s.begin()
	return s
}

func (s *Stream) begin() {
	*s = Stream{rng: s.rng, window: s.window, max: s.max, now: s.now, epoch: s.epoch + 1, n: 1 + s.rng.IntN(s.max), liar: s.rng.IntN(3) == 0,
		initial: rocev2.PSN(s.rng.Uint32() & rocev2.Mask24), gap: time.Duration(s.rng.IntN(3)) * 50 * time.Microsecond}
	s.Members = 1<<s.n - 1
	s.liar = s.liar && s.n > 1
}

// Group returns the current group.
func (s *Stream) Group() ackmerge.Config {
	return ackmerge.Config{Members: s.Members, Epoch: s.epoch, InitialPSN: s.initial, CNPGap: s.gap}
}

// psn is the PSN of the last packet before a position, msn its MSN.
func (s *Stream) psn(position int) rocev2.PSN { return s.initial.Add(position - 1) }

func msn(position int) uint32 { return uint32(max(position, 0)) * 2 / 5 & rocev2.Mask24 }

// Sent is the last PSN sent.
func (s *Stream) Sent() rocev2.PSN { return s.psn(s.sent) }

// Slowest is the last PSN that all honest current members have, as they say.
func (s *Stream) Slowest() rocev2.PSN { return s.psn(s.slowest()) }

func (s *Stream) slowest() int {
	least := 1 << 40
	for i, n := range s.received[:s.n] {
		if s.Members>>i&1 == 1 && (i > 0 || !s.liar) {
			least = min(least, n)
		}
	}
	return least
}

// Told says that the sender knows that everything up to psn has arrived.
func (s *Stream) Told(psn rocev2.PSN) {
	s.told = max(s.told, s.told+psn.Sub(s.psn(s.told)))
}

// Next returns the next answer, and whether another group has begun before it.
func (s *Stream) Next() (a ackmerge.Answer, now time.Duration, anew bool) {
	r := s.rng
	if r.IntN(5000) == 0 {
		s.begin()
		anew = true
	}
	if r.IntN(3) == 0 || s.sent == 0 {
		s.send()
	}
	if r.IntN(2000) == 0 {
		if rest := s.Members &^ (1 << r.IntN(s.n)); rest > 1 || rest == 1 && !s.liar {
			s.Members = rest
		}
	}
	s.now += time.Duration(r.IntN(40)) * time.Microsecond
	if r.IntN(500) == 0 {
		s.now += 3 * time.Second // more than half of what a clock of 32 bits tells apart in nanoseconds
	}
	a.Member = r.IntN(s.n)
	a.Syndrome = []rocev2.Syndrome{rocev2.AckNoLimit, rocev2.AckNoLimit, 3, 0, rocev2.NakSequence, 0x25, 0x62, 0x45}[r.IntN(8)]
	switch {
	case s.liar && a.Member == 0:
		s.lie(&a)
	case r.IntN(50) == 0:
		return ackmerge.Answer{Member: a.Member, CNP: true}, s.now, anew
	case r.IntN(6) == 0 && len(s.said) > 0:
		a = s.said[r.IntN(len(s.said))]
	default:
		have := &s.received[a.Member]
		if ahead := s.sent - *have; ahead > 0 && r.IntN(4) > 0 {
			*have += 1 + r.IntN(min(ahead, []int{1, 40, s.window}[r.IntN(3)]))
		}
		s.answer(&a, *have)
		s.said = append(s.said, a)
		s.said = s.said[max(0, len(s.said)-200):]
	}
	return a, s.now, anew
}

func (s *Stream) send() {
	room := s.told + s.window - s.sent
	if room > 0 {
		s.sent += 1 + s.rng.IntN(min(room, []int{4, 60, s.window}[s.rng.IntN(3)]))
	}
}

func (s *Stream) answer(a *ackmerge.Answer, position int) {
	a.MSN, a.PSN = msn(position), s.psn(position)
	if !a.Syndrome.IsAck() {
		a.PSN = a.PSN.Add(1)
	}
}

// lie has a member claim what is at the edges of all that is compared.
func (s *Stream) lie(a *ackmerge.Answer) {
	from := []int{s.told, s.sent, s.slowest()}[s.rng.IntN(3)]
	by := []int{0, 1 << 14, 1 << 15, 1 << 16, 3 << 15, 1 << 22, 1 << 23, s.rng.IntN(1 << 24)}[s.rng.IntN(8)] + s.rng.IntN(5) - 2
	if s.rng.IntN(2) == 0 {
		by = -by
	}
	s.answer(a, s.told+s.psn(from+by).Sub(s.psn(s.told))) // around the circle
}
