package pipeline

import (
	"fmt"
	"math/big"
	"slices"

	"github.com/mcrdma/mcrdma/internal/softswitch/match"
	"github.com/mcrdma/mcrdma/internal/softswitch/program"
)

// The closures into which a program is compiled. num returns an expression's value modulo 2^64: the
// value itself if unsigned and small enough, the two's complement if signed. wide writes the value
// modulo 2^(64*len(dst)), most significant word first.
type (
	num  func(pk *Packet) uint64
	cond func(pk *Packet) bool
	wide func(pk *Packet, dst []uint64)
	stmt func(pk *Packet)
)

// either compiles t ? x : y.
func either[T any](t cond, x, y func(*Packet) T) func(*Packet) T {
	return func(pk *Packet) T {
		if t(pk) {
			return x(pk)
		}
		return y(pk)
	}
}

// A compiler compiles parts of a program into closures.
type compiler struct {
	*layout
	p      *Pipeline
	prog   *program.Program
	params []program.Param
	offs   []int      // position of each parameter in Packet.args
	consts []*big.Int // the parameters' values, if they are always the same
	src    program.Source
	err    error

	kept    []bool       // words that packets keep, because they may be read without having been written just before
	written map[int]bool // words written so far by the jump-free action being compiled; else nil
}

// fail records the first thing that cannot be compiled.
func (c *compiler) fail(format string, args ...any) {
	if c.err != nil {
		return
	}
	where := ""
	if s := c.src; s.File != "" {
		where = fmt.Sprintf("%s:%d: ", s.File, s.Line)
	}
	c.err = fmt.Errorf("pipeline: %s%w: %s", where, ErrUnsupported, fmt.Sprintf(format, args...))
}

// at records the source position of what is being compiled.
func (c *compiler) at(s program.Source) {
	if s.File != "" {
		c.src = s
	}
}

// enter begins an action. If consts is not nil, its parameters always have these values.
func (c *compiler) enter(action int, consts []*big.Int) {
	a := &c.prog.Actions[action]
	c.params, c.consts, c.offs = a.Params, consts, c.p.argOffset[action]
	c.at(a.Source)
}

func newCompiler(p *Pipeline, lay *layout, prog *program.Program) *compiler {
	c := &compiler{layout: lay, p: p, prog: prog, kept: slices.Repeat([]bool{true}, lay.words)}
	for i := range c.heads {
		if h := &c.heads[i]; h.meta {
			clear(c.kept[h.lo:h.hi])
		}
	}
	for _, f := range p.std {
		c.kept[f.w] = true
	}
	return c
}

// slot returns the slot of a field that is read, and records whether packets must keep it.
func (c *compiler) slot(r program.FieldRef) slot {
	s := c.layout.slot(r)
	for w := s.w; w < s.w+s.n; w++ {
		c.kept[w] = c.kept[w] || !c.written[w]
	}
	return s
}

// writes records that the action being compiled has written a field, so that its earlier content
// does not matter.
func (c *compiler) writes(s slot) {
	for w := s.w; c.written != nil && w < s.w+s.n; w++ {
		c.written[w] = true
	}
}

// keep makes packets keep all fields of a header.
func (c *compiler) keep(h *head) {
	for w := h.lo; w < h.hi; w++ {
		c.kept[w] = true
	}
}

// keptRanges returns the ranges of words that packets keep. Most other words are p4c's temporaries
// for hash inputs.
func (c *compiler) keptRanges() (all [][2]int) {
	const gap = 16 // a gap of this many words is cheaper to copy than to skip
	for w, ok := range c.kept {
		switch n := len(all); {
		case !ok:
		case n > 0 && w-all[n-1][1] < gap:
			all[n-1][1] = w + 1
		default:
			all = append(all, [2]int{w, w + 1})
		}
	}
	return all
}

// constant returns the value of a constant expression, or nil.
func (c *compiler) constant(e *program.Expr) *big.Int {
	switch {
	case e.Op == program.OpConst || e.Op == program.OpBool:
		return e.Const
	case e.Op == program.OpParam && c.consts != nil:
		return c.consts[e.Index]
	}
	return nil
}

// konst returns a constant expression's value modulo 2^64.
func (c *compiler) konst(e *program.Expr) (uint64, bool) {
	k := c.constant(e)
	if k == nil {
		return 0, false
	}
	return low64(k), true
}

// low64 returns k modulo 2^64.
func low64(k *big.Int) uint64 { return match.FromBig(k, 64).Uint() }

// bigWords writes k modulo 2^(64*len(dst)) to dst.
func bigWords(k *big.Int, dst []uint64) { copy(dst, match.FromBig(k, 64*len(dst))) }

// word returns the word of an unsigned field that fits in one word.
func (c *compiler) word(e *program.Expr) (int, bool) {
	switch e.Op {
	case program.OpField:
		if s := c.slot(e.Field); s.n == 1 && !s.signed && !s.varb {
			return s.w, true
		}
	case program.OpValid, program.OpD2B:
		return c.boolWord(e)
	}
	return 0, false
}

// boolWord returns the word of a 1-bit field that is used as a boolean.
func (c *compiler) boolWord(e *program.Expr) (int, bool) {
	if e.Op == program.OpD2B && e.Left.Op == program.OpField {
		if s := c.slot(e.Left.Field); s.bits == 1 {
			return s.w, true
		}
	}
	if e.Op == program.OpValid {
		return c.heads[e.Head].valid, true
	}
	return 0, false
}

// fits reports whether 64 bits hold an expression's exact value.
func fits(e *program.Expr) bool { return e.Bool || e.Bits > 0 && e.Bits <= 64 }

// within reports whether an expression's value is in 0 … 2^bits-1.
func within(e *program.Expr, bits int) bool {
	return e.Bool || !e.Signed && e.Bits > 0 && e.Bits <= bits
}

// anyWidth is more bits than any value has.
const anyWidth = 1 << 30

// strip removes masks that a following mask of that many bits makes redundant, and those without
// effect.
func (c *compiler) strip(e *program.Expr, bits int) *program.Expr {
	for e.Op == program.OpAnd {
		k := c.constant(e.Right)
		if k == nil || k.Sign() < 0 {
			return e
		}
		n := trailingOnes(k)
		if n < bits && (n == 0 || !within(e.Left, n)) {
			return e
		}
		e = e.Left
	}
	return e
}

// trailingOnes returns the number of low bits that are 1.
func trailingOnes(k *big.Int) int {
	n := 0
	for k.Bit(n) == 1 {
		n++
	}
	return n
}
