package pipeline

import (
	"math"
	"math/big"
	"slices"

	"github.com/mcrdma/mcrdma/internal/softswitch/program"
)

// noError is the value of Packet.parserErr without an error.
const noError = -1

// maxSteps bounds the parser states passed without consuming bits of the packet, so that an endless
// loop is detected.
const maxSteps = 1024

// parserErrors are the numbers of core.p4's parser errors.
type parserErrors struct {
	none, tooShort, outOfBounds, headerTooShort, timeout, invalidArgument int64
}

// errorNumbers looks up the errors; those that the program does not list get numbers after the
// others.
func errorNumbers(p *program.Program) parserErrors {
	next := int64(0)
	for _, e := range p.Errors {
		next = max(next, int64(e.Value)+1)
	}
	number := func(name string) int64 {
		if i := slices.IndexFunc(p.Errors, func(e program.Enumerator) bool { return e.Name == name }); i >= 0 {
			return int64(p.Errors[i].Value)
		}
		next++
		return next - 1
	}
	return parserErrors{
		none: number("NoError"), tooShort: number("PacketTooShort"),
		outOfBounds: number("StackOutOfBounds"), headerTooShort: number("HeaderTooShort"),
		timeout: number("ParserTimeout"), invalidArgument: number("ParserInvalidArgument"),
	}
}

// A parserState is a parser state. With one part the key is a number, else it is words.
type parserState struct {
	ops   []stmt
	key   num
	words []wide
	at    []int // first word of each part; their number is the number of parts
	last  []int
	masks []uint64 // of the topmost word of each part
	cases []parserCase
}

// A parserCase is a transition, taken if the masked key equals the value.
type parserCase struct {
	value, mask   uint64 // of a number
	values, masks []uint64
	set           *setCase
	next          int
}

// A setCase is a transition by a value set.
type setCase struct {
	*ValueSet
	joined []int // widths of the parts, if the set has one field for all
}

// parser is the compiled parser.
type parser struct {
	states []parserState
	key    []uint64
	errs   parserErrors
}

// parse runs the parser, and returns the parser error.
func (ps *parser) parse(pk *Packet) int64 {
	pk.parserErr = noError
	steps, last := 0, -1
	for s := 0; s >= 0; {
		if pk.pos != last {
			steps, last = 0, pk.pos
		} else if steps++; steps > maxSteps {
			return ps.errs.timeout
		}
		st := &ps.states[s]
		for _, op := range st.ops {
			if op(pk); pk.parserErr != noError {
				return pk.parserErr
			}
		}
		if st.key != nil {
			s = st.select1(st.key(pk))
		} else {
			s = ps.selectN(st, pk)
		}
	}
	return ps.errs.none
}

// select1 returns the next state by a number. Without a match the parser ends, as bmv2's does.
func (st *parserState) select1(key uint64) int {
	for i := range st.cases {
		if c := &st.cases[i]; key&c.mask == c.value {
			return c.next
		}
	}
	return program.Accept
}

func (ps *parser) selectN(st *parserState, pk *Packet) int {
	for i, x := range st.words {
		part := ps.key[st.at[i]:st.last[i]]
		x(pk, part)
		part[0] &= st.masks[i]
	}
	n := 0
	if len(st.last) > 0 {
		n = st.last[len(st.last)-1]
	}
	for i := range st.cases {
		c := &st.cases[i]
		if c.set != nil {
			if c.set.has(ps.key[:n]) {
				return c.next
			}
			continue
		}
		if c.matches(ps.key) {
			return c.next
		}
	}
	return program.Accept
}

// has looks up the words in the value set.
func (c *setCase) has(key []uint64) bool {
	if c.joined == nil {
		return c.contains(key)
	}
	var all [1]uint64
	for i, bits := range c.joined {
		all[0] = all[0]<<bits | key[i]
	}
	return c.contains(all[:])
}

// matches compares the words. A default case has no words and always matches.
func (c *parserCase) matches(key []uint64) bool {
	for i, v := range c.values {
		if key[i]&c.masks[i] != v {
			return false
		}
	}
	return true
}

// parser compiles the parser.
func (c *compiler) parser() *parser {
	ps := &parser{errs: c.p.errs, states: make([]parserState, len(c.prog.Parser.States))}
	words := 0
	for i := range c.prog.Parser.States {
		s, st := &c.prog.Parser.States[i], &ps.states[i]
		c.at(s.Source)
		for j := range s.Ops {
			st.ops = append(st.ops, c.parserOps(&s.Ops[j])...)
		}
		c.at(s.Source)
		words = max(words, c.keyOf(s, st))
	}
	ps.key = make([]uint64, words)
	return ps
}

