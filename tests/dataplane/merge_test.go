package dataplane

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/mcrdma/mcrdma/bmv2"
	"github.com/mcrdma/mcrdma/pkg/ackmerge"
	"github.com/mcrdma/mcrdma/pkg/rocev2"
)

// A pair is a group's merging twice: in pkg/ackmerge and in the compiled program.
type pair struct {
	*Switch
	g Group
	c ackmerge.Config
	s ackmerge.State
}

func newPair(t testing.TB, members int) *pair {
	p := &pair{Switch: rack(t), g: trio}
	p.g.Receivers = nil
	for i := range members {
		p.g.Receivers = append(p.g.Receivers, 2+i)
	}
	p.Install(p.g)
	return p
}

// configure gives both the same configuration.
func (p *pair) configure(c ackmerge.Config) {
	p.c = c
	p.g.Epoch, p.g.InitialPSN, p.g.Learn = int(c.Epoch), c.InitialPSN, c.Learn
	p.g.Members, p.g.CNPGap = c.Members, uint64(c.CNPGap/time.Microsecond)
	p.Merge(p.g)
}

// forget makes both lose their state.
func (p *pair) forget() { p.set(ackmerge.State{}) }

// set gives both the same state.
func (p *pair) set(s ackmerge.State) {
	p.s = s
	reg := func(name string, i int, v uint64) {
		if err := p.Register("egress.ack_merge."+name).Set(i, []uint64{v}); err != nil {
			panic(err)
		}
	}
	word := func(r ackmerge.Record) uint64 { return uint64(r.Epoch)<<48 | uint64(r.MSN)<<24 | uint64(r.PSN) }
	for i, r := range s.Acked {
		reg("acked", p.g.Index*16+i, word(r))
	}
	reg("passed", p.g.Index, word(s.Passed))
	reg("cnp_at", p.g.Index, uint64(s.CNPAt/time.Microsecond))
}

var reasons = map[ackmerge.Verdict]string{
	ackmerge.NotMember: "not_member", ackmerge.BadSyndrome: "syndrome", ackmerge.Absorbed: "absorbed",
	ackmerge.StaleNAK: "stale_nak", ackmerge.UndecidedNAK: "undecided_nak", ackmerge.FilteredCNP: "cnp_filter",
	ackmerge.OutsideWindow: "window",
}

// answer gives both the same answer, and returns how what they make of it
// differs, or "".
func (p *pair) answer(a ackmerge.Answer) string {
	in := p.g.Answer(a.Member, a.Syndrome, a.PSN, a.MSN)
	if a.CNP {
		in.H = rocev2.CNPHeaders(p.g.MCID)
	}
	said, verdict := ackmerge.Merge(&p.c, &p.s, a, p.Now)
	reason := slices.Index(bmv2.DropReasons, reasons[verdict])
	before, _ := p.Counter("egress.drops").Get(max(reason, 0))
	out := p.Send(uint16(p.g.Receivers[a.Member]), in.Frame())
	if verdict != ackmerge.Pass {
		if after, _ := p.Counter("egress.drops").Get(reason); len(out) != 0 || after.Packets != before.Packets+1 {
			return fmt.Sprintf("the model drops it: %v; the program sends %v, drops %v", verdict, out, p.Dropped())
		}
		return ""
	}
	want := *in
	want.Eth.Dst, want.Eth.Src = HostMAC(p.g.Sender), RouterMAC
	want.IP.Src, want.IP.TTL = HostIP(p.g.Receivers[0]), 63
	want.H.DestQP = p.g.SenderQPN
	if !a.CNP {
		want.H.PSN, want.H.AETH = said.PSN, rocev2.AETH{Syndrome: said.Syndrome, MSN: said.MSN}
	}
	if len(out) != 1 || out[0].Port != uint16(p.g.Sender) || !bytes.Equal(out[0].Data, want.Frame()) {
		return fmt.Sprintf("the model says %+v, the program %+v", want.H, out)
	}
	return ""
}

// lies are how far from the others a member's claims lie: at the ends of what is
// compared.
var lies = []int{ackmerge.Spread, ackmerge.Spread + 1, ackmerge.Window, ackmerge.Window + 1, 1 << 23, -ackmerge.Spread - 1}

