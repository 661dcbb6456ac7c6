package pipeline

import "encoding/binary"

// slack is the number of bytes that are readable after the end of a frame, and writable after the
// end of an output buffer, so that fields are moved in whole words.
const slack = 8

// A window is a piece of a fixed-width field in the packet, of at most 64 bits.
type window struct {
	w     int // word that holds it
	off   int // byte at which it starts
	shift uint8
	mask  uint64
	wide  bool // more than 64 bits from its first byte to its last
	bit   int  // if wide: first bit, from off
	bits  int
}

// windowsOf cuts a run of fields into windows, and returns the number of bits of the run.
func windowsOf(slots []slot) (ws []window, total int) {
	for _, s := range slots {
		if s.varb {
			continue
		}
		bits := topBits(s.bits)
		for i := range s.n {
			off, bit := total/8, total%8
			w := window{w: s.w + i, off: off, mask: maskOf(bits), bit: bit, bits: bits}
			if bit+bits <= 64 {
				w.shift = uint8(64 - bit - bits)
			} else {
				w.wide = true
			}
			ws = append(ws, w)
			total += bits
			bits = 64
		}
	}
	return ws, total
}

// load reads the windows from b, which has slack after the last of them.
func load(ws []window, w []uint64, b []byte) {
	for i := range ws {
		f := &ws[i]
		x := b[f.off : f.off+8 : f.off+8]
		v := binary.BigEndian.Uint64(x)
		if f.wide {
			v = v<<f.bit | uint64(b[f.off+8])>>(8-f.bit)
			v >>= 64 - f.bits
		}
		w[f.w] = v >> (f.shift & 63) & f.mask
	}
}

// peek reads up to 64 bits at a bit offset; b has slack after them.
func peek(b []byte, bit, bits int) uint64 {
	off, sh := bit/8, bit%8
	v := binary.BigEndian.Uint64(b[off:])
	if sh+bits > 64 {
		v = v<<sh | uint64(b[off+8])>>(8-sh)
		sh = 0
	}
	return v >> (64 - sh - bits) & maskOf(bits)
}

// An item is a fixed-width value to write: a word of a field, or a constant.
type item struct {
	w     int // or -1: a constant
	konst uint64
	bits  int
}

// itemsOf converts fixed-width fields to items.
func itemsOf(slots []slot) []item {
	var items []item
	for _, s := range slots {
		n := topBits(s.bits)
		for i := range s.n {
			items = append(items, item{w: s.w + i, bits: n})
			n = 64
		}
	}
	return items
}

// A chunk is up to 8 bytes that are written at once.
type chunk struct {
	konst uint64
	parts []part
	bytes int
}

// A part is the contribution of a word to a chunk or a number: it is shifted right, masked, and
// shifted left.
type part struct {
	w    int
	mask uint64
	r, l uint8 // less than 64
}

// of returns the value of the part. The masks of the shift counts tell the Go compiler that they
// are below 64.
func (p *part) of(w []uint64) uint64 { return w[p.w] >> (p.r & 63) & p.mask << (p.l & 63) }

// of returns the value of the chunk, its first byte on top.
func (c *chunk) of(w []uint64) uint64 {
	v := c.konst
	for i := range c.parts {
		v |= c.parts[i].of(w)
	}
	return v
}

// chunksOf plans the writing of items, which start at a byte boundary. The last byte is padded with
// zeros.
func chunksOf(items []item) (cs []chunk, bits int) {
	room := 0
	for _, it := range items {
		for left := it.bits; left > 0; {
			if room == 0 {
				cs = append(cs, chunk{})
				room = 64
			}
			n := min(left, room)
			c := &cs[len(cs)-1]
			left -= n
			room -= n
			if it.w < 0 {
				c.konst |= it.konst >> left & maskOf(n) << room
			} else {
				c.parts = append(c.parts, part{w: it.w, mask: maskOf(n), r: uint8(left), l: uint8(room)})
			}
			bits += n
		}
	}
	for i := range cs {
		cs[i].bytes = 8
	}
	if len(cs) > 0 {
		last := &cs[len(cs)-1]
		last.bytes = (64 - room + 7) / 8
	}
	return cs, bits
}

// store writes chunks to b, which has room for slack after them, and returns the number of bytes
// written.
func store(cs []chunk, w []uint64, b []byte) int {
	n := 0
	for i := range cs {
		c := &cs[i]
		binary.BigEndian.PutUint64(b[n:], c.of(w))
		n += c.bytes
	}
	return n
}

// room returns b, grown if needed, with room for that many bytes and slack.
func room(b []byte, n int) []byte {
	if n += slack; n > len(b) {
		b = append(b, make([]byte, n-len(b))...)
	}
	return b
}

// A bitWriter appends values of any width to a buffer.
type bitWriter struct {
	b    []byte
	bits int // written; the rest of the last byte is zero
}

// put appends the low bits of v, at most 64.
func (bw *bitWriter) put(v uint64, bits int) {
	for bits > 0 {
		free := -bw.bits & 7
		if free == 0 {
			bw.b = append(bw.b, 0)
			free = 8
		}
		n := min(free, bits)
		bits -= n
		bw.b[len(bw.b)-1] |= byte(v>>bits&maskOf(n)) << (free - n)
		bw.bits += n
	}
}

// putBytes appends whole bytes.
func (bw *bitWriter) putBytes(b []byte) {
	if bw.bits%8 == 0 {
		bw.b = append(bw.b, b...)
		bw.bits += 8 * len(b)
		return
	}
	for _, x := range b {
		bw.put(uint64(x), 8)
	}
}
