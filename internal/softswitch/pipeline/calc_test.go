package pipeline

import (
	"bytes"
	"hash/crc32"
	"math/big"
	"math/rand/v2"
	"testing"

	"github.com/mcrdma/mcrdma/internal/softswitch/program"
	"github.com/mcrdma/mcrdma/pkg/rocev2"
)

// calcProgram has headers of odd widths, two of them with a varbit field.
func calcProgram() *program.Program {
	p := tiny()
	p.Headers = nil
	for h, widths := range [][]int{{8, 16, 64}, {3, 70, 7, 0}, {0, 5, 11}, {1, 128, 40}} {
		hd := program.Header{Name: "h", Stack: program.None, Metadata: h == 3}
		for _, n := range widths {
			if hd.Bits += n; n > 0 {
				hd.Fields = append(hd.Fields, program.Field{Name: "f", Bits: n})
			} else {
				hd.Fields = append(hd.Fields, program.Field{Name: "v", Bits: 256, Var: true})
			}
		}
		p.Headers = append(p.Headers, hd)
	}
	return p
}

// bitString is what a calculation hashes, bit by bit.
type bitString struct{ bits []byte }

func (b *bitString) add(v *big.Int, n int) {
	for i := n - 1; i >= 0; i-- {
		b.bits = append(b.bits, byte(v.Bit(i)))
	}
}

func (b *bitString) bytes() []byte {
	out := make([]byte, (len(b.bits)+7)/8)
	for i, x := range b.bits {
		out[i/8] |= x << (7 - i%8)
	}
	return out
}

// inputs draws a list of inputs.
func calcInputs(r *rand.Rand, prog *program.Program) (in []program.CalcInput) {
	for range 1 + r.IntN(9) {
		h := r.IntN(len(prog.Headers))
		switch r.IntN(8) {
		case 0:
			n := 1 + r.IntN(130)
			in = append(in, program.CalcInput{Kind: program.CalcConst, Const: new(big.Int).Sub(ones(n), big.NewInt(int64(r.IntN(2)))), Bits: n})
		case 1:
			in = append(in, program.CalcInput{Kind: program.CalcHeader, Head: h})
		case 2:
			in = append(in, program.CalcInput{Kind: program.CalcPayload})
		default:
			f := program.FieldRef{Header: h, Field: r.IntN(len(prog.Headers[h].Fields))}
			in = append(in, program.CalcInput{Kind: program.CalcField, Field: f})
		}
	}
	return in
}

// TestCalculations compares with concatenated bits.
func TestCalculations(t *testing.T) {
	prog := calcProgram()
	p, err := New(prog, Options{})
	if err != nil {
		t.Fatal(err)
	}
	s := &sample{Rand: rand.New(rand.NewPCG(9, 10)), p: p, pk: p.pool.packet()}
	s.c = newCompiler(p, p.lay, prog)
	frame := make([]byte, 80)
	for i := range frame {
		frame[i] = byte(s.Uint32())
	}
	p.pool.fill(s.pk, frame)
	for round := range 3000 {
		in := calcInputs(s.Rand, prog)
		crc, id := s.c.calc(program.CRC32, in), s.c.calc(program.Identity, in)
		sum := s.c.calc(program.Csum16, in)
		for range 4 {
			s.p.fresh(s.pk)
			all := s.IntN(2)
			for h := range s.c.heads {
				hd := &s.c.heads[h]
				if !hd.meta {
					s.pk.w[hd.valid] = uint64(all | s.IntN(2))
				}
				for _, f := range hd.slots {
					if f.varb {
						s.pk.w[f.w] = uint64(s.IntN(40))<<varOffset | uint64(s.IntN(33))
						if s.IntN(4) == 0 {
							s.pk.w[f.w] = zeroed(s.pk.w[f.w])
						}
					} else {
						bigWords(s.number(f.bits), s.pk.w[f.w:f.w+f.n])
					}
				}
			}
			s.pk.pos, s.pk.keep = s.IntN(81), []int{keepAll, 5}[s.IntN(2)]
			want := s.wanted(in)
			if got := crc(s.pk); got != uint64(crc32.ChecksumIEEE(want)) {
				t.Fatalf("round %d: CRC-32 %#x, want %#x", round, got, crc32.ChecksumIEEE(want))
			}
			if got := id(s.pk); got != bigOf(want[:min(8, len(want))]).Uint64() {
				t.Fatalf("round %d: begins with %#x, want %x", round, got, want[:min(8, len(want))])
			}
			if got := sum(s.pk); got != uint64(rocev2.Checksum(want)) {
				t.Fatalf("round %d: checksum %#x, want %#x", round, got, uint64(rocev2.Checksum(want)))
			}
		}
	}
}

// wanted returns the bytes that inputs make.
func (s *sample) wanted(in []program.CalcInput) []byte {
	var b bitString
	payload := false
	add := func(h int, f slot) {
		switch {
		case s.pk.w[s.c.heads[h].valid] == 0:
		case f.varb:
			v := s.pk.varbit(s.pk.w[f.w])
			b.add(bigOf(v), 8*len(v))
		default:
			b.add(s.words(f), f.bits)
		}
	}
	for _, i := range in {
		switch i.Kind {
		case program.CalcConst:
			b.add(i.Const, i.Bits)
		case program.CalcHeader:
			for _, f := range s.c.heads[i.Head].slots {
				add(i.Head, f)
			}
		case program.CalcField:
			add(i.Field.Header, s.c.slot(i.Field))
		default:
			payload = true
		}
	}
	out := b.bytes()
	if payload { // comes last, at a byte
		rest := s.pk.rest()
		out = append(out, rest[:min(len(rest), s.pk.keep)]...)
	}
	return bytes.Clone(out)
}
