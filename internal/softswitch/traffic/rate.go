package traffic

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
)

// ErrInvalid is wrapped by errors about invalid sizes and rates.
var ErrInvalid = errors.New("invalid limits")

// maxRate exceeds the rate of all links, and keeps the arithmetic within 64 bits.
const maxRate = 1e13

// A Rate is a number of packets or bits per second. Bits are those of transmitted frames, without
// preamble, frame check sequence and gap. The zero value means no limit.
type Rate struct {
	PerSecond uint64
	Bits      bool
}

// units are the units of ParseRate, longest first.
var units = []struct {
	name string
	bits bool
	mul  float64
}{
	{"kpps", false, 1e3}, {"mpps", false, 1e6}, {"pps", false, 1},
	{"kbit", true, 1e3}, {"mbit", true, 1e6}, {"gbit", true, 1e9}, {"tbit", true, 1e12}, {"bit", true, 1},
}

// ParseRate parses a rate: a number with one of the units pps, kpps, mpps, bit, kbit, mbit, gbit
// and tbit, or without a unit for packets per second; 0 means no limit. The error wraps ErrInvalid.
func ParseRate(s string) (Rate, error) {
	number, mul, bits := strings.ToLower(s), 1.0, false
	for _, u := range units {
		if n, ok := strings.CutSuffix(number, u.name); ok {
			number, mul, bits = n, u.mul, u.bits
			break
		}
	}
	v, err := strconv.ParseFloat(number, 64)
	if err != nil || v < 0 || math.IsNaN(v) || strings.ContainsAny(number, "xXpPiI_") {
		return Rate{}, fmt.Errorf("traffic: %w: %q is not a rate such as 20000pps, 15kpps, 100mbit or 2.5gbit", ErrInvalid, s)
	}
	switch v = math.Round(v * mul); {
	case v == 0:
		return Rate{}, nil
	case v > maxRate:
		return Rate{}, fmt.Errorf("traffic: %w: a rate of %s is more than %.0f a second", ErrInvalid, s, float64(maxRate))
	}
	return Rate{uint64(v), bits}, nil
}

// String returns the rate in the format of ParseRate.
func (r Rate) String() string {
	if r.PerSecond == 0 {
		return "unlimited"
	}
	best := "pps"
	if r.Bits {
		best = "bit"
	}
	n := r.PerSecond
	for _, u := range units {
		m := uint64(u.mul)
		if u.bits == r.Bits && r.PerSecond%m == 0 && r.PerSecond/m < n {
			best, n = u.name, r.PerSecond/m
		}
	}
	return strconv.FormatUint(n, 10) + best
}

// Check returns an error if the rate is invalid. The error wraps ErrInvalid.
func (r Rate) Check() error {
	if r.PerSecond > maxRate {
		return fmt.Errorf("traffic: %w: a rate of %v; the largest is %d a second", ErrInvalid, r, uint64(maxRate))
	}
	return nil
}
