package main

import (
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/mcrdma/mcrdma/internal/testenv"
	"github.com/mcrdma/mcrdma/pkg/ackmerge"
	"github.com/mcrdma/mcrdma/pkg/ackmerge/packed"
	"github.com/mcrdma/mcrdma/pkg/rocev2"
	"github.com/mcrdma/mcrdma/tests/answers"
)

// packedMerger merges in packed form. The sender sends all its packets before an answer arrives.
type packedMerger struct {
	step func(*packed.Config, *packed.State, ackmerge.Answer) (ackmerge.Answer, ackmerge.Verdict)
}

func newPackedMerger() (merger, error) {
	return packedMerger{func(c *packed.Config, s *packed.State, a ackmerge.Answer) (ackmerge.Answer, ackmerge.Verdict) {
		return packed.Merge(c, s, a, 0)
	}}, nil
}

func (p packedMerger) merge(c *ackmerge.Config, s *ackmerge.State, a ackmerge.Answer) (ackmerge.Answer, ackmerge.Verdict) {
	empty := packed.Reset(c.InitialPSN, 0)
	empty.Send(startPSN.Add(len(workload)*messagePackets - 1))
	state := empty
	records := func(f func(packed *packed.Record, empty packed.Record, r *ackmerge.Record)) {
		for i := range maxMembers {
			f(&state.Acked[i], empty.Acked[i], &s.Acked[i])
		}
		f(&state.Passed, empty.Passed, &s.Passed)
	}
	records(func(to *packed.Record, _ packed.Record, r *ackmerge.Record) {
		if r.Epoch == c.Epoch {
			*to = packed.Pack(r.PSN, r.MSN)
		}
	})
	got, verdict := p.step(&packed.Config{Members: c.Members}, &state, a)
	records(func(from *packed.Record, empty packed.Record, r *ackmerge.Record) {
		if *r = (ackmerge.Record{}); *from != empty {
			*r = ackmerge.Record{Epoch: c.Epoch, PSN: startPSN.Add(int(int16(uint16(*from>>16) - uint16(startPSN&0xffff)))), MSN: uint32(*from & 0xffff)}
		}
	})
	return got, verdict
}

// chain is a second implementation of packed.Merge for answers other than CNPs, with optional
// mistakes.
type chain struct {
	plainLess bool // records compared as numbers
	skipped   bool // the last stage is left out
	ownOnly   bool // the stages start again with the answer, instead of the previous stage's output
	anything  bool // no check against the sent packets
	lowNAK    bool // a NAK is forwarded unchanged
}

func (x chain) after(r, s packed.Record) bool {
	if x.plainLess {
		return r > s
	}
	return int32(r-s) > 0
}

func (x chain) step(c *packed.Config, s *packed.State, a ackmerge.Answer) (ackmerge.Answer, ackmerge.Verdict) {
	if c.Members>>a.Member&1 == 0 {
		return a, ackmerge.NotMember
	}
	ack, psn := a.Syndrome.IsAck(), a.PSN
	if !ack {
		psn = psn.Add(-1)
	}
	sent := rocev2.PSN(s.Sent >> 8)
	if d := sent.Sub(psn); !x.anything && (d < 0 || d >= packed.Window) {
		return a, ackmerge.OutsideWindow
	}
	own := packed.Pack(psn, a.MSN)
	low, was := own, s.Acked[a.Member]
	for i := range maxMembers {
		r := s.Acked[i]
		switch {
		case i == a.Member && x.after(own, r):
			s.Acked[i] = own
		case i == a.Member || c.Members>>i&1 == 0 || x.skipped && i == maxMembers-1:
		case x.ownOnly && x.after(own, r), !x.ownOnly && x.after(low, r):
			low = r
		}
	}
	passed := s.Passed
	if x.after(low, passed) {
		s.Passed = low
	}
	switch {
	case !ack && x.after(was, own):
		return a, ackmerge.StaleNAK
	case !ack && !x.lowNAK:
		low = s.Passed + 1<<16
	case !ack:
		return a, ackmerge.Pass
	case x.after(passed, low) || low == passed && x.after(own, was):
		return a, ackmerge.Absorbed
	default:
		a.Syndrome = rocev2.AckNoLimit
	}
	a.PSN, a.MSN = sent.Add(int(int16(uint16(low>>16)-uint16(sent)))), uint32(low&0xffff)
	return a, ackmerge.Pass
}

