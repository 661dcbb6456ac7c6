package mcrdma

import (
	"bytes"
	"errors"
	"testing"
)

// TestAssembler: messages that can't follow are refused where they begin, and nothing is
// delivered of them.
func TestAssembler(t *testing.T) {
	type step struct {
		header *header // nil: a piece
		size   int
		want   error // of begin or complete; nil: none
		ok     bool  // it is delivered
	}
	send := func(message uint32, length uint64, pieces uint8) *header {
		return &header{kind: OpSend, message: message, length: length, pieces: pieces}
	}
	for name, steps := range map[string][]step{
		"inline":              {{send(8, 10, 0), 0, nil, true}, {send(9, 0, 0), 0, nil, true}},
		"pieces":              {{send(8, 30, 2), 0, nil, false}, {nil, 10, nil, false}, {nil, 20, nil, true}},
		"number left out":     {{send(9, 10, 0), 0, errNonsense, false}},
		"number twice":        {{send(8, 10, 0), 0, nil, true}, {send(8, 10, 0), 0, errNonsense, false}},
		"number of pieces":    {{send(9, 30, 1), 0, errNonsense, false}},
		"empty piece":         {{send(8, 30, 2), 0, nil, false}, {nil, 0, errNonsense, false}},
		"piece too long":      {{send(8, 30, 2), 0, nil, false}, {nil, 31, errNonsense, false}},
		"first has all":       {{send(8, 30, 2), 0, nil, false}, {nil, 30, errNonsense, false}},
		"last has too few":    {{send(8, 30, 2), 0, nil, false}, {nil, 10, nil, false}, {nil, 19, errNonsense, false}},
		"last has too much":   {{send(8, 30, 2), 0, nil, false}, {nil, 10, nil, false}, {nil, 21, errNonsense, false}},
		"header too long":     {{nil, headerLen + inlineMax + 1, errNonsense, false}},
		"longer than receive": {{send(8, 101, 1), 0, nil, false}, {nil, 101, ErrInvalid, false}},
		"no such region":      {{&header{kind: OpWrite, region: 1, length: 1}, 0, errNonsense, false}},
		"outside":             {{&header{kind: OpWrite, offset: 95, length: 6}, 0, ErrInvalid, false}},
		"outside in pieces":   {{&header{kind: OpWrite, offset: 1 << 63, length: 6, pieces: 1}, 0, ErrInvalid, false}},
		"write":               {{&header{kind: OpWrite, offset: 94, length: 6}, 0, nil, false}},
		"write in pieces":     {{&header{kind: OpWrite, length: 100, pieces: 2}, 0, nil, false}, {nil, 1, nil, false}, {nil, 99, nil, false}},
		"write imm":           {{&header{kind: OpWriteImm, imm: 1, length: 100, pieces: 1, message: 8}, 0, nil, false}, {nil, 100, nil, true}},
	} {
		region, receive := make([]byte, 100), make([]byte, 100)
		a := assembler{regions: [][]byte{region}, message: 7, have: 7, receive: func() ([]byte, error) { return receive, nil }}
		for i, s := range steps {
			content := make([]byte, s.size)
			if s.header != nil {
				content = s.header.appendTo(nil)
				if s.header.pieces == 0 {
					content = append(content, bytes.Repeat([]byte{1}, int(s.header.length))...)
				}
			}
			buf, err := a.begin(int64(len(content)))
			var ok bool
			if err == nil {
				copy(buf, content)
				_, ok, err = a.complete(buf)
			}
			if !errors.Is(err, s.want) || ok != s.ok {
				t.Errorf("%s: step %d: delivered %v, %v", name, i, ok, err)
			}
		}
	}
}

// TestAssemblerAgain: messages that the receiver has go nowhere, and wait for nothing.
func TestAssemblerAgain(t *testing.T) {
	a := assembler{regions: [][]byte{make([]byte, 100)}, message: 7, have: 10, receive: func() ([]byte, error) {
		t.Error("a receive was asked for")
		return nil, errNonsense
	}}
	for _, h := range []header{
		{kind: OpSend, message: 8, length: 50},
		{kind: OpSendImm, imm: 3, message: 9, length: 50, pieces: 1},
		{kind: OpWriteImm, message: 10, length: 50, pieces: 1},
	} {
		msg := h.appendTo(nil)
		if h.pieces == 0 {
			msg = append(msg, make([]byte, h.length)...)
		}
		msgs := [][]byte{msg}
		if h.pieces > 0 {
			msgs = append(msgs, make([]byte, h.length))
		}
		for _, msg := range msgs {
			buf, err := a.begin(int64(len(msg)))
			if err != nil {
				t.Fatal(err)
			}
			copy(buf, msg)
			if _, ok, err := a.complete(buf); ok || err != nil {
				t.Errorf("message %d: delivered %v, %v", h.message, ok, err)
			}
		}
	}
}
