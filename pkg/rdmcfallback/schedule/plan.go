package schedule

import (
	"fmt"
	"math"
	"strings"
	"time"
)

// Hints describes hosts and network to Choose. All members of a group with the same hints get the
// same plan, on any machine, because it is computed with integers. A zero field means the default
// or unknown.
type Hints struct {
	// Bandwidth is that of each host's link, in bytes per second in each direction.
	Bandwidth int64
	// PerBlock is the overhead of a block in addition to the time of its bytes: announcing a
	// buffer, posting, completion.
	PerBlock time.Duration
	// Relay is the time from a block's arrival at a host to the start of its sending.
	Relay time.Duration
	// MaxBlock is the largest block, in bytes.
	MaxBlock int64
	// Racks says which nodes share a switch, or is nil.
	Racks *Racks
	// Uplink is the bandwidth between each rack and the others, in bytes per second in each
	// direction; 0 if racks are as close to each other as nodes in one.
	Uplink int64
}

// An Estimate is the expected performance of an algorithm, with its best block size.
type Estimate struct {
	Algorithm Algorithm
	BlockSize int64 // in bytes; the last block of a message may be shorter
	Blocks    int64
	Steps     int64
	Time      time.Duration
}

// A Plan is the choice of Choose, with reasons.
type Plan struct {
	Estimate
	// Others are the other algorithms, fastest first.
	Others []Estimate
	// Reasons are sentences for users.
	Reasons []string
}

// String returns the plan and its reasons, one per line.
func (p Plan) String() string {
	return fmt.Sprintf("%v\n%s", p.Estimate, strings.Join(p.Reasons, "\n"))
}

// String returns the estimate in one line.
func (e Estimate) String() string {
	return fmt.Sprintf("%v: blocks of %s, %d of them, %d steps, about %v", e.Algorithm, inBytes(e.BlockSize), e.Blocks, e.Steps, e.Time)
}

// inBytes formats a number of bytes with a unit and up to one decimal.
func inBytes(n int64) string {
	for i, unit := range []string{"TiB", "GiB", "MiB", "KiB"} {
		if size := int64(1) << (40 - 10*i); n >= size {
			if n%size == 0 {
				return fmt.Sprintf("%d %s", n/size, unit)
			}
			return fmt.Sprintf("%.1f %s", float64(n)/float64(size), unit)
		}
	}
	return fmt.Sprintf("%d B", n)
}

// inBits formats bytes per second as bits per second.
func inBits(n int64) string {
	bits := 8 * float64(n)
	for i, unit := range []string{"Tb/s", "Gb/s", "Mb/s", "kb/s"} {
		if size := math.Pow10(12 - 3*i); bits >= size {
			return fmt.Sprintf("%.4g %s", bits/size, unit)
		}
	}
	return fmt.Sprintf("%.0f b/s", bits)
}
