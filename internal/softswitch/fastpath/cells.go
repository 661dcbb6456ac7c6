package fastpath

import (
	"github.com/mcrdma/mcrdma/bpf"
	"github.com/mcrdma/mcrdma/internal/softswitch/pipeline"
)

// cells are the kernel's counter cells of entries that have a counter.
type cells struct {
	read func(table string, number uint32) bpf.Count
	of   map[*pipeline.Entry]*cell
	gone map[*pipeline.Entry]struct{} // deleted since the last change of the maps
	free []uint32                     // first in, first out, because packets in flight still count in a freed cell
	next uint32                       // first unused cell
}

// A cell is a cell of a map, with the part of its count that the entry already has.
type cell struct {
	table  string
	number uint32
	seen   bpf.Count
}

func newCells(read func(table string, number uint32) bpf.Count) *cells {
	return &cells{read: read, of: map[*pipeline.Entry]*cell{}, gone: map[*pipeline.Entry]struct{}{}, next: 1} // 0 means no entry
}

// number returns an entry's cell of map counters, and false if none is free.
func (c *cells) number(e *pipeline.Entry) (uint32, bool) {
	if at := c.of[e]; at != nil {
		return at.number, true
	}
	n := c.next
	switch {
	case c.next < counterCells:
		c.next++
	case len(c.free) > 0:
		n, c.free = c.free[0], c.free[1:]
	default:
		return 0, false
	}
	c.take(e, "counters", n)
	return n, true
}

// take assigns a cell to an entry.
func (c *cells) take(e *pipeline.Entry, table string, number uint32) {
	if c.of[e] == nil {
		c.of[e] = &cell{table, number, c.read(table, number)}
	}
}

// count updates an entry's counter from the kernel's.
func (c *cells) count(e *pipeline.Entry) {
	at := c.of[e]
	if at == nil {
		return
	}
	now := c.read(at.table, at.number)
	e.Add(pipeline.Counts{Packets: now.Packets - at.seen.Packets, Bytes: now.Bytes - at.seen.Bytes})
	at.seen = now
}

// changed records that an entry exists, or is gone.
func (c *cells) changed(e *pipeline.Entry, gone bool) {
	if gone {
		c.gone[e] = struct{}{}
	} else {
		delete(c.gone, e)
	}
}

// sweep frees the cells of deleted entries, in which no packet counts any more.
func (c *cells) sweep() {
	for e := range c.gone {
		c.count(e)
		if at := c.of[e]; at != nil && at.table == "counters" {
			c.free = append(c.free, at.number)
		}
		delete(c.of, e)
	}
	clear(c.gone)
}
