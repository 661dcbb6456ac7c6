package replica

import (
	"cmp"
	"context"
	"slices"

	"github.com/mcrdma/mcrdma/pkg/replica/store"
	"github.com/mcrdma/mcrdma/pkg/replica/wal"
)

// An Extent is a part of a volume; it follows the extent before it.
type Extent struct {
	Length int64 // bytes
	Hole   bool  // it takes no space
	Zero   bool  // it reads as zeros
}

// extents describes a range by what the store has, and what entries of the log do over it.
func (l *loop) extents(ctx context.Context, off, n int64, limit int) (out []Extent, err error) {
	for {
		var r reading
		if err := l.begin(ctx, &r); err != nil {
			return nil, err
		}
		e := extents{at: off, limit: limit}
		var list []store.Extent
		for x, err := range l.disk.store.Extents(off, n) {
			if err != nil {
				return nil, l.unreadable("the store", err)
			}
			if list = append(list, x); len(list) > limit {
				break // what follows is left out
			}
		}
		ok, err := l.end(ctx, &r, func(index uint64) bool {
			parts, ok := l.content.parts(span{off, off + n}, r.shown, index)
			e.merge(list, parts, func(i uint64) wal.Kind { return l.content.at(i).Kind })
			return ok
		})
		if ok || err != nil {
			return e.out, err
		}
	}
}

// extents are built from left to right.
type extents struct {
	at    int64
	limit int
	full  bool
	out   []Extent
}

func (x *extents) add(end int64, hole, zero bool) {
	n := len(x.out)
	switch {
	case end <= x.at || x.full:
		return
	case n > 0 && x.out[n-1].Hole == hole && x.out[n-1].Zero == zero:
		x.out[n-1].Length += end - x.at
	case n == x.limit:
		x.full = true
		return
	default:
		x.out = append(x.out, Extent{end - x.at, hole, zero})
	}
	x.at = end
}

// merge puts parts of entries over the extents of a store.
func (x *extents) merge(list []store.Extent, parts []part, kind func(index uint64) wal.Kind) {
	slices.SortFunc(parts, func(a, b part) int { return cmp.Compare(a.off, b.off) })
	for _, e := range list {
		end := e.Offset + e.Length
		for len(parts) > 0 && parts[0].off < end && x.at < end {
			p := parts[0]
			x.add(p.off, e.Hole, e.Hole)
			k := kind(p.index)
			x.add(min(p.end, end), k == wal.Trim, k != wal.Data)
			if p.end > end {
				break // it goes on in the next
			}
			parts = parts[1:]
		}
		x.add(end, e.Hole, e.Hole)
	}
}