// TestMergeEnumerated: every sequence of answers up to a length, over PSNs across
// the wrap, and over all configurations. Sequences that lead to the same state are
// followed once.
func TestMergeEnumerated(t *testing.T) {
	depth := 4
	if os.Getenv("MCRDMA_LONG") != "" {
		depth = 8
	}
	p := newPair(t, 3)
	var answers []ackmerge.Answer
	for member := range 3 {
		for i := range 5 {
			for _, s := range []rocev2.Syndrome{0x0c, rocev2.NakSequence, 0x2e, rocev2.NakRemoteAccess, 0x67, 0x40} {
				answers = append(answers, ackmerge.Answer{Member: member, Syndrome: s,
					PSN: rocev2.PSN(0xfffffd).Add(i), MSN: uint32(member<<8 + i)})
			}
		}
	}
	for _, far := range lies[1:4] { // member 0 lies
		answers = append(answers, ackmerge.Answer{Syndrome: rocev2.AckNoLimit, PSN: rocev2.PSN(0xfffffd).Add(far)})
	}
	steps, states := 0, 0
	for _, c := range []ackmerge.Config{
		{Members: 7, Epoch: 1, InitialPSN: 0xfffffe}, {Members: 5, Epoch: 2, InitialPSN: 0xffffff},
		{Members: 7, Epoch: 3, Learn: true}, {Members: 6, Epoch: 0xffff, InitialPSN: 0x7fffff}, {Members: 2, Epoch: 0},
	} {
		p.configure(c)
		seen := map[ackmerge.State]bool{{}: true}
		frontier := []ackmerge.State{{}, {Passed: ackmerge.Record{Epoch: 9, PSN: 5}, Acked: [16]ackmerge.Record{{Epoch: 9, PSN: 0xfffffe, MSN: 3}}}}
		for range depth {
			var next []ackmerge.State
			for _, from := range frontier {
				states++
				for _, a := range answers {
					steps++
					p.set(from)
					if diff := p.answer(a); diff != "" {
						t.Fatalf("%+v in %+v of %+v: %s", a, from, c, diff)
					}
					if !seen[p.s] {
						seen[p.s] = true
						next = append(next, p.s)
					}
				}
			}
			frontier = next
		}
	}
	t.Logf("%d answers in %d states", steps, states)
}

// TestMergeRandom: long random sequences, with members removed, new epochs, lost
// registers, and CNPs, for any number of members.
func TestMergeRandom(t *testing.T) {
	sequences := 300
	if os.Getenv("MCRDMA_LONG") != "" {
		sequences = 20_000
	}
	pairs := map[int]*pair{}
	for seed := range uint64(sequences) {
		rng := rand.New(rand.NewPCG(seed, 4))
		n := 1 + rng.IntN(ackmerge.MaxMembers)
		p := pairs[n]
		if p == nil {
			p = newPair(t, n)
			pairs[n] = p
		}
		p.forget()
		if diff := p.sequence(rng, n); diff != "" {
			t.Fatalf("seed %d: %s", seed, diff)
		}
	}
}

func (p *pair) sequence(rng *rand.Rand, n int) string {
	start := rocev2.PSN(rng.Uint32N(1 << 24))
	if rng.IntN(2) == 0 {
		start = rocev2.PSN(0xfffff0 + rng.Uint32N(16))
	}
	c := ackmerge.Config{Members: uint16(1<<n - 1), Epoch: uint16(1 + rng.IntN(3)), InitialPSN: start,
		CNPGap: time.Duration(rng.IntN(3)) * 10 * time.Microsecond}
	p.configure(c)
	at := start
	for step := range 200 {
		p.Now += time.Duration(rng.IntN(20)) * time.Microsecond
		switch k := rng.IntN(100); {
		case k == 0:
			c.Members = uint16(rng.Uint32())
			p.configure(c)
		case k == 1:
			c.Epoch, c.Learn, c.InitialPSN = c.Epoch+1, rng.IntN(2) == 0, at.Add(rng.IntN(40)-30)
			p.configure(c)
		case k == 2:
			p.forget()
		case k < 30:
			at = at.Add(1 + rng.IntN(3))
		}
		a := ackmerge.Answer{Member: rng.IntN(n), PSN: at.Add(-rng.IntN(12)), MSN: rng.Uint32N(1 << 24),
			Syndrome: []rocev2.Syndrome{0x1f, 0x1f, 0x05, 0x60, 0x61, 0x2c, rocev2.Syndrome(rng.Uint32())}[rng.IntN(7)],
			CNP:      rng.IntN(20) == 0}
		switch rng.IntN(50) {
		case 0:
			a.PSN = rocev2.PSN(rng.Uint32N(1 << 24))
		case 1, 2:
			a.PSN = at.Add(lies[rng.IntN(len(lies))] + rng.IntN(5) - 2)
		}
		if diff := p.answer(a); diff != "" {
			return fmt.Sprintf("step %d, %+v of %+v: %s", step, a, c, diff)
		}
	}
	return ""
}
