package pipeline

import (
	"fmt"
	"slices"

	"github.com/mcrdma/mcrdma/internal/softswitch/match"
	"github.com/mcrdma/mcrdma/internal/softswitch/program"
)

// Register is an array of registers.
type Register struct {
	array[program.Register, uint64]
	words int    // of a cell
	mask  uint64 // of a cell of one word
}

func newRegister(s *state, info *program.Register) *Register {
	n := match.Words(info.Bits)
	return &Register{newArray[program.Register, uint64](s, info, "register "+info.Name, program.None, info.Size, n), n, maskOf(info.Bits)}
}

// Get returns a copy of cell i. Errors: ErrInvalid if there is none.
func (r *Register) Get(i int) (match.Value, error) {
	if err := r.check(i); err != nil {
		return nil, err
	}
	if o := r.s.offload; o != nil {
		o.RegisterUsed(r, i)
	}
	return match.Value(slices.Clone(r.cells[i*r.words : (i+1)*r.words])), nil
}

// Set sets cell i. Errors: ErrInvalid if there is none, or v is of another
// width.
func (r *Register) Set(i int, v match.Value) error {
	if err := r.check(i); err != nil {
		return err
	}
	if !v.Fits(r.info.Bits) {
		return fmt.Errorf("%s: index %d: %w: %v is not %d bits wide", r.what, i, ErrInvalid, v, r.info.Bits)
	}
	o := r.s.offload
	if o != nil {
		o.RegisterUsed(r, i)
	}
	copy(r.cells[i*r.words:], v)
	if o != nil {
		o.RegisterSet(r, i)
	}
	return nil
}

// write sets cell i, of up to 64 bits, to v truncated to its width. It does nothing if there is no
// such cell.
func (r *Register) write(i, v uint64) {
	if r.has(i) {
		r.cells[i] = v & r.mask
	}
}

// wide returns cell i itself, of any width; nil if there is none.
func (r *Register) wide(i uint64) []uint64 {
	if !r.has(i) {
		return nil
	}
	return r.cells[int(i)*r.words : (int(i)+1)*r.words]
}