// keyOf compiles a state's key and cases, and returns the number of words of the key.
func (c *compiler) keyOf(s *program.State, st *parserState) int {
	var widths []int
	bits, sets, ahead := 0, false, 0
	for _, e := range s.Key {
		widths = append(widths, c.keyBits(e))
		bits += widths[len(widths)-1]
		ahead = max(ahead, lookahead(e))
	}
	for _, k := range s.Cases {
		sets = sets || !k.Default && k.ValueSet != program.None
	}
	if ahead > 0 && len(s.Cases) > 0 {
		st.ops = append(st.ops, c.needAhead(ahead))
	}
	if bits <= 64 && !sets {
		st.key = c.number(s.Key, widths)
		for i := range s.Cases {
			st.cases = append(st.cases, numberCase(&s.Cases[i], widths))
		}
		return 0
	}
	n := 0
	for i, e := range s.Key {
		w := wordsOf(widths[i])
		st.words = append(st.words, c.wide(e, w))
		st.at, st.last = append(st.at, n), append(st.last, n+w)
		st.masks = append(st.masks, maskOf(topBits(widths[i])))
		n += w
	}
	for i := range s.Cases {
		st.cases = append(st.cases, c.wordsCase(&s.Cases[i], widths))
	}
	return n
}

// keyBits returns the width of a part of a key.
func (c *compiler) keyBits(e *program.Expr) int {
	switch e.Op {
	case program.OpField:
		return c.slot(e.Field).bits
	case program.OpStackField, program.OpStackElem:
		_, s := c.cell(e)
		return s.bits
	}
	return e.Bits
}

// number compiles a key's parts into one number, the first part highest.
func (c *compiler) number(key []*program.Expr, widths []int) num {
	var f num
	for i, e := range key {
		x, bits := c.num(e), widths[i]
		if mask := maskOf(bits); !within(e, bits) {
			y := x
			x = func(pk *Packet) uint64 { return y(pk) & mask }
		}
		if f == nil {
			f = x
			continue
		}
		hi := f
		f = func(pk *Packet) uint64 { return hi(pk)<<bits | x(pk) }
	}
	if f == nil {
		return func(*Packet) uint64 { return 0 }
	}
	return f
}

// masked returns the value and mask of a part of a case.
func masked(k *program.Case, i, bits int) (value, mask *big.Int) {
	value, mask = k.Values[i], new(big.Int).Sub(new(big.Int).Lsh(big.NewInt(1), uint(bits)), big.NewInt(1))
	if k.Masks != nil && k.Masks[i] != nil {
		mask = k.Masks[i]
	}
	return new(big.Int).And(value, mask), mask
}

func numberCase(k *program.Case, widths []int) parserCase {
	pc := parserCase{next: k.Next}
	if k.Default {
		return pc
	}
	for i, bits := range widths {
		v, m := masked(k, i, bits)
		pc.value = pc.value<<bits | low64(v)
		pc.mask = pc.mask<<bits | low64(m)
	}
	return pc
}

func (c *compiler) wordsCase(k *program.Case, widths []int) parserCase {
	pc := parserCase{next: k.Next}
	switch {
	case k.Default:
		return pc
	case k.ValueSet != program.None:
		pc.set = &setCase{ValueSet: c.p.valueSets[k.ValueSet]}
		if len(widths) > 1 && len(pc.set.info.Bits) == 1 {
			pc.set.joined = widths
		}
		return pc
	}
	for i, bits := range widths {
		v, m := masked(k, i, bits)
		w := make([]uint64, 2*wordsOf(bits))
		bigWords(v, w[:len(w)/2])
		bigWords(m, w[len(w)/2:])
		pc.values, pc.masks = append(pc.values, w[:len(w)/2]...), append(pc.masks, w[len(w)/2:]...)
	}
	return pc
}

// needAhead checks that enough bits are left for a lookahead.
func (c *compiler) needAhead(bits int) stmt {
	n, short := (bits+7)/8, c.p.errs.tooShort
	return func(pk *Packet) {
		if pk.end-pk.pos < n {
			pk.parserErr = short
		}
	}
}

// parserOps compiles an operation of a parser state.
func (c *compiler) parserOps(s *program.Stmt) []stmt {
	c.at(s.Source)
	var ops []stmt
	if n := max(lookahead(s.X), lookahead(s.Y)); n > 0 {
		ops = append(ops, c.needAhead(n))
	}
	switch s.Op {
	case program.StExtract:
		return append(ops, c.extract(s.Head))
	case program.StExtractStack:
		return append(ops, c.extractStack(s))
	case program.StExtractVar:
		return append(ops, c.extractVar(s.Head, c.num(s.X), s.Own))
	case program.StAdvance:
		return append(ops, c.advance(c.num(s.X)))
	case program.StVerify:
		t, code := c.cond(s.X), c.num(s.Y)
		return append(ops, func(pk *Packet) {
			if !t(pk) {
				pk.parserErr = int64(code(pk) & math.MaxUint32)
			}
		})
	}
	return append(ops, c.stmt(s))
}

