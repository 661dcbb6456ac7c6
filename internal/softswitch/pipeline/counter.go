package pipeline

import (
	"fmt"

	"github.com/mcrdma/mcrdma/internal/softswitch/program"
)

// Counter is an array of counters of packets and bytes.
type Counter struct {
	s     *state
	info  *program.Counter
	cells []counts
}

type counts struct{ packets, bytes uint64 }

func newCounter(s *state, info *program.Counter) *Counter {
	c := &Counter{s: s, info: info}
	if info.Table == program.None {
		c.cells = make([]counts, info.Size)
	}
	return c
}

// Info returns the counter's declaration.
func (c *Counter) Info() *program.Counter { return c.info }

// Len returns the number of cells, 0 for a direct counter.
func (c *Counter) Len() int { return len(c.cells) }

// Get returns cell i. Errors: ErrInvalid if there is none.
func (c *Counter) Get(i int) (packets, bytes uint64, err error) {
	if err := checkIndex("counter", c.info.Name, i, len(c.cells)); err != nil {
		return 0, 0, err
	}
	return c.cells[i].packets, c.cells[i].bytes, nil
}

// Set sets cell i. Errors: ErrInvalid if there is none.
func (c *Counter) Set(i int, packets, bytes uint64) error {
	if err := checkIndex("counter", c.info.Name, i, len(c.cells)); err != nil {
		return err
	}
	c.cells[i] = counts{packets, bytes}
	return nil
}

// add counts a packet in cell i, and does nothing if there is none.
func (c *Counter) add(i uint64, bytes int) {
	if i >= uint64(len(c.cells)) {
		c.s.badIndex++
		return
	}
	c.cells[i].packets++
	c.cells[i].bytes += uint64(bytes)
}

// checkIndex refuses an index from the control plane.
func checkIndex(what, name string, i, n int) error {
	if i < 0 || i >= n {
		return fmt.Errorf("%s %s: index %d: %w: it has %d cells", what, name, i, ErrInvalid, n)
	}
	return nil
}
