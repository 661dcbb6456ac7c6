package pipeline

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"github.com/mcrdma/mcrdma/internal/softswitch/match"
)

// TestRegisters goes back to saved registers, and sees the same packets come out
// as the first time.
func TestRegisters(t *testing.T) {
	p := start(t, "expressions", Options{})
	r := rand.New(rand.NewPCG(5, 6))
	packet := func() []byte {
		b := make([]byte, 64)
		for i := range b {
			b[i] = byte(r.Uint32() & 0x0f)
		}
		return b
	}
	var a, b, c Registers
	p.SaveRegisters(&a)
	if len(a.cells) != 0 {
		t.Fatalf("new registers have %d cells", len(a.cells))
	}
	for range 20 {
		process(p, packet())
	}
	p.SaveRegisters(&a)
	// What the control plane writes counts too.
	if err := p.Register("I.r.plain").Set(255, match.Value{3}); err != nil {
		t.Fatal(err)
	}
	if err := p.Register("I.r.wide").Set(7, match.Value{1, 2}); err != nil {
		t.Fatal(err)
	}
	p.SaveRegisters(&b)
	if a.Equal(&b) {
		t.Fatal("a write of the control plane is not seen")
	}
	a = b
	b = Registers{}
	var in [][]byte
	var out []sent
	for range 50 {
		in = append(in, packet())
		out = append(out, process(p, in[len(in)-1])...)
	}
	p.SaveRegisters(&b)
	if a.Equal(&b) || bytes.Equal(a.AppendKey(nil), b.AppendKey(nil)) {
		t.Fatal("50 packets wrote nothing")
	}
	p.RestoreRegisters(&a)
	p.SaveRegisters(&c)
	if !a.Equal(&c) || !bytes.Equal(a.AppendKey(nil), c.AppendKey(nil)) {
		t.Fatal("what was restored is not what was saved")
	}
	if v, err := p.Register("I.r.wide").Get(7); err != nil || !v.Equal(match.Value{1, 2}) {
		t.Fatalf("a cell that the control plane wrote: %v, %v", v, err)
	}
	for i, b := range in {
		if got := process(p, b); !bytes.Equal(got[0].frame, out[i].frame) {
			t.Fatalf("packet %d: %x, the first time %x", i, got[0].frame, out[i].frame)
		}
	}
	p.SaveRegisters(&c)
	if !b.Equal(&c) {
		t.Fatal("the same packets, other registers")
	}

	// A pipeline of its own takes them over; empty ones empty it.
	q := start(t, "expressions", Options{Seed: 9})
	q.RestoreRegisters(&a)
	if v, err := q.Register("I.r.plain").Get(255); err != nil || v.Uint() != 3 {
		t.Fatalf("a cell that only the control plane wrote: %v, %v", v, err)
	}
	q.RestoreRegisters(&b)
	q.SaveRegisters(&c)
	if !b.Equal(&c) {
		t.Fatal("another pipeline has other registers")
	}
	q.RestoreRegisters(&Registers{})
	q.SaveRegisters(&c)
	if len(c.cells) != 0 {
		t.Fatalf("%d cells are left", len(c.cells))
	}
	for _, reg := range q.registers {
		for i, w := range reg.cells {
			if w != 0 {
				t.Fatalf("%s: word %d is %#x", reg.info.Name, i, w)
			}
		}
	}
}

// TestRegistersRandom saves the random generator too.
func TestRegistersRandom(t *testing.T) {
	p := start(t, "limits", Options{Seed: 3})
	var s Registers
	p.SaveRegisters(&s)
	frame := frameOf(opRandom, 0, 60000)
	a := process(p, frame)
	b := process(p, frame)
	p.RestoreRegisters(&s)
	c := process(p, frame)
	if bytes.Equal(a[0].frame, b[0].frame) || !bytes.Equal(a[0].frame, c[0].frame) {
		t.Fatalf("%x, %x, %x", a[0].frame, b[0].frame, c[0].frame)
	}
}

// TestRegistersOrder: it does not matter in which order cells were written, nor
// whether a 0 was.
func TestRegistersOrder(t *testing.T) {
	p, q := start(t, "limits", Options{}), start(t, "limits", Options{})
	var a, b Registers
	p.SaveRegisters(&a)
	q.SaveRegisters(&b)
	for i := range uint16(4) {
		process(p, frameOf(opRegister, uint8(i), i))
		process(q, frameOf(opRegister, uint8(3-i), 3-i))
	}
	p.SaveRegisters(&a)
	q.SaveRegisters(&b)
	if len(a.cells) != 3 || !a.Equal(&b) {
		t.Fatalf("%v, %v", a, b)
	}
}
