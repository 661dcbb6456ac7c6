package pipeline

import (
	"encoding/binary"
	"hash/crc32"
	"math"
	"math/big"
	"math/bits"

	"github.com/mcrdma/mcrdma/internal/softswitch/program"
	"github.com/mcrdma/mcrdma/pkg/rocev2"
)

// An input is a part of a calculation's input: consecutive fixed-width pieces, or a varbit field.
type input struct {
	chunks []chunk // of fixed-width pieces, if they start at a byte boundary
	items  []item  // the same, piece by piece, with the
	valid  []int   // validity of each
	varb   int     // word of the varbit field, or -1
	varOK  int     // and the validity of its header
}

// A calculation hashes fields of the packet. It omits fields of invalid headers.
type calculation struct {
	inputs  []input
	needs   []int // validities of fixed-width pieces: if all are set, chunks apply
	aligned bool  // then every input starts at a byte boundary
	fixed   int   // total bytes of fixed-width pieces
	payload bool  // the unparsed rest comes last
	buf     []byte
}

// calcs compiles a calculation of the program.
func (c *compiler) calcs(i int) num {
	k := &c.prog.Calculations[i]
	old := c.src
	c.at(k.Source)
	f := c.calc(k.Algo, k.Input)
	c.src = old
	return f
}

func (c *compiler) calc(algo program.Algo, inputs []program.CalcInput) num {
	k := &calculation{}
	for _, in := range inputs {
		switch in.Kind {
		case program.CalcField:
			k.slot(c.heads[in.Field.Header].valid, c.slot(in.Field))
		case program.CalcConst:
			k.constant(in.Const, in.Bits)
		case program.CalcHeader:
			h := &c.heads[in.Head]
			c.keep(h)
			for _, s := range h.slots {
				k.slot(h.valid, s)
			}
		case program.CalcPayload:
			k.payload = true
		}
	}
	k.plan()
	if algo == program.Random {
		r := &c.p.rng
		return func(*Packet) uint64 { return r.next() }
	}
	f := algorithms[algo]
	if algo == program.Csum16 && k.summable() {
		return func(pk *Packet) uint64 {
			if v, ok := k.csum16(pk); ok {
				return v
			}
			return f(k.bytes(pk))
		}
	}
	return func(pk *Packet) uint64 { return f(k.bytes(pk)) }
}

// algorithms are those that need all bytes at once.
var algorithms = [...]func([]byte) uint64{
	program.CRC32:    func(b []byte) uint64 { return uint64(crc32.ChecksumIEEE(b)) },
	program.CRC16:    crc16,
	program.Csum16:   func(b []byte) uint64 { return uint64(rocev2.Checksum(b)) },
	program.Xor16:    xor16,
	program.Identity: identity,
}

// constant adds a constant.
func (k *calculation) constant(v *big.Int, bits int) {
	words := make([]uint64, wordsOf(bits))
	bigWords(v, words)
	n := topBits(bits)
	for _, w := range words {
		k.piece(0, item{w: -1, konst: w, bits: n})
		n = 64
	}
}

// slot adds a field.
func (k *calculation) slot(valid int, s slot) {
	if s.varb {
		k.inputs = append(k.inputs, input{varb: s.w, varOK: valid})
		return
	}
	for _, it := range itemsOf([]slot{s}) {
		k.piece(valid, it)
	}
}

// piece adds a fixed-width piece.
func (k *calculation) piece(valid int, it item) {
	if n := len(k.inputs); n == 0 || k.inputs[n-1].varb >= 0 {
		k.inputs = append(k.inputs, input{varb: -1})
	}
	in := &k.inputs[len(k.inputs)-1]
	in.items = append(in.items, it)
	in.valid = append(in.valid, valid)
}

// plan prepares for the case that all headers of fixed-width fields are valid. Varbit fields
// consist of whole bytes, and may be omitted.
func (k *calculation) plan() {
	seen := map[int]bool{0: true} // metadata is always valid
	need := func(v int) {
		if !seen[v] {
			seen[v] = true
			k.needs = append(k.needs, v)
		}
	}
	k.aligned = true
	for i := range k.inputs {
		in := &k.inputs[i]
		if in.varb >= 0 {
			continue
		}
		for _, v := range in.valid {
			need(v)
		}
		var n int
		in.chunks, n = chunksOf(in.items)
		k.fixed += (n + 7) / 8
		if n%8 != 0 && (i < len(k.inputs)-1 || k.payload) {
			k.aligned = false
		}
	}
	k.buf = make([]byte, k.fixed+slack)
}

