package pipeline

import (
	"fmt"
	"slices"

	"github.com/mcrdma/mcrdma/internal/softswitch/match"
	"github.com/mcrdma/mcrdma/internal/softswitch/program"
)

// Register is an array of registers.
type Register struct {
	s     *state
	info  *program.Register
	words int      // of a cell
	mask  uint64   // of a cell of one word
	cells []uint64 // flat
}

func newRegister(s *state, info *program.Register) *Register {
	n := match.Words(info.Bits)
	return &Register{s: s, info: info, words: n, mask: lowMask(info.Bits), cells: make([]uint64, info.Size*n)}
}

// lowMask covers the lowest bits of a word, all of it from 64 on.
func lowMask(bits int) uint64 {
	if bits < 64 {
		return 1<<bits - 1
	}
	return ^uint64(0)
}

// Info returns the register's declaration.
func (r *Register) Info() *program.Register { return r.info }

// Len returns the number of cells.
func (r *Register) Len() int { return r.info.Size }

// Get returns a copy of cell i. Errors: ErrInvalid if there is none.
func (r *Register) Get(i int) (match.Value, error) {
	if err := checkIndex("register", r.info.Name, i, r.info.Size); err != nil {
		return nil, err
	}
	return match.Value(slices.Clone(r.cells[i*r.words : (i+1)*r.words])), nil
}

// Set sets cell i. Errors: ErrInvalid if there is none, or v is of another
// width.
func (r *Register) Set(i int, v match.Value) error {
	if err := checkIndex("register", r.info.Name, i, r.info.Size); err != nil {
		return err
	}
	if !v.Fits(r.info.Bits) {
		return fmt.Errorf("register %s: index %d: %w: %v is not %d bits wide", r.info.Name, i, ErrInvalid, v, r.info.Bits)
	}
	copy(r.cells[i*r.words:], v)
	return nil
}

// For packets: registers of up to 64 bits.

// write sets cell i to v cut to its width, and does nothing if there is none.
func (r *Register) write(i, v uint64) {
	if i >= uint64(len(r.cells)) {
		r.s.badIndex++
		return
	}
	r.cells[i] = v & r.mask
}

// For packets: registers of any width.

// readWide returns cell i itself, nil if there is none.
func (r *Register) readWide(i uint64) []uint64 {
	if i >= uint64(r.info.Size) {
		r.s.badIndex++
		return nil
	}
	return r.cells[int(i)*r.words : (int(i)+1)*r.words]
}

// writeWide sets cell i to v, a Value of the register's width, and does nothing
// if there is none.
func (r *Register) writeWide(i uint64, v []uint64) {
	if cell := r.readWide(i); cell != nil {
		copy(cell, v)
	}
}
