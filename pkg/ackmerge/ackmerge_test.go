package ackmerge

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/mcrdma/mcrdma/pkg/rocev2"
)

// A group of which everything is known, with positions instead of PSNs: Merge's result is
// compared with what each member has really received. Some members lie: they answer with
// any PSN, and nothing is promised to them.
type oracle struct {
	c        Config
	s        State
	start    rocev2.PSN
	liars    uint16
	received [MaxMembers]int // packets, from position 0 on
	said     []past
	step     uint16 // from an epoch to the next, which may be a smaller number
}

type past struct{ member, upTo int }

// position returns the number of packets that psn, as the last one acknowledged,
// stands for: the one nearest to what the slowest honest member has.
func (o *oracle) position(psn rocev2.PSN) int {
	return o.slowest() + psn.Sub(o.start.Add(o.slowest()-1))
}

// slowest returns the least of what the honest current members have received.
func (o *oracle) slowest() (least int) {
	least = 1 << 40
	for i, n := range o.received {
		if o.c.Members&^o.liars>>i&1 != 0 {
			least = min(least, n)
		}
	}
	return least
}

// lies are how far from the truth a liar may be: around all that is compared.
var lies = []int{-1 << 23, -1<<23 + 1, -Window, -2 * Spread, -Spread - 1, -Spread, -1, 0, 1, 5, Spread - 1, Spread, Spread + 1,
	2 * Spread, Window - 1, Window, Window + 1, 2*Window - 1}

func drawLie(t *rapid.T) int {
	return rapid.SampledFrom(lies).Draw(t, "lie") + rapid.IntRange(-30, 30).Draw(t, "about")
}

// TestRandom: whatever the members say, in whatever order it comes, through
// removals, new epochs, losses of state, other groups in the same slot and lies, the
// sender is never told more than all honest members have received; and what an
// honest one says last is never outside the window.
func TestRandom(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, MaxMembers).Draw(t, "members")
		o := &oracle{start: rocev2.PSN(rapid.Uint32Range(0, rocev2.Mask24).Draw(t, "psn"))}
		all := uint16(1<<n - 1)
		o.c = Config{Members: all, Epoch: 1000, InitialPSN: o.start}
		o.step = rapid.SampledFrom([]uint16{1, 0xffff}).Draw(t, "next epoch")
		o.liars = rapid.SampledFrom([]uint16{0, 1, 2, 9}).Draw(t, "liars") & (all >> 1)
		member := func(t *rapid.T) int { return rapid.IntRange(0, n-1).Draw(t, "member") }
		t.Repeat(map[string]func(*rapid.T){
			"receive": func(t *rapid.T) {
				o.received[member(t)] += rapid.IntRange(1, 20).Draw(t, "packets")
			},
			"answer": func(t *rapid.T) {
				i := member(t)
				upTo := o.received[i]
				if o.liars>>i&1 != 0 {
					upTo += drawLie(t)
				}
				o.said = append(o.said, past{i, upTo})
				o.answer(t, i, upTo, rapid.SampledFrom([]rocev2.Syndrome{0, 7, 0x1f, 0x25, 0x60, 0x62, 0x6f, 0x9f}).Draw(t, "syndrome"))
			},
			"all answer": func(t *rapid.T) {
				for i, n := range o.received[:n] {
					if o.liars>>i&1 == 0 {
						o.answer(t, i, n, rocev2.AckNoLimit)
					}
				}
			},
			"late": func(t *rapid.T) {
				if len(o.said) == 0 {
					t.Skip("nothing was said")
				}
				p := rapid.SampledFrom(o.said).Draw(t, "what")
				o.answer(t, p.member, p.upTo, rapid.SampledFrom([]rocev2.Syndrome{0x1f, 0x60}).Draw(t, "syndrome"))
			},
			"remove": func(t *rapid.T) {
				if rest := o.c.Members &^ (1 << member(t)); rest&^o.liars != 0 {
					o.c.Members = rest
				}
			},
			"restart": func(t *rapid.T) {
				if rapid.Bool().Draw(t, "registers are lost") {
					o.s = State{}
				}
				o.c.Epoch += o.step
				o.c.Learn = rapid.Bool().Draw(t, "learn")
				initial := rapid.IntRange(0, o.slowest()).Draw(t, "initial") // a PSN that all have passed
				if o.c.Learn {                                               // any
					initial += rapid.IntRange(0, 50).Draw(t, "too far by")
				}
				o.c.InitialPSN = o.start.Add(initial)
			},
			"another group": func(t *rapid.T) {
				o.start = o.start.Add(o.slowest() + rapid.IntRange(-50, 50).Draw(t, "start"))
				o.c = Config{Members: all, Epoch: o.c.Epoch + o.step, InitialPSN: o.start}
				o.received, o.said = [MaxMembers]int{}, nil
			},
		})
	})
}

