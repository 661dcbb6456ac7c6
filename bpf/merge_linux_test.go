package bpf_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/google/go-cmp/cmp"

	"github.com/mcrdma/mcrdma/bpf"
	"github.com/mcrdma/mcrdma/internal/testenv"
	"github.com/mcrdma/mcrdma/pkg/ackmerge"
	"github.com/mcrdma/mcrdma/pkg/rocev2"
	"github.com/mcrdma/mcrdma/tests/answers"
	"github.com/mcrdma/mcrdma/tests/dataplane"
)

// A pair is a group's merging twice: in pkg/ackmerge and in the kernel.
type pair struct {
	*kernel
	slot uint32
	g    dataplane.Group
	c    ackmerge.Config
	s    ackmerge.State
	lost map[string]uint64 // how many were dropped, by reason
}

func newPair(t testing.TB) *pair {
	p := &pair{kernel: load(t), g: still(), lost: map[string]uint64{}}
	p.slot, p.g.Receivers = uint32(p.g.Index), nil
	for i := range ackmerge.MaxMembers {
		p.g.Receivers = append(p.g.Receivers, 2+i)
	}
	p.Members(&p.g)
	p.Only(2, uint32(p.g.Sender))
	return p
}

// configure gives both the same configuration.
func (p *pair) configure(c ackmerge.Config) {
	p.c = c
	g := bpf.Group{CNPGap: uint64(c.CNPGap), InitialPSN: uint32(c.InitialPSN), Members: c.Members, Epoch: c.Epoch,
		Source: dataplane.HostIP(2), SenderQPN: dataplane.Wire(p.g.SenderQPN)}
	if c.Learn {
		g.Learn = 1
	}
	p.Put("merge_groups", p.slot, g)
}

// forget makes both lose their state.
func (p *pair) forget() {
	p.s = ackmerge.State{}
	p.Put("merge_slots", p.slot, bpf.Slot{})
}

// same compares both states, and what was dropped.
func (p *pair) same() string {
	var s bpf.Slot
	if err := p.Maps["merge_slots"].LookupWithFlags(p.slot, &s, ebpf.LookupLock); err != nil {
		p.Fatal(err)
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
	return cmp.Diff(p.lost, p.dropped())
}

var reasons = map[ackmerge.Verdict]string{
	ackmerge.NotMember: "not_member", ackmerge.BadSyndrome: "syndrome", ackmerge.Absorbed: "absorbed",
	ackmerge.StaleNAK: "stale_nak", ackmerge.UndecidedNAK: "undecided_nak", ackmerge.FilteredCNP: "cnp_filter",
	ackmerge.OutsideWindow: "window",
}

// answer gives both the same answer, and returns how what they make of it differs, or "".
func (p *pair) answer(a ackmerge.Answer, now time.Duration) (said ackmerge.Answer, verdict ackmerge.Verdict, diff string) {
	p.Put("settings", uint32(0), bpf.Settings{ICRCMode: bpf.Neutral, Told: 1, Now: uint64(now)})
	in := p.g.Answer(a.Member, a.Syndrome, a.PSN, a.MSN)
	if a.CNP {
		in.H = rocev2.CNPHeaders(p.g.MCID)
	}
	said, verdict = ackmerge.Merge(&p.c, &p.s, a, now)
	did, out := p.Run(in.Frame())
	if verdict != ackmerge.Pass {
		p.lost[reasons[verdict]]++
		if did != xdpDrop {
			return said, verdict, fmt.Sprintf("dropped: %v; the kernel says %d", verdict, did)
		}
		return said, verdict, ""
	}
	want := *in
	want.Eth.Dst, want.Eth.Src = dataplane.HostMAC(p.g.Sender), dataplane.RouterMAC
	want.IP.Src, want.IP.TTL, want.H.DestQP = dataplane.HostIP(2), 63, p.g.SenderQPN
	if !a.CNP {
		want.H.PSN, want.H.AETH = said.PSN, rocev2.AETH{Syndrome: said.Syndrome, MSN: said.MSN}
	}
	if f := want.Frame(); did != xdpRedirect || !bytes.Equal(out, f) {
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

// TestHalfAnUpdate: an answer that comes while tables change, those of all or of its group, is dropped and counted, and moves nothing.
func TestHalfAnUpdate(t *testing.T) {
	p := newPair(t)
	p.configure(ackmerge.Config{Members: 1, Epoch: 1})
	p.forget()
	for _, cell := range []uint32{0, cellOf(&p.g)} {
		p.Put("generation", cell, uint64(1))
		p.lost["update"]++
		if did, _ := p.Run(p.g.Answer(0, rocev2.AckNoLimit, 5, 1).Frame()); did != xdpDrop || p.dropped()["update"] != p.lost["update"] {
			t.Errorf("the kernel says %d", did)
		}
		if diff := p.same(); diff != "" {
			t.Error(diff)
		}
		p.Put("generation", cell, uint64(4))
	}
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
		p.Run(p.g.Answer(1, s, rocev2.PSN(i), 1).Frame())
	}
	p.Run(p.g.Answer(9, rocev2.AckNoLimit, 1, 1).Frame()) // of no member
	cnp := p.g.Answer(1, 0, 0, 0)
	cnp.H = rocev2.CNPHeaders(p.g.MCID)
	p.Run(cnp.Frame())
	var s bpf.Slot
	if err := p.Maps["merge_slots"].LookupWithFlags(p.slot, &s, ebpf.LookupLock); err != nil {
		t.Fatal(err)
	}
	want := [bpf.MaxMembers][bpf.Kinds]uint64{1: {1, 1, 1, 1, 1}}
	if s.Counts != want || s.Answers != 7 {
		t.Errorf("%d answers, %v", s.Answers, s.Counts)
	}
}

// BenchmarkIngress is the kernel's own measure of the program's time, without that of receiving and sending: for
// a packet that is routed, and for an answer that is absorbed.
func BenchmarkIngress(b *testing.B) {
	w := newTwin(b)
	w.Put("next_hops", uint32(5), bpf.NextHop{Port: 5, Known: 1, Dst: dataplane.RouterMAC}) // what is made of a frame is routed again
	routed := ip(udp(1, 5, 99, make([]byte, 1000)), func(h []byte) { h[8] = 255 })
	for _, c := range []struct {
		name  string
		frame []byte
		port  uint32
		did   uint32
	}{
		{"routed", routed, 5, xdpRedirect},
		{"absorbed", w.g.Answer(1, rocev2.AckNoLimit, 5, 1).Frame(), 1, xdpDrop},
	} {
		b.Run(c.name, func(b *testing.B) {
			w.Only(2, c.port)
			total := time.Duration(0)
			const once = 200 // a test run goes on with what it made of the frame, whose TTL ends
			for n := b.N; n > 0; n -= once {
				did, d, err := w.Programs["ingress"].Benchmark(c.frame, min(n, once), b.ResetTimer)
				if err != nil || did != c.did {
					b.Fatalf("the kernel says %d, %v", did, err)
				}
				total += d * time.Duration(min(n, once))
			}
			b.ReportMetric(float64(total.Nanoseconds())/float64(b.N), "kernel-ns/op")
		})
	}
}
