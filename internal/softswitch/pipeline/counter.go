package pipeline

import (
	"fmt"

	"github.com/mcrdma/mcrdma/internal/softswitch/program"
)

// An array is the common part of indexed counters, meters and registers.
type array[Info, Cell any] struct {
	s     *state
	info  *Info
	what  string // kind and name, for errors
	n     int    // cells
	cells []Cell
}

// newArray returns an array of n cells of size Cells each; the array of a direct resource has no
// cells.
func newArray[Info, Cell any](s *state, info *Info, what string, table, n, size int) array[Info, Cell] {
	if table != program.None {
		n = 0
	}
	return array[Info, Cell]{s, info, what, n, make([]Cell, n*size)}
}

// Info returns the declaration.
func (a *array[I, C]) Info() *I { return a.info }

// Len returns the number of cells, 0 for a direct resource.
func (a *array[I, C]) Len() int { return a.n }

// check checks an index from the control plane.
func (a *array[I, C]) check(i int) error {
	if i < 0 || i >= a.n {
		return fmt.Errorf("%s: index %d: %w: it has %d cells", a.what, i, ErrInvalid, a.n)
	}
	return nil
}

// has checks an index from a packet, and counts an index that is out of range.
func (a *array[I, C]) has(i uint64) bool {
	if i >= uint64(a.n) {
		a.s.badIndex++
		return false
	}
	return true
}

// Counts are the values of a counter.
type Counts struct{ Packets, Bytes uint64 }

func (c *Counts) add(bytes int) {
	c.Packets++
	c.Bytes += uint64(bytes)
}

// Counter is an array of counters of packets and bytes.
type Counter struct {
	array[program.Counter, Counts]
}

func newCounter(s *state, info *program.Counter) *Counter {
	return &Counter{newArray[program.Counter, Counts](s, info, "counter "+info.Name, info.Table, info.Size, 1)}
}

// Get returns cell i. Errors: ErrInvalid if there is none.
func (c *Counter) Get(i int) (Counts, error) {
	if err := c.check(i); err != nil {
		return Counts{}, err
	}
	if o := c.s.offload; o != nil {
		o.CounterUsed(c, i)
	}
	return c.cells[i], nil
}

// Set sets cell i. Errors: ErrInvalid if there is none.
func (c *Counter) Set(i int, v Counts) error {
	if err := c.check(i); err != nil {
		return err
	}
	if o := c.s.offload; o != nil {
		o.CounterUsed(c, i)
	}
	c.cells[i] = v
	return nil
}

// add counts a packet in cell i, and does nothing if there is none.
func (c *Counter) add(i uint64, bytes int) {
	if c.has(i) {
		c.cells[i].add(bytes)
	}
}
