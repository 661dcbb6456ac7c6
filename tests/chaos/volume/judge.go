package volume

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/mcrdma/mcrdma/pkg/replica/core"
)

// A Life is an mcblock process of a host, from start to end, in Unix times in ns; End 0: it runs.
type Life struct {
	Host       core.ID
	Start, End int64
}

// Ended returns when a member's life has ended; 0: it has not. Its incarnation is its start time,
// or later.
func Ended(lives []Life, m core.Member) (end int64) {
	for _, l := range lives {
		if l.Host == m.ID && uint64(l.Start) <= m.Incarnation { //nolint:gosec // positive
			end = l.End
		}
	}
	return end
}

// Losses are the moments at which no member of the acting set was left: unflushed data may be lost.
// They show in a map without any member of the previous one. If one of those lived on, that is a
// violation.
func Losses(maps []core.Map, lives []Life) (at []int64, bad []string) {
	for i := 1; i < len(maps); i++ {
		was, is := &maps[i-1], &maps[i]
		if was.Acting[0].Incarnation == 0 || slices.ContainsFunc(was.Acting, is.Acts) {
			continue
		}
		last := int64(0)
		for _, m := range was.Acting {
			end := Ended(lives, m)
			if last = max(last, end); end == 0 {
				bad = append(bad, fmt.Sprintf("revived: epoch %d has none of the acting set of epoch %d, of which member %v has not ended", is.Epoch, was.Epoch, m))
			}
		}
		at = append(at, last)
	}
	return at, bad
}

// Check returns the promises that a history breaks, of a volume that had lost all memory at some
// times. Between these each block is a register; after one it has its last flushed content, or a
// later one.
func Check(ops []Op, losses []int64) (bad []string) {
	slices.SortFunc(ops, func(a, b Op) int { return cmp.Compare(a.Call, b.Call) })
	blocks, flushes := map[int][]Op{}, []Op(nil)
	for _, o := range ops {
		switch {
		case o.Kind != Flush:
			blocks[o.Block] = append(blocks[o.Block], o)
		case o.Return != Never:
			flushes = append(flushes, o)
		}
	}
	for b, list := range blocks {
		if text := checkBlock(list, flushes, losses); text != "" {
			bad = append(bad, fmt.Sprintf("block %d: %s", b, text))
		}
	}
	slices.Sort(bad)
	return bad
}

// undecided is the time limit of the search for an order of a block's operations.
const undecided = 30 * time.Second

// checkBlock checks the periods between losses, with the values that the block may have had at the
// beginning of each.
func checkBlock(ops, flushes []Op, losses []int64) string {
	begins := []uint64{0}
	for i, from := range append([]int64{0}, losses...) {
		to := int64(Never)
		if i < len(losses) {
			to = losses[i]
		}
		part := during(ops, from, to)
		var possible []uint64
		for _, v := range begins {
			switch porcupine.CheckOperationsTimeout(register(v, part), operations(part, from), undecided) {
			case porcupine.Ok:
				possible = append(possible, v)
			case porcupine.Unknown:
				return fmt.Sprintf("undecided after %v", undecided)
			}
		}
		if len(possible) == 0 {
			return fmt.Sprintf("no order of its operations explains what was read, from %d on, having begun with one of %v: %v", from, begins, part)
		}
		begins = survivors(part, flushes, possible, to)
	}
	return ""
}

// during returns the operations of a period. An operation in flight at its end may or may not have
// taken effect in it, and a write also in the next one.
func during(ops []Op, from, to int64) (list []Op) {
	for _, o := range ops {
		begun := o.Call >= from && o.Call < to
		over := o.Kind == Write && o.Call < from && o.Return > from // it may have been sent again
		if !begun && !over {
			continue
		}
		if o.Return > to || over {
			if o.Kind == Read {
				continue
			}
			o.Return = Never
		}
		list = append(list, o)
	}
	return list
}

// survivors returns the values that a block may have after a loss: that of any write except those
// overwritten by a flushed one.
func survivors(part, flushes []Op, begins []uint64, loss int64) (values []uint64) {
	durable := func(w Op) bool {
		return w.Return != Never && (w.FUA || slices.ContainsFunc(flushes, func(f Op) bool { return f.Call >= w.Return && f.Return <= loss }))
	}
	anything := true // also the value at the beginning
	for _, w := range part {
		if w.Kind != Write {
			continue
		}
		if durable(w) {
			anything = false
		}
		if !slices.ContainsFunc(part, func(x Op) bool { return x.Kind == Write && x.Call >= w.Return && durable(x) }) {
			values = append(values, w.Value)
		}
	}
	if anything {
		values = append(values, begins...)
	}
	return values
}

// register returns a block with an initial value, and the operations of a period. Each value is
// written once, unless the block had it initially, so it is not overwritten before all its reads:
// that makes the search for an order short.
func register(begin uint64, part []Op) porcupine.Model {
	type state struct {
		value uint64
		reads int // that are still to be ordered
	}
	reads := map[uint64]int{}
	for _, o := range part {
		if o.Kind == Read && o.Value != begin {
			reads[o.Value]++
		}
	}
	return porcupine.Model{
		Init: func() any { return state{value: begin} },
		Step: func(was, input, output any) (bool, any) {
			s, o := was.(state), input.(Op)
			if o.Kind == Write {
				return s.reads == 0, state{o.Value, reads[o.Value]}
			}
			return output.(uint64) == s.value, state{s.value, max(s.reads-1, 0)}
		},
	}
}

// operations returns the operations to order: a write that has not returned, and that no request
// has read, may come last.
func operations(ops []Op, from int64) (list []porcupine.Operation) {
	read := map[uint64]bool{}
	for _, o := range ops {
		read[o.Value] = read[o.Value] || o.Kind == Read
	}
	for i, o := range ops {
		if o.Kind == Read || o.Return != Never || read[o.Value] {
			list = append(list, porcupine.Operation{ClientId: i, Input: o, Call: max(o.Call, from), Output: o.Value, Return: o.Return})
		}
	}
	return list
}