// extract extracts a header of fixed width.
func (c *compiler) extract(i int) stmt {
	h := &c.heads[i]
	c.whole(h)
	if h.varb >= 0 {
		c.fail("header %s: extracted without the length of its varbit field", c.prog.Headers[i].Name)
	}
	ws, _ := windowsOf(h.slots)
	valid, n, short := h.valid, h.bytes, c.p.errs.tooShort
	return h.alone(func(pk *Packet) {
		if pk.end-pk.pos < n {
			pk.parserErr = short
			return
		}
		load(ws, pk.w, pk.buf.b[pk.pos:])
		pk.w[valid] = 1
		pk.pos += n
	})
}

// whole rejects headers that do not consist of whole bytes.
func (c *compiler) whole(h *head) {
	bits, before := 0, 0
	for _, s := range h.slots {
		if s.varb {
			before = bits
		} else {
			bits += s.bits
		}
	}
	if bits%8 != 0 || before%8 != 0 {
		c.fail("a header whose width, or place of its varbit field, is not in whole bytes")
	}
}

// split returns the fields before and after the varbit field.
func (h *head) split() (before, after []slot) {
	for i, s := range h.slots {
		if s.varb {
			return h.slots[:i], h.slots[i+1:]
		}
	}
	return h.slots, nil
}

// extractVar extracts a header with a varbit field. Its length in bits comes from the packet or,
// with own, from the header's fields before it. To bmv2, lengths are signed 32-bit numbers, at
// which larger ones saturate.
func (c *compiler) extractVar(i int, length num, own bool) stmt {
	h := c.heads[i]
	c.whole(&h)
	if h.varb < 0 {
		c.fail("header %s: extracted with a length, but without a varbit field", c.prog.Headers[i].Name)
		return func(*Packet) {}
	}
	before, after := h.split()
	pre, preBits := windowsOf(before)
	post, _ := windowsOf(after)
	errs := c.p.errs
	return h.alone(func(pk *Packet) {
		if own {
			if pk.end-pk.pos < h.bytes {
				pk.parserErr = errs.tooShort
				return
			}
			load(pre, pk.w, pk.buf.b[pk.pos:])
		}
		bits := length(pk)
		if bits%8 != 0 || bits >= math.MaxInt32 {
			pk.parserErr = errs.invalidArgument
			return
		}
		n := int(bits / 8)
		// A header that was extracted before has the length that it had then.
		total := h.bytes + varLen(pk.w[h.varb]) + n
		switch {
		case pk.end-pk.pos < total:
			pk.parserErr = errs.tooShort
			return
		case !own && total > h.bytes+h.max: // bmv2 does not limit the length that a header gives itself
			pk.parserErr = errs.headerTooShort
			return
		}
		at := pk.pos + preBits/8
		load(pre, pk.w, pk.buf.b[pk.pos:])
		pk.w[h.varb] = uint64(at)<<varOffset | uint64(n)
		load(post, pk.w, pk.buf.b[at+n:])
		pk.w[h.valid] = 1
		pk.pos += h.bytes + n
	})
}

// extractStack extracts the next element of a stack.
func (c *compiler) extractStack(s *program.Stmt) stmt {
	st := c.stacks[s.Stack]
	var length num
	if s.X != nil {
		length = c.num(s.X)
	}
	var each []stmt
	for _, h := range st.column(s.Head) {
		if length != nil {
			each = append(each, c.extractVar(h, length, false))
		} else {
			each = append(each, c.extract(h))
		}
	}
	next, full := st.next, c.p.errs.outOfBounds
	return func(pk *Packet) {
		i := pk.w[next]
		if i >= uint64(len(each)) {
			pk.parserErr = full
			return
		}
		if each[i](pk); pk.parserErr == noError {
			pk.w[next]++
		}
	}
}

// advance skips bits of the packet.
func (c *compiler) advance(x num) stmt {
	errs := c.p.errs
	return func(pk *Packet) {
		bits := x(pk)
		switch {
		case bits%8 != 0:
			pk.parserErr = errs.invalidArgument
		case bits/8 > uint64(pk.end-pk.pos):
			pk.parserErr = errs.tooShort
		default:
			pk.pos += int(bits / 8)
		}
	}
}

// lookahead returns how many bits ahead of the parser an expression reads.
func lookahead(e *program.Expr) int {
	if e == nil {
		return 0
	}
	n := 0
	if e.Op == program.OpLookahead {
		n = e.Offset + e.Bits
	}
	return max(n, lookahead(e.Left), lookahead(e.Right), lookahead(e.Cond))
}
