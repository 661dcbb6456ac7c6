package schedule

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"math/bits"
	"slices"
	"time"
)

// Errors of Choose's arguments.
var (
	// ErrSize: the message is empty, or too large for the largest block.
	ErrSize = errors.New("schedule: impossible message size")
	// ErrHints: a hint is negative.
	ErrHints = errors.New("schedule: impossible hint")
)

// Choose's assumptions without hints: values for 100 Gb/s Ethernet, of the orders of magnitude in
// DSN table 1 and figure 6.
const (
	DefaultBandwidth = 12_500_000_000
	DefaultPerBlock  = 2 * time.Microsecond
	DefaultRelay     = 10 * time.Microsecond
	DefaultMaxBlock  = 1 << 20
)

// Default block sizes of transports, in bytes, if nothing is known about the messages. Over TCP,
// blocks are large enough to make the cost per block negligible, and small enough for relays to
// keep a block in the processor's cache, and for a message of some tens of megabytes to fill the
// pipeline.
const (
	BlockTCP  = 256 << 10
	BlockRDMA = 1 << 20
)

// minBlock is the minimum block size that Choose returns.
const minBlock = 4 << 10

// Choose selects the algorithm and the block size with which a message of size bytes is expected to
// reach all nodes of a group soonest. It selects the chain only if it is much faster than all
// others, because a chain is as slow as its slowest link, unlike the others (DSN §4.5). With racks
// it takes O(n log n) time. Errors wrap ErrSize, ErrNodes, ErrHints or ErrRacks.
func Choose(size int64, nodes int, h Hints) (Plan, error) {
	h, err := h.complete(nodes)
	if err != nil {
		return Plan{}, err
	}
	if size < 1 {
		return Plan{}, fmt.Errorf("%w: %d bytes; a message has 1 at least", ErrSize, size)
	}
	if (size-1)/h.MaxBlock >= MaxBlocks {
		return Plan{}, fmt.Errorf("%w: %d bytes are more than %d blocks of %d bytes; allow larger blocks", ErrSize, size, int64(MaxBlocks), h.MaxBlock)
	}
	algorithms := []Algorithm{BinomialPipeline, Sequential, BinomialTree, Chain}
	if h.Racks != nil && h.Racks.Len() > 1 && h.Racks.most > 1 {
		algorithms = append(algorithms, Hybrid)
	}
	var all []Estimate
	for _, a := range algorithms {
		all = append(all, h.best(a, nodes, size))
	}
	// The sort is stable: among equals the pipeline is first.
	slices.SortStableFunc(all, func(a, b Estimate) int { return cmp.Compare(a.Time, b.Time) })
	chosen := 0
	if all[0].Algorithm == Chain && all[0].Time > all[1].Time/chainGain*(chainGain-1) {
		chosen = 1
	}
	p := Plan{Estimate: all[chosen]}
	p.Others = slices.Delete(all, chosen, chosen+1)
	p.Reasons = h.reasons(p, size, nodes)
	return p, nil
}

// The chain must take less time than all others by at least one part in chainGain.
const chainGain = 4

// complete returns the hints with defaults filled in.
func (h Hints) complete(nodes int) (Hints, error) {
	if nodes < 2 || nodes > MaxNodes {
		return h, fmt.Errorf("%w: %d; a group has 2 to %d", ErrNodes, nodes, MaxNodes)
	}
	for _, x := range []struct {
		name  string
		value int64
	}{
		{"Bandwidth", h.Bandwidth}, {"PerBlock", int64(h.PerBlock)}, {"Relay", int64(h.Relay)}, {"MaxBlock", h.MaxBlock}, {"Uplink", h.Uplink},
	} {
		if x.value < 0 {
			return h, fmt.Errorf("%w: %s is %d; 0 stands for what is not known", ErrHints, x.name, x.value)
		}
	}
	if h.Racks != nil && h.Racks.Nodes() != nodes {
		return h, fmt.Errorf("%w: they hold %d nodes, and the group has %d", ErrRacks, h.Racks.Nodes(), nodes)
	}
	h.Bandwidth = cmp.Or(h.Bandwidth, DefaultBandwidth)
	h.PerBlock = cmp.Or(h.PerBlock, DefaultPerBlock)
	h.Relay = cmp.Or(h.Relay, DefaultRelay)
	h.MaxBlock = cmp.Or(h.MaxBlock, DefaultMaxBlock)
	return h, nil
}

// best returns the estimate of an algorithm with the best block size: the largest, or half of it,
// and so on.
func (h Hints) best(a Algorithm, nodes int, size int64) Estimate {
	var best Estimate
	for block := min(h.MaxBlock, size); ; block /= 2 {
		blocks := (size-1)/block + 1
		if blocks > MaxBlocks {
			return best
		}
		s := Schedule{algorithm: a, nodes: nodes, blocks: blocks}
		if a == Hybrid {
			s.racks = h.Racks
		}
		e := Estimate{Algorithm: a, BlockSize: block, Blocks: blocks, Steps: s.Steps()}
		e.Time = h.time(s, block)
		if best.Blocks == 0 || e.Time < best.Time {
			best = e
		}
		if block/2 < minBlock {
			return best
		}
	}
}

