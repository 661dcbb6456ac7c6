package bpf_test

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/rlimit"

	"github.com/mcrdma/mcrdma/bmv2"
	"github.com/mcrdma/mcrdma/bpf"
	"github.com/mcrdma/mcrdma/internal/testenv"
	"github.com/mcrdma/mcrdma/pkg/ackmerge"
	"github.com/mcrdma/mcrdma/tests/answers"
	"github.com/mcrdma/mcrdma/pkg/rocev2"
	"github.com/mcrdma/mcrdma/tests/dataplane"
)

const (
	xdpDrop = 1
	xdpPass = 2
	xdpTX   = 3
)

// loaded returns the programs and maps in the kernel, or skips the test with the reason.
func loaded(t testing.TB) *ebpf.Collection {
	t.Helper()
	if err := rlimit.RemoveMemlock(); err != nil {
		testenv.Skip(t, "memory for maps: %v", err)
	}
	c, err := ebpf.NewCollection(spec(t))
	var refused *ebpf.VerifierError
	switch {
	case errors.As(err, &refused):
		t.Fatalf("%+v", refused)
	case err != nil:
		testenv.Skip(t, "the kernel does not load the program; it takes root, and Linux 5.12: %v", err)
	}
	t.Cleanup(c.Close)
	return c
}

// A pair is a group's merging twice: in pkg/ackmerge and in the kernel.
type pair struct {
	t    testing.TB
	k    *ebpf.Collection
	slot uint32
	g    dataplane.Group
	c    ackmerge.Config
	s    ackmerge.State
	lost map[uint32]uint64 // how many were dropped, by reason
	out  []byte
}

func newPair(t testing.TB) *pair {
	p := &pair{t: t, k: loaded(t), slot: 77, lost: map[uint32]uint64{}, out: make([]byte, 256),
		g: dataplane.Group{Sender: 1, SenderQPN: 0x51, MCID: 0xe00007}}
	for i := range ackmerge.MaxMembers {
		p.g.Receivers = append(p.g.Receivers, 2+i)
		p.put("merge_members", bpf.MemberKey{Src: dataplane.HostIP(2 + i), Dst: dataplane.HostIP(1), DestQP: [4]byte{1: 0xe0, 3: 7}},
			bpf.Member{Slot: p.slot, Index: uint16(i)})
	}
	return p
}

func (p *pair) put(table string, key, value any) {
	p.t.Helper()
	if err := p.k.Maps[table].Put(key, value); err != nil {
		p.t.Fatalf("%s: %v", table, err)
	}
}

// configure gives both the same configuration.
func (p *pair) configure(c ackmerge.Config) {
	p.c = c
	g := bpf.Group{CNPGap: uint64(c.CNPGap), InitialPSN: uint32(c.InitialPSN), Members: c.Members, Epoch: c.Epoch,
		Source: dataplane.HostIP(2), SenderQPN: [4]byte{3: 0x51}}
	if c.Learn {
		g.Learn = 1
	}
	p.put("merge_groups", p.slot, g)
}

// forget makes both lose their state.
func (p *pair) forget() {
	p.s = ackmerge.State{}
	p.put("merge_slots", p.slot, bpf.Slot{})
}

// same compares both states, and what was dropped.
func (p *pair) same() string {
	var s bpf.Slot
	if err := p.k.Maps["merge_slots"].LookupWithFlags(p.slot, &s, ebpf.LookupLock); err != nil {
		p.t.Fatal(err)
	}
	record := func(r bpf.Record) ackmerge.Record {
		return ackmerge.Record{Epoch: uint16(r.Epoch), MSN: r.MSN, PSN: rocev2.PSN(r.PSN)}
	}
	got := ackmerge.State{Passed: record(s.Passed), CNPAt: time.Duration(s.CNPAt)}
	for i, r := range s.Acked {
		got.Acked[i] = record(r)
	}
	if got != p.s {
		return fmt.Sprintf("the kernel's state is\n%+v; expected\n%+v", got, p.s)
	}
	for reason, want := range p.lost {
		if n := p.dropped(reason); n != want {
			return fmt.Sprintf("%d dropped for reason %d, expected %d", n, reason, want)
		}
	}
	return ""
}

var reasons = map[ackmerge.Verdict]string{
	ackmerge.NotMember: "not_member", ackmerge.BadSyndrome: "syndrome", ackmerge.Absorbed: "absorbed",
	ackmerge.StaleNAK: "stale_nak", ackmerge.UndecidedNAK: "undecided_nak", ackmerge.FilteredCNP: "cnp_filter",
	ackmerge.OutsideWindow: "window",
}

