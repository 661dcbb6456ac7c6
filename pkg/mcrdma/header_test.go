package mcrdma

import (
	"bytes"
	"encoding/binary"
	"errors"
	"testing"

	"github.com/mcrdma/mcrdma/pkg/qp"
)

func TestHeader(t *testing.T) {
	good := map[string]struct {
		h       header
		payload int
	}{
		"write":     {header{kind: OpWrite, region: 3, offset: 1 << 40, length: 100}, 100},
		"write imm": {header{kind: OpWriteImm, region: 1, offset: 5, imm: 9, length: 1 << 20, pieces: 16, message: 4}, 0},
		"send":      {header{kind: OpSend, message: 1 << 31}, 0},
		"send imm":  {header{kind: OpSendImm, imm: 1<<32 - 1, length: inlineMax, message: 7}, inlineMax},
		"largest":   {header{kind: OpSend, length: qp.MaxMessage, pieces: 1, message: 7}, 0},
	}
	for name, c := range good {
		b := append(c.h.appendTo(nil), make([]byte, c.payload)...)
		var h header
		payload, err := h.parse(b)
		if err != nil || h != c.h || len(payload) != c.payload {
			t.Errorf("%s: %+v, %d bytes of payload, %v", name, h, len(payload), err)
		}
	}
	bad := map[string]func(b []byte) []byte{
		"short":                  func(b []byte) []byte { return b[:headerLen-1] },
		"version":                func(b []byte) []byte { b[0] = 2; return b },
		"kind":                   func(b []byte) []byte { b[1] = 4; return b },
		"zeros":                  func(b []byte) []byte { b[26] = 1; return b },
		"immediate of a write":   func(b []byte) []byte { b[1] = 0; b[31] = 0; return b },
		"number of a write":      func(b []byte) []byte { b[1] = 0; clear(b[4:8]); return b },
		"region of a send":       func(b []byte) []byte { b[1] = byte(OpSendImm); clear(b[8:16]); return b },
		"offset of a send":       func(b []byte) []byte { b[1] = byte(OpSendImm); clear(b[2:4]); return b },
		"payload missing":        func(b []byte) []byte { return b[:len(b)-1] },
		"payload too much":       func(b []byte) []byte { return append(b, 1) },
		"payload and pieces":     func(b []byte) []byte { b[24] = 1; return b },
		"too long":               func(b []byte) []byte { b[19] = 1; b[24] = 1; return b[:headerLen] },
		"many pieces":            func(b []byte) []byte { b[24] = 17; return b[:headerLen] },
		"more pieces than bytes": func(b []byte) []byte { b[24] = 11; return b[:headerLen] },
	}
	h := header{kind: OpWriteImm, region: 1, offset: 5, imm: 9, length: 10, message: 4}
	for name, f := range bad {
		b := f(append(h.appendTo(nil), make([]byte, 10)...))
		if _, err := new(header).parse(b); !errors.Is(err, errNonsense) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := new(header).parse(append(h.appendTo(nil), make([]byte, 10)...)); err != nil {
		t.Error(err)
	}
}

// FuzzAssembler feeds an assembler with messages of any content: it may refuse them, but
// it must not panic, nor write outside of its regions and receives.
func FuzzAssembler(f *testing.F) {
	add := func(list ...any) {
		var in []byte
		for _, x := range list {
			var msg []byte
			switch x := x.(type) {
			case header:
				msg = x.appendTo(nil)
				if x.pieces == 0 {
					msg = append(msg, make([]byte, x.length)...)
				}
			case int:
				msg = make([]byte, x)
			}
			in = binary.BigEndian.AppendUint16(in, uint16(len(msg)))
			in = append(in, msg...)
		}
		f.Add(in)
	}
	add(header{kind: OpWrite, offset: 3, length: 10}, header{kind: OpSend, length: 5, message: 3}, header{kind: OpSendImm, imm: 1, length: 50, pieces: 2, message: 4}, 20, 30)
	add(header{kind: OpWriteImm, region: 1, imm: 2, length: 64, pieces: 3, message: 3}, 1, 62, 1, header{kind: OpWrite, region: 2})
	add(header{kind: OpSend, length: 100, pieces: 1, message: 3}, 100)
	f.Fuzz(func(t *testing.T, in []byte) {
		whole := bytes.Repeat([]byte{0xaa}, 300)
		receive := whole[200:250:250]
		a := assembler{regions: [][]byte{whole[10:110:110], whole[120:184:184]}, message: 2, have: 3,
			receive: func() ([]byte, error) { return receive, nil }}
		type begun struct{ buf, content []byte }
		var open []begun
		finish := func() bool {
			for _, o := range open {
				copy(o.buf, o.content)
				d, ok, err := a.complete(o.buf)
				if err != nil {
					return false
				}
				if ok && (!d.kind.message() || len(d.payload) > inlineMax || (d.kind.send() && d.length > uint64(len(receive)) && d.payload == nil)) {
					t.Fatalf("delivered %+v", d)
				}
			}
			open = open[:0]
			return true
		}
		for len(in) >= 2 {
			n := min(int(binary.BigEndian.Uint16(in)), len(in)-2)
			content := in[2 : 2+n]
			in = in[2+n:]
			small := n <= headerLen+inlineMax
			buf, err := a.begin(int64(n))
			if err != nil {
				break
			}
			if len(buf) != n {
				t.Fatalf("%d bytes of room for %d", len(buf), n)
			}
			open = append(open, begun{buf, content})
			if small && !finish() {
				break
			}
		}
		for i, b := range whole {
			inside := i >= 10 && i < 110 || i >= 120 && i < 184 || i >= 200 && i < 250
			if !inside && b != 0xaa {
				t.Fatalf("byte %d was written", i)
			}
		}
	})
}