func (x chain) bound(name string, f faults) *bound {
	return &bound{name: name, faults: f, merger: func() (merger, error) { return packedMerger{x.step}, nil }}
}

// TestPackedWithoutRace explores merging in packed form, with a liar too.
func TestPackedWithoutRace(t *testing.T) {
	testenv.WithoutRace(t, parallel)
	for _, b := range []bound{
		{name: "packed: losses", faults: faults{losses: 2}},
		{name: "packed: death, removal", faults: faults{losses: 1, deaths: 1, removals: 1}},
		{name: "packed: not ready, doubled", faults: faults{losses: 1, duplicates: 1, unready: 1}},
		{name: "packed: overtaken", faults: faults{losses: 1, reorderings: 1}},
		{name: "packed: restart, initial PSN known", faults: faults{losses: 1, restarts: 1}},
		{name: "packed: liar", faults: faults{losses: 1, lies: 2}},
	} {
		b.merger = newPackedMerger
		check(t, &b)
	}
}

// TestPackedMistakes: each mistake in the chain is found.
func TestPackedMistakes(t *testing.T) {
	for _, m := range []struct {
		name   string
		x      chain
		breaks string
		faults faults
	}{
		{"records compared as numbers", chain{plainLess: true}, "L1", faults{}},
		{"last stage left out", chain{skipped: true}, "S1", faults{losses: 2}},
		{"lowest not passed on", chain{ownOnly: true}, "S1", faults{}},
		{"NAK as it is", chain{lowNAK: true}, "S1", faults{losses: 2}},
	} {
		r := explore(m.x.bound(m.name, m.faults))
		if r.Violation == nil {
			t.Errorf("%s: not found in %d states", m.name, r.States)
			continue
		}
		t.Logf("%s: found after %d states: %s", m.name, r.States, r.Violation.What)
		if !strings.HasPrefix(r.Violation.What, m.breaks) {
			t.Errorf("%s breaks %q, expected %s", m.name, r.Violation.What, m.breaks)
		}
	}
	if !drawn(chain{anything: true}) {
		t.Error("no check against what was sent: not found among answers drawn at random")
	}
	if drawn(chain{}) {
		t.Error("without mistakes, S1 is broken by answers drawn at random")
	}
}

// drawn merges random answers by a chain, and reports whether that breaks S1.
func drawn(x chain) bool {
	stream := answers.NewStream(rand.New(rand.NewPCG(5, 5)), packed.Window-1, maxMembers)
	s := packed.Reset(stream.Group().InitialPSN, 0)
	for range 100_000 {
		a, _, anew := stream.Next()
		if anew {
			s = packed.Reset(stream.Group().InitialPSN, 0)
		}
		s.Send(stream.Sent())
		if a.CNP {
			continue
		}
		got, verdict := x.step(&packed.Config{Members: stream.Members}, &s, a)
		if !got.Syndrome.IsAck() {
			got.PSN = got.PSN.Add(-1)
		}
		if verdict != ackmerge.Pass {
			continue
		}
		if stream.Slowest().Before(got.PSN) {
			return true
		}
		stream.Told(got.PSN)
	}
	return false
}

// TestPackedIsTheChain: without mistakes the chain is packed.Merge.
func TestPackedIsTheChain(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 7))
	for range 2000 {
		c, s := packed.Config{Members: uint16(1 + rng.IntN(7))}, packed.Reset(startPSN, 0)
		other := s
		for range 40 {
			sent := startPSN.Add(rng.IntN(12))
			s.Send(sent)
			other.Send(sent)
			a := ackmerge.Answer{Member: rng.IntN(3), PSN: startPSN.Add(rng.IntN(12) - 2), Syndrome: []rocev2.Syndrome{0x1f, 3, 0x60, 0x25, 0x62}[rng.IntN(5)]}
			a.MSN = uint32(max(0, a.PSN.Sub(startPSN)))
			want, wantVerdict := packed.Merge(&c, &s, a, 0)
			got, verdict := chain{}.step(&c, &other, a)
			if verdict != wantVerdict || verdict == ackmerge.Pass && got != want || other != s {
				t.Fatalf("%+v of %+v: %+v %v, expected %+v %v", a, c, got, verdict, want, wantVerdict)
			}
		}
	}
}
