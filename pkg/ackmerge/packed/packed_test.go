package packed

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/mcrdma/mcrdma/pkg/ackmerge"
	"github.com/mcrdma/mcrdma/pkg/rocev2"
	"github.com/mcrdma/mcrdma/tests/answers"
)

// A pair is a group merged in both forms.
type pair struct {
	c      ackmerge.Config
	s      ackmerge.State
	packed State
	reset  bool // the registers are lost
}

func (p *pair) group(c ackmerge.Config, now time.Duration) {
	if p.reset || c.Epoch != p.c.Epoch {
		p.packed, p.reset = Reset(c.InitialPSN, now), false
	}
	p.c = c
	if c.Epoch == 0 {
		p.c.Members = 0 // what has no epoch is no group
	}
}

func (p *pair) config() *Config {
	return &Config{Members: p.c.Members, CNPGap: uint32(p.c.CNPGap)}
}

// merge has both forms merge an answer, but for one that is outside what the packed form takes; it
// must then drop it and do nothing else.
func (p *pair) merge(t *testing.T, where any, a ackmerge.Answer, now time.Duration) (ackmerge.Answer, ackmerge.Verdict) {
	t.Helper()
	before := p.packed
	got, verdict := Merge(p.config(), &p.packed, a, now)
	if !p.within(a) && p.c.Members>>a.Member&1 == 1 {
		if verdict == ackmerge.Pass || p.packed != before {
			t.Fatalf("%v: %+v is outside the window, and becomes %+v, %v", where, a, got, verdict)
		}
		return got, verdict
	}
	want, wantVerdict := ackmerge.Merge(&p.c, &p.s, a, now)
	same := verdict == wantVerdict || verdict == ackmerge.Absorbed && wantVerdict == ackmerge.OutsideWindow ||
		verdict == ackmerge.StaleNAK && wantVerdict == ackmerge.OutsideWindow
	if got != want || !same {
		t.Fatalf("%v: %+v of %+v becomes\n%+v, %v; expected\n%+v, %v", where, a, p.c, got, verdict, want, wantVerdict)
	}
	return got, verdict
}

// within reports whether the switch lets an answer in.
func (p *pair) within(a ackmerge.Answer) bool {
	psn := a.PSN
	if !a.Syndrome.IsAck() {
		psn = psn.Add(-1)
	}
	d := rocev2.PSN(p.packed.Sent >> 8).Sub(psn)
	return a.CNP || d >= 0 && d < Window
}

// overtaken reports whether an ACK is the exception of the package comment: it was overtaken, after a removal.
func (p *pair) overtaken(a ackmerge.Answer) bool {
	if a.CNP || !a.Syndrome.IsAck() || !p.packed.Acked[a.Member].after(Pack(a.PSN, a.MSN)) {
		return false
	}
	for i, r := range p.packed.Acked {
		if p.c.Members>>i&1 == 1 && !r.after(p.packed.Passed) {
			return false // the minimum has been told
		}
	}
	return true
}

// TestScripts has both forms merge the scripts of ackmerge, under a sender that always has as much under way as
// it may. Groups whose initial PSN must be learned are none of this form.
func TestScripts(t *testing.T) {
	scripts, err := answers.Scripts("../testdata")
	if err != nil {
		t.Fatal(err)
	}
	compared, outside := 0, 0
	for _, steps := range scripts {
		p := pair{reset: true}
		for _, s := range steps {
			switch {
			case s.Restart:
				p.reset, p.s = true, ackmerge.State{}
			case s.Group != nil:
				p.group(*s.Group, s.Now)
			case !p.c.Learn:
				p.packed.Send(told(&p.packed, p.c.InitialPSN).Add(Window - 1))
				if p.within(s.Answer) {
					compared++
				} else {
					outside++
				}
				p.merge(t, s.Where, s.Answer, s.Now)
			}
		}
	}
	t.Logf("%d answers compared, %d are outside the window", compared, outside)
	if compared < 60 || outside > 20 {
		t.Errorf("of the scripts' answers %d are compared, %d are outside", compared, outside)
	}
}

// told is the PSN that was passed on; scripts stay near their initial PSN, or far from it.
func told(s *State, initial rocev2.PSN) rocev2.PSN {
	return rocev2.PSN(behind(s.Sent>>8, uint32(s.Passed>>16)))
}

// TestRandom: both forms say the same, and no more than all honest members have.
func TestRandom(t *testing.T) {
	total := 1_000_000
	if testing.Short() {
		total = 50_000
	}
	for seed := range uint64(4) {
		x := answers.NewStream(rand.New(rand.NewPCG(seed, 22)), Window-1, ackmerge.MaxMembers)
		p := pair{}
		p.group(x.Group(), 0)
		passed := 0
		for range total / 4 {
			a, now, anew := x.Next()
			if anew {
				p.s = ackmerge.State{CNPAt: now - MaxGap}
			}
			p.group(x.Group(), now)
			p.packed.Send(x.Sent())
			if p.overtaken(a) {
				continue
			}
			got, verdict := p.merge(t, seed, a, now)
			if verdict != ackmerge.Pass || got.CNP {
				continue
			}
			passed++
			psn := got.PSN
			if !got.Syndrome.IsAck() {
				psn = psn.Add(-1)
			}
			if x.Slowest().Before(psn) {
				t.Fatalf("seed %d: the sender hears of %d, the slowest has %d", seed, psn, x.Slowest())
			}
			x.Told(psn)
		}
		t.Logf("seed %d: %d answers passed on", seed, passed)
		if passed < total/50 {
			t.Errorf("seed %d: only %d answers were passed on", seed, passed)
		}
	}
}