// time estimates how long a schedule takes with blocks of a size, from its steps and how often a
// relay delays the end.
func (h Hints) time(s Schedule, block int64) time.Duration {
	near := plus(h.transfer(block, h.Bandwidth), int64(h.PerBlock))
	step := func(flows int64) int64 { // with that many concurrent blocks into or out of a rack
		if flows == 0 || h.Uplink == 0 {
			return near
		}
		return max(near, plus(h.transfer(times(block, flows), h.Uplink), int64(h.PerBlock)))
	}
	var total, relays int64
	switch s.algorithm {
	case Hybrid:
		// First the steps among leaders, one of each rack, then those in racks.
		leaders, racks := pipelineSteps(s.racks.Len(), s.blocks), pipelineSteps(s.racks.most, s.blocks)
		total = plus(times(step(1), leaders), times(near, racks))
		relays = pipelineRelays(s.racks.Len(), s.blocks) + pipelineRelays(s.racks.most, s.blocks)
		if s.blocks == 1 && s.racks.Len() > 1 && s.racks.most > 1 {
			relays++ // by a leader, which holds the first of several blocks long before
		}
	default:
		crossings := h.crossings(s)
		for _, flows := range crossings {
			total = plus(total, step(flows))
		}
		total = scale(total, s.Steps(), int64(len(crossings)))
		switch s.algorithm {
		case Chain:
			relays = int64(s.nodes) - 2
		case BinomialTree:
			relays = max(int64(bits.Len(uint(s.nodes)))-2, 0)
		case BinomialPipeline:
			relays = pipelineRelays(s.nodes, s.blocks)
		}
	}
	return time.Duration(plus(total, times(int64(h.Relay), relays)))
}

// pipelineRelays returns the maximum number of times that the end of a pipeline is delayed by the
// time of a relay: the first block is relayed in each dimension, and then two steps of three wait
// for the block of the previous step. Simulation gives slightly fewer. With three nodes each block
// is relayed only once.
func pipelineRelays(n int, blocks int64) int64 {
	switch {
	case n <= 2:
		return 0
	case n == 3:
		return 1
	}
	return int64(log2Up(n)) - 1 + 2*(blocks-1)/3
}

// crossings returns, for each step or those of a typical stretch, how many concurrent blocks enter
// or leave the rack with the most. Without slow uplinks it returns none.
func (h Hints) crossings(s Schedule) []int64 {
	if h.Racks == nil || h.Uplink == 0 {
		return []int64{0}
	}
	if s.algorithm == Sequential {
		most := make([]int64, s.nodes-1)
		for i := range most {
			if h.Racks.Rack(i+1) != 0 {
				most[i] = 1
			}
		}
		return most
	}
	s, from, to := h.stretch(s)
	racks := h.Racks.Len()
	most := make([]int64, to-from)
	count := make([]int64, len(most)*2*racks) // for each step, into and out of each rack
	for i := range s.nodes {
		n, _ := s.Node(i) // it exists
		for t, ok := n.NextSend(from - 1); ok && t.Step < to; t, ok = n.NextSend(t.Step) {
			here, there := h.Racks.Rack(i), h.Racks.Rack(t.Peer)
			if here == there {
				continue
			}
			j := int(t.Step - from)
			at := count[j*2*racks : (j+1)*2*racks]
			at[2*here]++
			at[2*there+1]++
			most[j] = max(most[j], at[2*here], at[2*there+1])
		}
	}
	return most
}

// stretch returns a schedule and its steps that represent all of s: every step if that is not much
// work, otherwise some from the middle.
func (h Hints) stretch(s Schedule) (_ Schedule, from, to int64) {
	const much = 1 << 18
	if s.algorithm == BinomialTree { // each block takes the same path
		s.blocks = 1
		return s, 0, s.Steps()
	}
	if steps := s.Steps(); steps*int64(max(s.nodes, 2*h.Racks.Len())) < much {
		return s, 0, steps
	}
	from = s.Steps() / 2
	if s.algorithm == Chain { // changes little from step to step
		return s, from, from + 1
	}
	// The pairs of sender and receiver repeat after twice the number of dimensions.
	return s, from, min(from+2*int64(bits.Len(uint(s.nodes))-1), s.Steps())
}

// transfer returns the transmission time of bytes in nanoseconds.
func (h Hints) transfer(bytes, bandwidth int64) int64 {
	if bandwidth == 0 {
		return 0
	}
	return scale(int64(time.Second), bytes, bandwidth)
}

// plus, times and scale are saturating +, * and a*b/c of nonnegative numbers.
func plus(a, b int64) int64 {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}

func times(a, b int64) int64 { return scale(a, b, 1) }

func scale(a, b, c int64) int64 {
	hi, lo := bits.Mul64(uint64(a), uint64(b))
	if hi >= uint64(c) {
		return math.MaxInt64
	}
	q, _ := bits.Div64(hi, lo, uint64(c))
	return int64(min(q, math.MaxInt64))
}
