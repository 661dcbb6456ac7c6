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
	"strings"
)

// MaxDegree is the largest degree of a tree: a rank of 16 takes messages of the 15 others.
const MaxDegree = 15

// Params are what the paths and the hosts take. All are in microseconds; those that end in Byte are for one byte.
// The names in brackets are the paper's.
type Params struct {
	Message     float64 // one way, from a call of the library to its end at the other rank (2 Ts + 2 Tn + Tm + Td)
	WireByte    float64 // (Tt)
	Combine     float64 // what a receiver takes for each message: two operands, whatever their size (To)
	CombineByte float64 // (To)
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

// Reduce predicts a reduction over the tree, where devices overlap their work for several messages: the paper's best case.
func (p Params) Reduce(ranks, degree, size int) (us float64) {
	n := float64(size)
	for _, senders := range Steps(ranks, degree) {
		us += p.Message + float64(senders)*(n*p.WireByte+p.Combine+n*p.CombineByte)
	}
	return us
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

// Degree returns the degree with which a reduction of so many bytes takes least. Of two that take the same it
// is the lower.
func (p Params) Degree(ranks, size int) (best int) {
	least := math.Inf(1)
	for _, k := range Degrees(ranks) {
		if t := p.Reduce(ranks, k, size); t < least {
			best, least = k, t
		}
	}
	return best
}

// Explain says what the model predicts for each degree, with a line for each size, of which 0 is a barrier's, and which is used: the one that is
// set, or, if that is 0, chosen.
func (p Params) Explain(ranks, set int, sizes ...int) string {
	var b strings.Builder
	fmt.Fprintf(&b, "a message: %.1f µs and %.4f µs a byte; combining: %.1f µs and %.4f µs a byte\n", p.Message, p.WireByte, p.Combine, p.CombineByte)
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
			fmt.Fprintf(&b, " degree %d %.1f µs,", k, p.Reduce(ranks, k, size))
		}
		if set != 0 {
			fmt.Fprintf(&b, " set: %d\n", set)
		} else {
			fmt.Fprintf(&b, " chosen: %d\n", p.Degree(ranks, size))
		}
	}
	return b.String()
}
