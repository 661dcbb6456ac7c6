package pipeline

import (
	"math"
	"math/big"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// TestMeterAgainstFractions compares the meter with RFC 2698's rules on exact
// fractions.
func TestMeterAgainstFractions(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rate := rapid.OneOf(rapid.Int64Range(0, 5), rapid.Int64Range(0, 2_000_000_000), rapid.Int64Range(0, math.MaxInt64))
		burst := rapid.OneOf(rapid.Int64Range(0, 5000), rapid.Int64Range(0, math.MaxInt64))
		a, b := rate.Draw(t, "rate"), rate.Draw(t, "rate")
		cfg := MeterConfig{CIR: min(a, b), CBurst: burst.Draw(t, "cburst"), PIR: max(a, b), PBurst: burst.Draw(t, "pburst"), Set: true}
		var cell meterCell
		cell.configure(cfg)
		if cell.config() != cfg {
			t.Fatalf("configured %+v, got %+v", cfg, cell.config())
		}
		type bucket struct{ rate, burst, tokens *big.Rat }
		newBucket := func(rate, burst int64) bucket {
			return bucket{new(big.Rat).SetFrac64(rate, int64(time.Second)), new(big.Rat).SetInt64(burst), new(big.Rat).SetInt64(burst)}
		}
		fill := func(b *bucket, d time.Duration) {
			b.tokens.Add(b.tokens, new(big.Rat).Mul(b.rate, new(big.Rat).SetInt64(int64(d))))
			if b.tokens.Cmp(b.burst) > 0 {
				b.tokens.Set(b.burst)
			}
		}
		c, p := newBucket(cfg.CIR, cfg.CBurst), newBucket(cfg.PIR, cfg.PBurst)
		var now time.Duration
		step := rapid.OneOf(rapid.Int64Range(-5, 1000), rapid.Int64Range(0, int64(10*time.Second)), rapid.Int64Range(0, math.MaxInt64/200))
		last := now
		for range rapid.IntRange(1, 60).Draw(t, "packets") {
			now += time.Duration(step.Draw(t, "step"))
			n := rapid.Int64Range(1, 3000).Draw(t, "bytes")
			if now > last {
				fill(&c, now-last)
				fill(&p, now-last)
				last = now
			}
			size := new(big.Rat).SetInt64(n)
			want := green
			switch {
			case p.tokens.Cmp(size) < 0:
				want = red
			case c.tokens.Cmp(size) < 0:
				want = yellow
				p.tokens.Sub(p.tokens, size)
			default:
				p.tokens.Sub(p.tokens, size)
				c.tokens.Sub(c.tokens, size)
			}
			if got := cell.mark(now, n); got != want {
				t.Fatalf("%+v: %d bytes at %d ns: color %d, want %d", cfg, n, now, got, want)
			}
		}
	})
}

// TestBucketCarries: the sum of a product and the rest of the last one may just
// not fit 64 bits.
func TestBucketCarries(t *testing.T) {
	b := bucket{rate: 3, burst: math.MaxInt64, part: 999_999_999}
	b.fill(math.MaxUint64 / 3)
	if want := int64(math.MaxUint64/1_000_000_000) + 1; b.tokens != want {
		t.Errorf("%d tokens, want %d", b.tokens, want)
	}
}

func TestMeterArray(t *testing.T) {
	s := testState(t)
	m := s.Meter("meter")
	if got := m.mark(0, 0, 1<<30); got != green {
		t.Errorf("not configured: color %d", got)
	}
	cfg := MeterConfig{CIR: 10, CBurst: 100, PIR: 20, PBurst: 100, Set: true}
	noErr(t, m.Set(1, cfg))
	if c, err := m.Get(1); c != cfg || err != nil {
		t.Errorf("Get: %+v, %v", c, err)
	}
	if c, _ := m.Get(0); c.Set {
		t.Errorf("cell 0: %+v", c)
	}
	at := func(sec int, bytes int) int { return m.mark(1, time.Duration(sec)*time.Second, bytes) }
	for i, got := range []int{at(100, 100), at(100, 1), at(101, 11), at(101, 9), at(1000, 100)} {
		if want := []int{green, red, yellow, green, green}[i]; got != want { // at 101: 10 and 20 tokens, then 10 and 9
			t.Errorf("packet %d: color %d, want %d", i, got, want)
		}
	}
	noErr(t, m.Set(1, cfg)) // full again
	if got := at(1000, 100); got != green {
		t.Errorf("after Set: color %d", got)
	}
	noErr(t, m.Set(1, MeterConfig{}))
	if got := at(1000, 1000); got != green {
		t.Errorf("taken back: color %d", got)
	}
	if m.has(3) || s.badIndex != 1 {
		t.Errorf("no such cell: %d bad indices", s.badIndex)
	}
	wantErr(t, m.Set(3, cfg), ErrInvalid, "meter meter", "3 cells")
	wantErr(t, m.Set(0, MeterConfig{CIR: 2, PIR: 1, Set: true}), ErrInvalid, "meter meter", "index 0", "peak rate 1")
	wantErr(t, m.Set(0, MeterConfig{PBurst: -1, Set: true}), ErrInvalid, "negative")
	wantErr(t, m.Set(0, MeterConfig{PBurst: 1}), ErrInvalid, "not set")
	_, err := m.Get(-1)
	wantErr(t, err, ErrInvalid, "index -1")
	if m.Len() != 3 || s.Meter("direct_meter").Len() != 0 {
		t.Errorf("lengths %d and %d", m.Len(), s.Meter("direct_meter").Len())
	}

	p := s.Meter("packets")
	noErr(t, p.Set(0, MeterConfig{CBurst: 1, PBurst: 2, Set: true}))
	for i, want := range []int{green, yellow, red} {
		if got := p.mark(0, 0, 1500); got != want {
			t.Errorf("packet %d: color %d, want %d", i, got, want)
		}
	}
}

func BenchmarkMeter(b *testing.B) {
	m := testState(b).Meter("meter")
	noErr(b, m.Set(0, MeterConfig{CIR: 1e9, CBurst: 1e6, PIR: 2e9, PBurst: 1e6, Set: true}))
	b.ReportAllocs()
	var now time.Duration
	for b.Loop() {
		now += 1000
		m.mark(0, now, 1100)
	}
}
