// Package model predicts the time of collective operations, as Gupta, Balaji, Panda and Nieplocha
// do in "Efficient Collective Operations using Remote Memory Operations on VIA-Based Clusters"
// (IPDPS 2003), and by that chooses the degree of the tree that reduces small messages.
//
// In a tree of degree k = 2^j-1 a node receives at most k messages in a step, and there are
// ceil(log N / j) steps: a higher degree means fewer steps with more messages in each. The best k
// depends on the cost of a message relative to that of a combination, and so on the path and the
// size.
//
// The package is pure.
package model

import (
	"fmt"
	"math"
	"math/bits"
	"strings"
	"time"
)

// MaxDegree is the largest degree of a tree: a rank of 16 takes messages of the 15 others.
const MaxDegree = 15

// Params are what the paths and the hosts take. All are in microseconds; those that end in Byte are for one byte.
// The names in brackets are the paper's.
type Params struct {
	Library float64 // of a call of the library (Tm)
	Post    float64 // to post a request (Td)
	DMA     float64 // to begin a transfer between a host and its device (Ts), at each end
	NIC     float64 // a device's work for a message (Tn), at each end
	Ack     float64 // of an acknowledgment, for each block of a broadcast (Ta)

	WireByte float64 // (Tt)
	CopyByte float64 // between the caller's memory and registered memory (Tc)

	Combine     float64 // two operands, whatever their size (To)
	CombineByte float64 // (To)
}

// Paper returns the paper's parameters: GigaNet cLAN, 1 GHz Pentium III, MPI_SUM of 4 byte integers. It has all but To and
// Ta in its text. A Combine of 2.2 to 2.9 µs is what its choices of degrees imply; CombineByte is two cycles for an integer.
func Paper() Params {
	return Params{Library: 1.3, Post: 0.6, DMA: 2, NIC: 1.52, WireByte: 0.010, CopyByte: 0.0027, Combine: 2.5, CombineByte: 0.0005}
}

// message is what one message takes besides its bytes.
func (p Params) message() float64 { return 2*(p.DMA+p.NIC) + p.Library + p.Post }

// A Span is the least and the most that something takes, in microseconds. The most is where the message that is needed
// first comes last, and where devices do not overlap their work for several messages.
type Span struct{ Best, Worst float64 }

// Mean returns what lies between.
func (s Span) Mean() float64 { return (s.Best + s.Worst) / 2 }

// String returns the span in microseconds; if both are the same, one of them.
func (s Span) String() string {
	best, worst := fmt.Sprintf("%.1f", s.Best), fmt.Sprintf("%.1f", s.Worst)
	if best == worst {
		return best + " µs"
	}
	return best + " to " + worst + " µs"
}

// step is a step in which a rank takes messages of so many senders and combines them with what it has.
func (p Params) step(senders, size int) Span {
	s, n := float64(senders), float64(size)
	combine := s * (p.Combine + n*p.CombineByte)
	best := p.message() + s*n*p.WireByte + combine
	return Span{best, best + (s-1)*(p.DMA+p.NIC)}
}

// Steps returns how many messages the first rank takes in each step of a reduction over so many ranks in a tree of a
// degree. The last step has fewer if the tree is not full.
func Steps(ranks, degree int) (senders []int) {
	width := degree + 1
	for left := ranks; left > 1; left = (left + width - 1) / width {
		senders = append(senders, min(left, width)-1)
	}
	return senders
}

// Reduce predicts a reduction over the tree.
func (p Params) Reduce(ranks, degree, size int) (t Span) {
	for _, senders := range Steps(ranks, degree) {
		s := p.step(senders, size)
		t.Best += s.Best
		t.Worst += s.Worst
	}
	return t
}

// Broadcast predicts a broadcast in so many hops, in blocks of so many bytes: log N hops in a binomial tree, and one where
// switches copy.
func (p Params) Broadcast(hops, size, block int) float64 {
	blocks := float64(max(1, (size+block-1)/block))
	n := float64(size)
	hop := p.message() + blocks*p.Ack + n*p.WireByte
	return float64(hops)*hop + 2*n*p.CopyByte
}

// Hops returns how many hops a binomial tree has.
func Hops(ranks int) int { return bits.Len(uint(max(ranks, 1) - 1)) }

// Allreduce predicts a reduction over the tree, and a broadcast of the result in so many hops.
func (p Params) Allreduce(ranks, degree, size, hops int) Span {
	t := p.Reduce(ranks, degree, size)
	b := p.Broadcast(hops, size, max(size, 1))
	return Span{t.Best + b, t.Worst + b}
}

// Degrees returns the degrees that trees over so many ranks may have: 1, 3, 7 and 15, up to the first that takes a single step.
func Degrees(ranks int) (list []int) {
	for k := 1; k <= MaxDegree; k = 2*k + 1 {
		list = append(list, k)
		if k >= ranks-1 {
			break
		}
	}
	return list
}

// Degree returns the degree with which a reduction of so many bytes takes least in the best case, as the paper chooses. Of
// two that take the same it is the lower.
func (p Params) Degree(ranks, size int) (best int) {
	least := math.Inf(1)
	for _, k := range Degrees(ranks) {
		if t := p.Reduce(ranks, k, size).Best; t < least {
			best, least = k, t
		}
	}
	return best
}

// Measured returns the parameters of a path of which is known: how long one empty message takes one way, how much
// later each further one of several comes, which a receiver takes for each message as for each combination, and how long
// a byte takes on the wire and to be combined.
func Measured(oneWay, gap time.Duration, wireByte, combineByte float64) Params {
	us := func(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }
	return Params{Library: us(oneWay), Combine: us(gap), WireByte: wireByte, CombineByte: combineByte}
}

// Explain says what the model predicts for each degree, with a line for each size, of which 0 is a barrier's, and which is used: the one that is
// set, or, if that is 0, chosen.
func (p Params) Explain(ranks, set int, sizes ...int) string {
	var b strings.Builder
	fmt.Fprintf(&b, "a message: %.1f µs and %.4f µs a byte; combining: %.1f µs and %.4f µs a byte\n", p.message(), p.WireByte, p.Combine, p.CombineByte)
	for _, size := range sizes {
		what := fmt.Sprintf("%d bytes", size)
		if size == 0 {
			what = "a barrier"
		}
		if ranks == 1 {
			fmt.Fprintf(&b, "%s, 1 rank: nothing is sent\n", what)
			continue
		}
		fmt.Fprintf(&b, "%s, %d ranks:", what, ranks)
		for _, k := range Degrees(ranks) {
			fmt.Fprintf(&b, " degree %d %v,", k, p.Reduce(ranks, k, size))
		}
		if set != 0 {
			fmt.Fprintf(&b, " set: %d\n", set)
		} else {
			fmt.Fprintf(&b, " chosen: %d\n", p.Degree(ranks, size))
		}
	}
	return b.String()
}
