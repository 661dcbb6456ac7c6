package pipeline

import (
	"fmt"
	"math/big"
	"slices"

	"github.com/mcrdma/mcrdma/internal/softswitch/program"
)

// The closures that a program becomes. num returns an expression's value modulo
// 2^64: of an unsigned one that fits the value itself, of a signed one its two's
// complement. wide writes the value modulo 2^(64*len(dst)), the most significant
// word first.
type (
	num  func(pk *Packet) uint64
	cond func(pk *Packet) bool
	wide func(pk *Packet, dst []uint64)
	stmt func(pk *Packet)
)

// A compiler turns parts of a program into closures.
type compiler struct {
	*layout
	p      *Pipeline
	prog   *program.Program
	params []program.Param
	offs   []int      // where each parameter is in Packet.args
	consts []*big.Int // the parameters' values, if they are always the same
	src    program.Source
	err    error

	kept    []bool       // words that packets keep: something may read what was not written right before
	written map[int]bool // words that the action without jumps has written which is being compiled; else nil
}

// fail notes the first thing that cannot be compiled.
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

// at notes where the program that is being compiled came from.
func (c *compiler) at(s program.Source) {
	if s.File != "" {
		c.src = s
	}
}

// enter begins an action. With consts, its parameters are always these.
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

// slot returns the place of a field that is read, and notes whether packets have to keep it.
func (c *compiler) slot(r program.FieldRef) slot {
	s := c.layout.slot(r)
	for w := s.w; w < s.w+s.n; w++ {
		c.kept[w] = c.kept[w] || !c.written[w]
	}
	return s
}

// writes notes that the action being compiled has written a field, whatever was in it.
func (c *compiler) writes(s slot) {
	for w := s.w; c.written != nil && w < s.w+s.n; w++ {
		c.written[w] = true
	}
}

// keep has packets keep all fields of a header.
func (c *compiler) keep(h *head) {
	for w := h.lo; w < h.hi; w++ {
		c.kept[w] = true
	}
}

// keptRanges are the ranges of words that packets keep. Most of the others are what p4c has made for the inputs
// of a hash.
func (c *compiler) keptRanges() (all [][2]int) {
	const gap = 16 // words that are copied sooner than left out
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

// constant returns the value of an expression that is always the same, or nil.
func (c *compiler) constant(e *program.Expr) *big.Int {
	switch {
	case e.Op == program.OpConst || e.Op == program.OpBool:
		return e.Const
	case e.Op == program.OpParam && c.consts != nil:
		return c.consts[e.Index]
	}
	return nil
}

// konst is constant for one that is wanted modulo 2^64.
func (c *compiler) konst(e *program.Expr) (uint64, bool) {
	k := c.constant(e)
	if k == nil {
		return 0, false
	}
	return low64(k), true
}

// low64 returns an integer modulo 2^64.
func low64(k *big.Int) uint64 {
	var v [1]uint64
	bigWords(k, v[:])
	return v[0]
}

// bigWords writes an integer modulo 2^(64*len(dst)) to dst.
func bigWords(k *big.Int, dst []uint64) {
	m := new(big.Int).Lsh(big.NewInt(1), uint(64*len(dst)))
	m.Mod(k, m) // Euclidean: never negative
	b := make([]byte, 8*len(dst))
	m.FillBytes(b)
	for i := range dst {
		for _, x := range b[8*i : 8*i+8] {
			dst[i] = dst[i]<<8 | uint64(x)
		}
	}
}

// word returns the word of an unsigned field that is in a single one.
func (c *compiler) word(e *program.Expr) (int, bool) {
	switch e.Op {
	case program.OpField:
		if s := c.slot(e.Field); s.n == 1 && !s.signed && !s.varb {
			return s.w, true
		}
	case program.OpValid:
		return c.heads[e.Head].valid, true
	case program.OpD2B:
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

// fits reports that 64 bits hold an expression's exact value.
func fits(e *program.Expr) bool { return e.Bool || e.Bits > 0 && e.Bits <= 64 }

// within reports that an expression's value is in 0 … 2^bits-1.
func within(e *program.Expr, bits int) bool {
	return e.Bool || !e.Signed && e.Bits > 0 && e.Bits <= bits
}

// anyWidth is a number of bits that no value has.
const anyWidth = 1 << 30

// strip removes masks that a mask to that many bits makes superfluous, and those
// that change nothing.
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

// trailingOnes counts the lowest bits that are 1.
func trailingOnes(k *big.Int) int {
	n := 0
	for k.Bit(n) == 1 {
		n++
	}
	return n
}