// asPlanned reports whether every input starts at a byte boundary.
func (k *calculation) asPlanned(pk *Packet) bool {
	ok := uint64(1)
	for _, v := range k.needs {
		ok &= pk.w[v]
	}
	return ok != 0 && k.aligned
}

// bytes returns the bytes to hash.
func (k *calculation) bytes(pk *Packet) []byte {
	if !k.asPlanned(pk) {
		return k.gather(pk)
	}
	n := 0
	for i := range k.inputs {
		in := &k.inputs[i]
		if in.varb < 0 {
			k.buf = room(k.buf, n+k.fixed)
			n += store(in.chunks, pk.w, k.buf[n:])
			continue
		}
		if pk.w[in.varOK] == 0 {
			continue
		}
		v := pk.varbit(pk.w[in.varb])
		k.buf = room(k.buf, n+k.fixed+len(v))
		n += copy(k.buf[n:], v)
	}
	if k.payload {
		v := pk.kept()
		k.buf = room(k.buf, n+len(v))
		n += copy(k.buf[n:], v)
	}
	return k.buf[:n]
}

// gather does what bytes does, for inputs that start at any bit or are omitted.
func (k *calculation) gather(pk *Packet) []byte {
	bw := bitWriter{b: k.buf[:0]}
	for i := range k.inputs {
		in := &k.inputs[i]
		if in.varb >= 0 {
			if pk.w[in.varOK] != 0 {
				bw.putBytes(pk.varbit(pk.w[in.varb]))
			}
			continue
		}
		for j, it := range in.items {
			if pk.w[in.valid[j]] == 0 {
				continue
			}
			v := it.konst
			if it.w >= 0 {
				v = pk.w[it.w]
			}
			bw.put(v, it.bits)
		}
	}
	b := bw.b
	if k.payload { // starts at the next byte
		b = append(b, pk.kept()...)
	}
	k.buf = b[:cap(b)]
	return b
}

// summable reports whether csum16 may be possible: without varbit fields, all inputs start at
// 16-bit boundaries.
func (k *calculation) summable() bool {
	for i := range k.inputs {
		for _, c := range k.inputs[i].chunks {
			if c.bytes%2 != 0 && i < len(k.inputs)-1 {
				return false
			}
		}
	}
	return k.aligned && !k.payload
}

// csum16 computes the Internet checksum without gathering the bytes. It returns false if that is
// not possible, because a varbit field is not empty or a header not valid.
func (k *calculation) csum16(pk *Packet) (uint64, bool) {
	if !k.asPlanned(pk) {
		return 0, false
	}
	sum := uint64(0)
	for i := range k.inputs {
		in := &k.inputs[i]
		if in.varb >= 0 && pk.w[in.varOK] != 0 && varLen(pk.w[in.varb]) > 0 {
			return 0, false
		}
		for j := range in.chunks {
			v := in.chunks[j].of(pk.w)
			sum += v>>32 + v&math.MaxUint32
		}
	}
	for sum > math.MaxUint16 {
		sum = sum>>16 + sum&math.MaxUint16
	}
	return ^sum & math.MaxUint16, true
}

// crc16 is CRC-16/ARC.
func crc16(b []byte) uint64 {
	sum := uint16(0)
	for _, x := range b {
		sum = sum>>8 ^ crc16Table[byte(sum)^x]
	}
	return uint64(sum)
}

var crc16Table = func() (t [256]uint16) {
	for i := range t {
		x := uint16(i)
		for range 8 {
			x = x>>1 ^ -(x&1)&0xa001
		}
		t[i] = x
	}
	return t
}()

// xor16 is the exclusive or of 16-bit words; the last one is padded with zeros.
func xor16(b []byte) uint64 {
	sum := uint64(0)
	for len(b) >= 2 {
		sum ^= uint64(binary.BigEndian.Uint16(b))
		b = b[2:]
	}
	if len(b) > 0 {
		sum ^= uint64(b[0]) << 8
	}
	return sum
}

// identity returns the first bytes, at most 8, as a number.
func identity(b []byte) uint64 {
	v := uint64(0)
	for _, x := range b[:min(len(b), 8)] {
		v = v<<8 | uint64(x)
	}
	return v
}

// rng is the splitmix64 generator.
type rng uint64

func (r *rng) next() uint64 {
	*r += 0x9e3779b97f4a7c15
	x := uint64(*r)
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// below returns a number less than n; an n of 0 means 2^64.
func (r *rng) below(n uint64) uint64 {
	x := r.next()
	if n == 0 {
		return x
	}
	hi, _ := bits.Mul64(x, n)
	return hi
}