// dropped is how many packets were dropped for a reason.
func (p *pair) dropped(reason uint32) (n uint64) {
	var all []bpf.Count
	if err := p.k.Maps["drops"].Lookup(reason, &all); err != nil {
		p.t.Fatal(err)
	}
	for _, c := range all {
		n += c.Packets
	}
	return n
}

// run gives the kernel a frame, and returns what it does with it.
func (p *pair) run(frame []byte) (verdict uint32, out []byte) {
	o := ebpf.RunOptions{Data: frame, DataOut: p.out}
	verdict, err := p.k.Programs["merge_answers"].Run(&o)
	if err != nil {
		p.t.Fatal(err)
	}
	return verdict, o.DataOut
}

// answer gives both the same answer, and returns how what they make of it differs, or "".
func (p *pair) answer(a ackmerge.Answer, now time.Duration) (said ackmerge.Answer, verdict ackmerge.Verdict, diff string) {
	p.put("settings", uint32(0), bpf.Settings{Told: 1, Now: uint64(now)})
	in := p.g.Answer(a.Member, a.Syndrome, a.PSN, a.MSN)
	if a.CNP {
		in.H = rocev2.CNPHeaders(p.g.MCID)
	}
	said, verdict = ackmerge.Merge(&p.c, &p.s, a, now)
	did, out := p.run(in.Frame())
	if verdict != ackmerge.Pass {
		p.lost[uint32(slices.Index(bmv2.DropReasons, reasons[verdict]))]++
		if did != xdpDrop {
			return said, verdict, fmt.Sprintf("dropped: %v; the kernel says %d", verdict, did)
		}
		return said, verdict, ""
	}
	want := *in
	want.IP.Src, want.H.DestQP = dataplane.HostIP(2), p.g.SenderQPN
	if !a.CNP {
		want.H.PSN, want.H.AETH = said.PSN, rocev2.AETH{Syndrome: said.Syndrome, MSN: said.MSN}
	}
	if f := want.Frame(); did != xdpTX || !bytes.Equal(out, f) {
		return said, verdict, fmt.Sprintf("becomes %+v:\n% x; the kernel says %d:\n% x", said, f, did, out)
	}
	return said, verdict, ""
}

// TestScripts has the kernel merge the scripts of pkg/ackmerge.
func TestScripts(t *testing.T) {
	scripts, err := answers.Scripts("../pkg/ackmerge/testdata")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	p := newPair(t)
	for _, steps := range scripts {
		p.forget()
		for _, s := range steps {
			switch {
			case s.Restart:
				p.forget()
			case s.Group != nil:
				p.configure(*s.Group)
			default:
				n++
				_, _, diff := p.answer(s.Answer, s.Now)
				if diff == "" {
					diff = p.same()
				}
				if diff != "" {
					t.Fatalf("%s: %s", s.Where, diff)
				}
			}
		}
	}
	if n < 60 {
		t.Errorf("the scripts have %d answers", n)
	}
}

// TestRandom has the kernel merge what random members answer: late, twice, in any order; one of them lies.
func TestRandom(t *testing.T) {
	count := 1_000_000
	if testing.Short() || testenv.Race {
		count = 50_000
	}
	rng := rand.New(rand.NewPCG(1, 23)) //nolint:gosec // for a test
	stream := answers.NewStream(rng, 1<<14, ackmerge.MaxMembers)
	p := newPair(t)
	verdicts := map[ackmerge.Verdict]int{}
	for i := range count {
		a, now, anew := stream.Next()
		c := stream.Group()
		if anew && rng.IntN(3) == 0 {
			p.forget()
			c.Learn = true
		}
		c.Learn = c.Learn || !anew && p.c.Learn
		if c != p.c {
			p.configure(c)
		}
		said, verdict, diff := p.answer(a, now)
		if diff == "" && i%1000 == 0 {
			diff = p.same()
		}
		if diff != "" {
			t.Fatalf("answer %d, %+v of %+v: %s", i, a, p.c, diff)
		}
		verdicts[verdict]++
		if verdict == ackmerge.Pass && !said.CNP {
			psn := said.PSN
			if !said.Syndrome.IsAck() {
				psn = psn.Add(-1)
			}
			stream.Told(psn)
		}
	}
	t.Log(verdicts)
	for _, v := range []ackmerge.Verdict{ackmerge.Pass, ackmerge.Absorbed, ackmerge.StaleNAK, ackmerge.UndecidedNAK, ackmerge.FilteredCNP,
		ackmerge.OutsideWindow, ackmerge.NotMember} {
		if verdicts[v] == 0 {
			t.Errorf("nothing was %v", v)
		}
	}
}