func (o *oracle) answer(t *rapid.T, i, upTo int, s rocev2.Syndrome) {
	a := Answer{Member: i, Syndrome: s, PSN: o.start.Add(upTo - 1)}
	if !s.IsAck() {
		a.PSN = o.start.Add(upTo)
	}
	got, verdict := Merge(&o.c, &o.s, a, 0)
	current := o.c.Members>>i&1 != 0
	honest := o.liars>>i&1 == 0
	if verdict != Pass {
		if got != (Answer{}) {
			t.Fatalf("%+v of member %d is dropped, and yet becomes %+v", a, i, got)
		}
		if s.IsAck() && current && verdict != Absorbed && verdict != OutsideWindow || !current && verdict != NotMember ||
			verdict == OutsideWindow && honest && upTo == o.received[i] {
			t.Fatalf("%+v of member %d: %v", a, i, verdict)
		}
		return
	}
	if !current {
		t.Fatalf("member %d was removed, and its %+v passed on", i, a)
	}
	acked := got.PSN
	if !s.IsAck() {
		acked = got.PSN.Add(-1)
	}
	if p := o.position(acked); p > o.slowest() {
		t.Fatalf("the sender gets ACKs for %d packets, the slowest honest member has %d", p, o.slowest())
	}
	if s.IsAck() && got.Syndrome != rocev2.AckNoLimit || !s.IsAck() && got.Syndrome != s {
		t.Fatalf("%v became %v", s, got.Syndrome)
	}
}

// TestProgress: once every member has everything and says so, and those that lied
// are removed, the sender is told, whatever happened before.
func TestProgress(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, MaxMembers).Draw(t, "members")
		all := uint16(1<<n - 1)
		c := Config{Members: all, Epoch: uint16(rapid.IntRange(1, 3).Draw(t, "epoch")),
			InitialPSN: rocev2.PSN(rapid.Uint32Range(0, rocev2.Mask24).Draw(t, "psn")), Learn: rapid.Bool().Draw(t, "learn")}
		liars := rapid.SampledFrom([]uint16{0, 2, 4, 6}).Draw(t, "liars") & all
		var s State
		for range rapid.IntRange(0, 60).Draw(t, "before") {
			a := Answer{Member: rapid.IntRange(0, n-1).Draw(t, "member"),
				PSN:      c.InitialPSN.Add(rapid.IntRange(0, 50).Draw(t, "at")),
				Syndrome: rapid.SampledFrom([]rocev2.Syndrome{0x1f, 0x60, 0x21}).Draw(t, "syndrome")}
			if liars>>a.Member&1 != 0 {
				a.PSN = a.PSN.Add(drawLie(t))
			}
			Merge(&c, &s, a, 0)
		}
		c.Members &^= liars
		end := c.InitialPSN.Add(rapid.SampledFrom([]int{60, Window - 1 - 2*Spread}).Draw(t, "end"))
		if !c.Learn && end != c.InitialPSN.Add(60) {
			end = c.InitialPSN.Add(Window - 1)
		}
		var last Answer
		var v Verdict
		for i := range n {
			if c.Members>>i&1 != 0 {
				last, v = Merge(&c, &s, Answer{Member: i, PSN: end, Syndrome: rocev2.AckNoLimit, MSN: 9}, 0)
			}
		}
		if v != Pass || last.PSN != end || last.MSN != 9 {
			t.Fatalf("all have %d; the sender hears %+v, %v", end, last, v)
		}
		for i := range n { // the merged ACK was lost, and all answer a retransmission
			if c.Members>>i&1 == 0 {
				continue
			}
			if again, v := Merge(&c, &s, Answer{Member: i, PSN: end, Syndrome: rocev2.AckNoLimit}, 0); v != Pass || again.PSN != end {
				t.Fatalf("the sender hears %+v, %v again", again, v)
			}
		}
	})
}

func FuzzMerge(f *testing.F) {
	f.Add(uint16(7), uint16(1), uint32(0xfffffe), false, []byte("\x00\x1f\x00\x00\x01\x01\x60\x00\x00\x02"))
	f.Fuzz(func(t *testing.T, members, epoch uint16, psn uint32, learn bool, script []byte) {
		c := Config{Members: members, Epoch: epoch, InitialPSN: rocev2.PSN(psn) & rocev2.Mask24, Learn: learn}
		var s State
		for ; len(script) >= 5; script = script[5:] {
			a := Answer{Member: int(int8(script[0])), Syndrome: rocev2.Syndrome(script[1]),
				PSN: rocev2.PSN(script[2])<<16 | rocev2.PSN(script[3])<<8 | rocev2.PSN(script[4])}
			got, v := Merge(&c, &s, a, 0)
			if v != Pass {
				continue
			}
			if got.PSN > rocev2.Mask24 || got.MSN > rocev2.Mask24 || c.Epoch == 0 {
				t.Fatalf("%+v -> %+v, passed %+v", a, got, s.Passed)
			}
		}
	})
}

func BenchmarkMerge(b *testing.B) {
	for _, members := range []int{3, 16} {
		b.Run(map[int]string{3: "members=3", 16: "members=16"}[members], func(b *testing.B) {
			c := Config{Members: uint16(1<<members - 1), Epoch: 1}
			var s State
			b.ReportAllocs()
			a := Answer{Syndrome: rocev2.AckNoLimit}
			for b.Loop() {
				if a.Member++; a.Member == members {
					a.Member = 0
					a.PSN = a.PSN.Add(1)
				}
				Merge(&c, &s, a, time.Microsecond)
			}
		})
	}
}
