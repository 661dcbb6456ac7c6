package pipeline

import (
	"fmt"
	"math/bits"
	"time"

	"github.com/mcrdma/mcrdma/internal/softswitch/program"
)

// MeterConfig configures a meter of two rates and three colors (RFC 2698, color-blind). Rates are
// in packets or bytes per second, bursts in packets or bytes, as declared in the program. The zero
// value is an unconfigured meter, which marks everything green.
type MeterConfig struct {
	CIR, CBurst int64 // committed
	PIR, PBurst int64 // peak; PIR is at least CIR
	Set         bool
}

func (c MeterConfig) check() error {
	switch {
	case !c.Set && c != MeterConfig{}:
		return fmt.Errorf("%w: a meter with rates that is not set", ErrInvalid)
	case min(c.CIR, c.CBurst, c.PIR, c.PBurst) < 0:
		return fmt.Errorf("%w: negative rate or burst in %+v", ErrInvalid, c)
	case c.PIR < c.CIR:
		return fmt.Errorf("%w: the peak rate %d is below the committed rate %d", ErrInvalid, c.PIR, c.CIR)
	}
	return nil
}

// Colors of packets, as v1model numbers them.
const (
	green  = 0
	yellow = 1
	red    = 2
)

// Meter is an array of meters.
type Meter struct {
	array[program.Meter, meterCell]
}

func newMeter(s *state, info *program.Meter) *Meter {
	return &Meter{newArray[program.Meter, meterCell](s, info, "meter "+info.Name, info.Table, info.Size, 1)}
}

// Get returns the configuration of cell i. Errors: ErrInvalid if there is none.
func (m *Meter) Get(i int) (MeterConfig, error) {
	if err := m.check(i); err != nil {
		return MeterConfig{}, err
	}
	return m.cells[i].config(), nil
}

// Set configures cell i and fills its buckets. Errors: ErrInvalid if there is no such cell, or the
// configuration is invalid.
func (m *Meter) Set(i int, c MeterConfig) error {
	if err := m.check(i); err != nil {
		return err
	}
	if err := c.check(); err != nil {
		return fmt.Errorf("%s: index %d: %w", m.what, i, err)
	}
	m.cells[i].configure(c)
	return nil
}

// mark runs cell i, which must exist, and returns the packet's color.
func (m *Meter) mark(i uint64, now time.Duration, bytes int) int {
	if !m.info.Bytes {
		bytes = 1
	}
	return m.cells[i].mark(now, int64(bytes))
}

// meterCell is one meter.
type meterCell struct {
	committed, peak bucket
	last            time.Duration
	set             bool
}

// newCell returns a new meter cell, nil for an unconfigured one.
func newCell(m MeterConfig) *meterCell {
	if !m.Set {
		return nil
	}
	c := new(meterCell)
	c.configure(m)
	return c
}

func (c *meterCell) configure(m MeterConfig) {
	*c = meterCell{
		committed: bucket{rate: m.CIR, burst: m.CBurst, tokens: m.CBurst},
		peak:      bucket{rate: m.PIR, burst: m.PBurst, tokens: m.PBurst},
		set:       m.Set,
	}
}

func (c *meterCell) config() MeterConfig {
	return MeterConfig{CIR: c.committed.rate, CBurst: c.committed.burst, PIR: c.peak.rate, PBurst: c.peak.burst, Set: c.set}
}

// mark implements RFC 2698 §3, color-blind. Time that runs backward adds no tokens.
func (c *meterCell) mark(now time.Duration, n int64) int {
	if !c.set {
		return green
	}
	if now > c.last {
		c.committed.fill(now - c.last)
		c.peak.fill(now - c.last)
		c.last = now
	}
	switch {
	case c.peak.tokens < n:
		return red
	case c.committed.tokens < n:
		c.peak.tokens -= n
		return yellow
	}
	c.peak.tokens -= n
	c.committed.tokens -= n
	return green
}

// bucket is a token bucket. It keeps fractions of a token, so that even slow rates are exact with
// frequent packets.
type bucket struct {
	rate, burst, tokens int64
	part                uint64 // in 1/second of a nanosecond: below 1e9
}

func (b *bucket) fill(d time.Duration) {
	hi, lo := bits.Mul64(uint64(b.rate), uint64(d))
	lo, carry := bits.Add64(lo, b.part, 0)
	hi += carry
	if hi >= uint64(time.Second) {
		b.tokens, b.part = b.burst, 0
		return
	}
	n, part := bits.Div64(hi, lo, uint64(time.Second))
	if n >= uint64(b.burst-b.tokens) {
		b.tokens, b.part = b.burst, 0
		return
	}
	b.tokens += int64(n)
	b.part = part
}
