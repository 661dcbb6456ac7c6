package pipeline

import (
	"fmt"

	"github.com/mcrdma/mcrdma/internal/softswitch/program"
)

// Counts are what a counter has counted.
type Counts struct{ Packets, Bytes uint64 }

func (c *Counts) add(bytes int) {
	c.Packets++
	c.Bytes += uint64(bytes)
}

// Counter is an array of counters of packets and bytes.
type Counter struct {
	s     *state
	info  *program.Counter
	cells []Counts
}

func newCounter(s *state, info *program.Counter) *Counter {
	c := &Counter{s: s, info: info}
	if info.Table == program.None {
		c.cells = make([]Counts, info.Size)
	}
	return c
}

// Info returns the counter's declaration.
func (c *Counter) Info() *program.Counter { return c.info }

// Len returns the number of cells, 0 for a direct counter.
func (c *Counter) Len() int { return len(c.cells) }

// Get returns cell i. Errors: ErrInvalid if there is none.
func (c *Counter) Get(i int) (Counts, error) {
	if err := checkIndex("counter", c.info.Name, i, len(c.cells)); err != nil {
		return Counts{}, err
	}
	return c.cells[i], nil
}

// Set sets cell i. Errors: ErrInvalid if there is none.
func (c *Counter) Set(i int, v Counts) error {
	if err := checkIndex("counter", c.info.Name, i, len(c.cells)); err != nil {
		return err
	}
	c.cells[i] = v
	return nil
}

// add counts a packet in cell i, and does nothing if there is none.
func (c *Counter) add(i uint64, bytes int) {
	if i >= uint64(len(c.cells)) {
		c.s.badIndex++
		return
	}
	c.cells[i].add(bytes)
}

// checkIndex refuses an index from the control plane.
func checkIndex(what, name string, i, n int) error {
	if i < 0 || i >= n {
		return fmt.Errorf("%s %s: index %d: %w: it has %d cells", what, name, i, ErrInvalid, n)
	}
	return nil
}
