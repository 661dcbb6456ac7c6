package pipeline

import (
	"encoding/binary"
	"slices"
)

// Registers is a copy of what a pipeline's registers hold, and of the state of its
// random generator: all that one packet can leave to the next, apart from counts
// and meters. A model checker saves it, sends packets through, and goes back. The
// cost is in proportion to the cells that are not 0.
type Registers struct {
	cells []savedCell // in ascending order
	words []uint64    // their values, one after the other
	rng   rng
}

type savedCell struct{ register, index int32 }

// marks tell the cells of a register that may hold something else than 0.
type marks struct {
	seen []uint64 // a bit for each cell
	list []int32
}

// mark notes that a cell was written.
func (r *Register) mark(i uint64) {
	if m := r.marks; m != nil && m.seen[i/64]>>(i%64)&1 == 0 {
		m.seen[i/64] |= 1 << (i % 64)
		m.list = append(m.list, int32(i))
	}
}

// track begins to mark cells.
func (r *Register) track() {
	r.marks = &marks{seen: make([]uint64, (r.info.Size+63)/64)}
	for i, w := range r.cells {
		if w != 0 {
			r.mark(uint64(i / r.words))
		}
	}
}

// cell returns a cell's words.
func (r *Register) cell(i int32) []uint64 { return r.cells[int(i)*r.words : (int(i)+1)*r.words] }

// SaveRegisters copies the registers, and the state of random(), to s. The first
// call looks through all of them.
func (p *Pipeline) SaveRegisters(s *Registers) {
	s.cells, s.words, s.rng = s.cells[:0], s.words[:0], p.rng
	for n, r := range p.registers {
		if r.marks == nil {
			r.track()
		}
		slices.Sort(r.marks.list)
		for _, i := range r.marks.list {
			if v := r.cell(i); slices.Max(v) != 0 {
				s.cells = append(s.cells, savedCell{int32(n), i})
				s.words = append(s.words, v...)
			}
		}
	}
}

// RestoreRegisters puts back what SaveRegisters of a pipeline with the same program
// saved. The zero Registers empties them.
func (p *Pipeline) RestoreRegisters(s *Registers) {
	for _, r := range p.registers {
		if r.marks == nil {
			r.track()
		}
		for _, i := range r.marks.list {
			clear(r.cell(i))
			r.marks.seen[i/64] &^= 1 << (i % 64)
		}
		r.marks.list = r.marks.list[:0]
	}
	words := s.words
	for _, c := range s.cells {
		r := p.registers[c.register]
		r.mark(uint64(c.index))
		words = words[copy(r.cell(c.index), words):]
	}
	p.rng = s.rng
}

// Equal reports whether two copies hold the same.
func (s *Registers) Equal(t *Registers) bool {
	return s.rng == t.rng && slices.Equal(s.cells, t.cells) && slices.Equal(s.words, t.words)
}

// AppendKey appends bytes that are the same for equal copies of one program's
// registers, and for no others.
func (s *Registers) AppendKey(b []byte) []byte {
	b = binary.LittleEndian.AppendUint64(b, uint64(s.rng))
	b = binary.LittleEndian.AppendUint32(b, uint32(len(s.cells)))
	for _, c := range s.cells {
		b = binary.LittleEndian.AppendUint32(b, uint32(c.register))
		b = binary.LittleEndian.AppendUint32(b, uint32(c.index))
	}
	for _, w := range s.words {
		b = binary.LittleEndian.AppendUint64(b, w)
	}
	return b
}
