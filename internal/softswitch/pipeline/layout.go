package pipeline

import (
	"github.com/mcrdma/mcrdma/internal/softswitch/program"
)

// A layout maps a packet's header fields to its words.
//
// Word 0 is always 1; it is the validity of metadata. It is followed by the validities of the
// headers, the numbers of valid elements of the stacks, the metadata, and the headers' fields. A
// fixed-width field has (bits+63)/64 words, most significant first, without sign extension; a
// varbit field has one word, see Packet.varbit.
type layout struct {
	words  int
	heads  []head
	stacks []stack
}

// A head is the place of a header.
type head struct {
	valid  int // word of its validity
	meta   bool
	slots  []slot
	lo, hi int   // its fields are w[lo:hi]
	bytes  int   // of its fixed-width fields
	varb   int   // word of its varbit field, or -1
	max    int   // maximum bytes of its varbit field
	others []int // words of the validities of its union's other members
}

// A slot is the place of a field.
type slot struct {
	w, n   int // first word, number of words
	bits   int
	signed bool
	varb   bool
}

// A stack is the place of a header stack.
type stack struct {
	next  int   // word with the number of elements extracted or pushed
	elems []int // headers
	width int   // headers of an element
	union bool  // elements are unions
}

// column returns the headers that are member i of the elements.
func (s *stack) column(i int) (hs []int) {
	for ; i < len(s.elems); i += s.width {
		hs = append(hs, s.elems[i])
	}
	return hs
}

// layOut lays out the words of a packet.
func layOut(p *program.Program) *layout {
	l := &layout{words: 1, heads: make([]head, len(p.Headers))}
	for i, h := range p.Headers {
		l.heads[i] = head{meta: h.Metadata, varb: -1, bytes: h.Bits / 8}
		if !h.Metadata {
			l.heads[i].valid = l.words
			l.words++
		}
	}
	for _, s := range p.Stacks {
		l.stacks = append(l.stacks, stack{next: l.words, elems: s.Headers, width: max(1, s.Members), union: s.Members > 0})
		l.words++
	}
	for _, s := range p.Stacks {
		if s.Members == len(s.Headers) {
			l.union(s.Headers)
		}
	}
	for _, meta := range []bool{true, false} {
		for i, h := range p.Headers {
			if h.Metadata == meta {
				l.fields(&l.heads[i], h.Fields)
			}
		}
	}
	return l
}

func (l *layout) fields(h *head, fields []program.Field) {
	h.lo = l.words
	for _, f := range fields {
		s := slot{w: l.words, n: wordsOf(f.Bits), bits: f.Bits, signed: f.Signed, varb: f.Var}
		if f.Var {
			s.n = 1
			h.varb, h.max = s.w, f.Bits/8
		}
		l.words += s.n
		h.slots = append(h.slots, s)
	}
	h.hi = l.words
}

// union records that at most one of these headers is valid.
func (l *layout) union(headers []int) {
	for _, h := range headers {
		for _, o := range headers {
			if o != h {
				l.heads[h].others = append(l.heads[h].others, l.heads[o].valid)
			}
		}
	}
}

// slot returns a field's slot. The validity of a header is a field of 1 bit.
func (l *layout) slot(r program.FieldRef) slot {
	if r.Field == program.Valid {
		return slot{w: l.heads[r.Header].valid, n: 1, bits: 1}
	}
	return l.heads[r.Header].slots[r.Field]
}

// wordsOf returns the number of words for that many bits, at least one.
func wordsOf(bits int) int { return max(1, (bits+63)/64) }

// maskOf returns a mask of the low bits; all bits from 64 on.
func maskOf(bits int) uint64 {
	if bits >= 64 {
		return ^uint64(0)
	}
	return 1<<bits - 1
}

// topBits returns the number of a value's bits in its most significant word.
func topBits(bits int) int { return bits - 64*(wordsOf(bits)-1) }
