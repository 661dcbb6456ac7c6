// Package workload generates the load of replicated storage on a simulated fabric: clients write to
// and read from hosts that replicate.
package workload

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"

	"github.com/mcrdma/mcrdma/pkg/qp"
)

// ErrSizes is what errors about distributions wrap.
var ErrSizes = errors.New("invalid distribution of sizes")

// Sizes is a distribution of messages' sizes.
type Sizes struct {
	Name   string
	points []point // by ascending bytes
}

// A point says which share of the messages has at most so many bytes.
type point struct{ bytes, share float64 }

// Known are distributions that papers on data centers use: of web search (Alizadeh et al., DCTCP, SIGCOMM 2010) and of Alibaba's
// storage (Li et al., HPCC, SIGCOMM 2019), with the points that HPCC's simulator has.
func Known() []Sizes {
	list := []Sizes{
		{"websearch", []point{{10e3, 15}, {20e3, 20}, {30e3, 30}, {50e3, 40}, {80e3, 53}, {200e3, 60}, {1e6, 70}, {2e6, 80}, {5e6, 90}, {10e6, 97}, {30e6, 100}}},
		{"alistorage", []point{{4e3, 22.93}, {8e3, 69.21}, {16e3, 80.61}, {32e3, 90.47}, {64e3, 93.53}, {128e3, 96.77}, {256e3, 97.53}, {2e6, 100}}},
	}
	for _, s := range list {
		for i := range s.points {
			s.points[i].share /= 100
		}
	}
	return list
}

// Fixed are messages of one size.
func Fixed(n int) Sizes { return Sizes{strconv.Itoa(n), []point{{float64(n), 0}, {float64(n), 1}}} }

// ParseSizes reads a distribution: a line for each point, of bytes and the percentage of messages that have at most so many, both ascending, the
// last 100. Empty lines and what follows # do not count. Errors wrap ErrSizes.
func ParseSizes(r io.Reader, name string) (Sizes, error) {
	s := Sizes{Name: name}
	lines := bufio.NewScanner(r)
	for n := 1; lines.Scan(); n++ {
		text, _, _ := strings.Cut(lines.Text(), "#")
		fields := strings.Fields(text)
		if len(fields) == 0 {
			continue
		}
		bad := func(format string, args ...any) (Sizes, error) {
			return s, fmt.Errorf("%w: %s:%d: %s", ErrSizes, name, n, fmt.Sprintf(format, args...))
		}
		if len(fields) != 2 {
			return bad("%d fields; want bytes and a percentage, as 4096 30", len(fields))
		}
		b, err := strconv.ParseFloat(fields[0], 64)
		if err != nil || !(b >= 0 && b <= qp.MaxMessage) {
			return bad("%q bytes; want a number up to %d", fields[0], qp.MaxMessage)
		}
		p, err := strconv.ParseFloat(fields[1], 64)
		if err != nil || !(p >= 0 && p <= 100) {
			return bad("%q percent; want a number from 0 to 100", fields[1])
		}
		if last := len(s.points) - 1; last >= 0 && (b < s.points[last].bytes || p/100 < s.points[last].share) {
			return bad("%s bytes with %s %% after %g with %g %%: both ascend", fields[0], fields[1], s.points[last].bytes, 100*s.points[last].share)
		}
		s.points = append(s.points, point{b, p / 100})
	}
	switch last := len(s.points) - 1; {
	case lines.Err() != nil:
		return s, fmt.Errorf("%w: %s: %w", ErrSizes, name, lines.Err())
	case last < 0:
		return s, fmt.Errorf("%w: %s: there is no point; want lines of bytes and a percentage, as 4096 30", ErrSizes, name)
	case s.points[last].share != 1:
		return s, fmt.Errorf("%w: %s: the last point is %g bytes with %g %%; want 100 %%, since no message is larger", ErrSizes, name, s.points[last].bytes, 100*s.points[last].share)
	}
	return s, nil
}

// Mean is that of the sizes, in bytes: between two points they are spread evenly.
func (s *Sizes) Mean() float64 {
	sum, at := 0.0, point{}
	for _, p := range s.points {
		sum += (p.share - at.share) * (p.bytes + at.bytes) / 2
		at = p
	}
	return sum
}

// draw is the size of a message, one byte at least.
func (s *Sizes) draw(rng *rand.Rand) int {
	u := rng.Float64()
	i, _ := slices.BinarySearchFunc(s.points, u, func(p point, u float64) int {
		if p.share <= u {
			return -1
		}
		return 1
	})
	i = min(i, len(s.points)-1)
	var from point
	if i > 0 {
		from = s.points[i-1]
	}
	to := s.points[i]
	return max(1, int(from.bytes+(to.bytes-from.bytes)*(u-from.share)/(to.share-from.share)))
}