// TestOvertakenAfterRemoval: the exception tells less than the minimum, and the next answer the rest.
func TestOvertakenAfterRemoval(t *testing.T) {
	s := Reset(100, 0)
	s.Send(120)
	c := Config{Members: 7}
	for _, a := range []ackmerge.Answer{{Member: 0, PSN: 110, MSN: 2}, {Member: 1, PSN: 108, MSN: 1}, {Member: 2, PSN: 101}} {
		Merge(&c, &s, a, 0)
	}
	c.Members = 3
	for _, x := range []struct{ says, told rocev2.PSN }{{104, 104}, {110, 108}, {110, 108}} {
		if got, v := Merge(&c, &s, ackmerge.Answer{PSN: x.says, MSN: 2}, 0); v != ackmerge.Pass || got.PSN != x.told {
			t.Errorf("ACK %d becomes %+v, %v; expected %d", x.says, got, v, x.told)
		}
	}
}

// FuzzMerge: whatever is said in a group, in whatever order, nothing but what was sent is ever told.
func FuzzMerge(f *testing.F) {
	f.Add(uint16(7), uint32(0xfffffe), uint16(40), uint16(3), []byte("\x00\x1f\x00\x00\x01\x01\x60\x00\x00\x02"))
	f.Fuzz(func(t *testing.T, members uint16, initial uint32, sent, gap uint16, script []byte) {
		first := rocev2.PSN(initial) & rocev2.Mask24
		c, s := Config{Members: members, CNPGap: uint32(gap)}, Reset(first, 0)
		s.Send(first.Add(int(sent) % Window))
		for ; len(script) >= 5; script = script[5:] {
			a := ackmerge.Answer{Member: int(int8(script[0])), Syndrome: rocev2.Syndrome(script[1]), CNP: script[1] == 0x81,
				PSN: first.Add(int(int16(uint16(script[2])<<8 | uint16(script[3])))), MSN: uint32(script[4])}
			got, v := Merge(&c, &s, a, time.Duration(script[4])*time.Microsecond)
			if v == ackmerge.Pass && !a.CNP && (got.PSN > rocev2.Mask24 || got.MSN > rocev2.Mask24 || got.PSN.Sub(rocev2.PSN(s.Sent>>8)) > 1) {
				t.Fatalf("%+v -> %+v, sent %d", a, got, s.Sent>>8)
			}
		}
	})
}

func BenchmarkMerge(b *testing.B) {
	c, s := Config{Members: 7}, Reset(0, 0)
	a := ackmerge.Answer{Syndrome: rocev2.AckNoLimit}
	b.ReportAllocs()
	for b.Loop() {
		if a.Member++; a.Member == 3 {
			a.Member = 0
			a.PSN = a.PSN.Add(1)
			s.Send(a.PSN)
		}
		Merge(&c, &s, a, time.Microsecond)
	}
}

// TestSend: a packet is noted that lies ahead of the last one by less than a window.
func TestSend(t *testing.T) {
	for _, c := range []struct {
		ahead int
		noted bool
	}{{0, false}, {1, true}, {Window - 1, true}, {Window, false}, {-1, false}} {
		s := Reset(1<<24-5, 0)
		was := rocev2.PSN(s.Sent >> 8)
		want := was
		if c.noted {
			want = was.Add(c.ahead)
		}
		if s.Send(was.Add(c.ahead)); rocev2.PSN(s.Sent>>8) != want {
			t.Errorf("%d ahead: %#x was sent, want %#x", c.ahead, s.Sent>>8, want)
		}
	}
}

// TestLimits: an answer counts that lies less than 2^15 packets behind the last one sent, and a CNP is held back for a gap of up to 2^20 ns,
// which is what the registers have room for.
func TestLimits(t *testing.T) {
	for _, c := range []struct {
		behind int
		want   ackmerge.Verdict
	}{{1<<15 - 1, ackmerge.Pass}, {1 << 15, ackmerge.OutsideWindow}} {
		s := Reset(100, 0)
		for psn := rocev2.PSN(100); psn <= 100+1<<15; psn++ {
			s.Send(psn)
		}
		psn := rocev2.PSN(100 + 1<<15 - c.behind)
		if _, v := Merge(&Config{Members: 1}, &s, ackmerge.Answer{Syndrome: rocev2.AckNoLimit, PSN: psn}, 0); v != c.want {
			t.Errorf("%d behind: %v, want %v", c.behind, v, c.want)
		}
	}
	for _, gap := range []time.Duration{1, 1000, 1 << 20} {
		const begin = 5 * time.Second // later than 2^32 ns
		s := Reset(100, begin)
		for _, c := range []struct {
			at   time.Duration
			want ackmerge.Verdict
		}{{0, ackmerge.Pass}, {0, ackmerge.FilteredCNP}, {gap - 1, ackmerge.FilteredCNP}, {gap, ackmerge.Pass}} {
			if _, v := Merge(&Config{Members: 1, CNPGap: uint32(gap)}, &s, ackmerge.Answer{CNP: true}, begin+c.at); v != c.want {
				t.Errorf("gap %v, after %v: %v, want %v", gap, c.at, v, c.want)
			}
		}
	}
}