// TestPasses: what is no answer of a member, or is not right, is left as it is.
func TestPasses(t *testing.T) {
	p := newPair(t)
	p.configure(ackmerge.Config{Members: 7, Epoch: 1})
	p.forget()
	p.put("settings", uint32(0), bpf.Settings{})
	good := func() *dataplane.Packet { return p.g.Answer(0, rocev2.AckNoLimit, 5, 1) }
	if did, _ := p.run(good().Frame()); did != xdpDrop {
		t.Fatalf("an answer: %d", did)
	}
	for name, f := range map[string]func() []byte{
		"data":           func() []byte { return p.g.Data(rocev2.SendOnly, 1, make([]byte, 64)).Frame() },
		"of no group":    func() []byte { a := good(); a.H.DestQP = 9; return a.Frame() },
		"of no member":   func() []byte { a := good(); a.IP.Src = dataplane.HostIP(99); return a.Frame() },
		"ICRC":           func() []byte { f := good().Frame(); f[len(f)-1] ^= 1; return f },
		"PSN changed":    func() []byte { f := good().Frame(); f[14+20+8+11] ^= 1; return f },
		"IP checksum":    func() []byte { f := good().Frame(); f[24] ^= 1; return f },
		"a fragment":     func() []byte { f := good().Frame(); f[20] |= 0x20; f[24] -= 0x20; return f },
		"cut":            func() []byte { f := good().Frame(); return f[:len(f)-1] },
		"lengths":        func() []byte { f := good().Frame(); f[39]++; return f },
		"another port":   func() []byte { a := good(); a.UDP.DstPort = 4790; return a.Frame() },
		"not IPv4":       func() []byte { f := good().Frame(); f[12] = 0x86; return f },
		"short":          func() []byte { return good().Frame()[:20] },
		"half a trailer": func() []byte { return good().Frame()[:60] },
	} {
		frame := f()
		did, out := p.run(frame)
		if did != xdpPass || !bytes.Equal(out, frame) {
			t.Errorf("%s: the kernel says %d:\n% x", name, did, out)
		}
	}
}

// TestHalfAnUpdate: an answer that comes while tables change is dropped and counted, and moves nothing.
func TestHalfAnUpdate(t *testing.T) {
	p := newPair(t)
	p.configure(ackmerge.Config{Members: 1, Epoch: 1})
	p.forget()
	p.put("generation", uint32(0), uint64(1))
	if did, _ := p.run(p.g.Answer(0, rocev2.AckNoLimit, 5, 1).Frame()); did != xdpDrop || p.dropped(bpf.DropUpdate) != 1 {
		t.Errorf("the kernel says %d", did)
	}
	if diff := p.same(); diff != "" {
		t.Error(diff)
	}
	p.put("generation", uint32(0), uint64(2))
	if _, _, diff := p.answer(ackmerge.Answer{Syndrome: rocev2.AckNoLimit, PSN: 5, MSN: 1}, time.Second); diff != "" {
		t.Error(diff)
	}
}

// TestCounts: each member's answers are counted by kind.
func TestCounts(t *testing.T) {
	p := newPair(t)
	p.configure(ackmerge.Config{Members: 3, Epoch: 1})
	p.forget()
	for i, s := range []rocev2.Syndrome{rocev2.AckNoLimit, 0x60, 0x25, 0x62, 0x45} {
		p.run(p.g.Answer(1, s, rocev2.PSN(i), 1).Frame())
	}
	p.run(p.g.Answer(9, rocev2.AckNoLimit, 1, 1).Frame()) // of no member
	cnp := p.g.Answer(1, 0, 0, 0)
	cnp.H = rocev2.CNPHeaders(p.g.MCID)
	p.run(cnp.Frame())
	var s bpf.Slot
	if err := p.k.Maps["merge_slots"].LookupWithFlags(p.slot, &s, ebpf.LookupLock); err != nil {
		t.Fatal(err)
	}
	want := [bpf.MaxMembers][bpf.Kinds]uint64{1: {1, 1, 1, 1, 1}}
	if s.Counts != want || s.Answers != 7 {
		t.Errorf("%d answers, %v", s.Answers, s.Counts)
	}
}

// BenchmarkMerge is the kernel's own measure of the program's time, for an answer that is passed on.
func BenchmarkMerge(b *testing.B) {
	p := newPair(b)
	p.configure(ackmerge.Config{Members: 7, Epoch: 1})
	p.forget()
	if os.Getuid() != 0 {
		b.Skip("needs root")
	}
	for i := range 3 {
		p.run(p.g.Answer(i, rocev2.AckNoLimit, 5, 1).Frame())
	}
	_, d, err := p.k.Programs["merge_answers"].Benchmark(p.g.Answer(1, rocev2.AckNoLimit, 5, 1).Frame(), max(b.N, 1), b.ResetTimer)
	if err != nil {
		b.Fatal(err)
	}
	b.ReportMetric(float64(d.Nanoseconds()), "kernel-ns/op")
}
