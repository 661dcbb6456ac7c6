package pcapng

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
)

// A block as the test's own reader finds it: it knows nothing of the writer.
type block struct {
	kind    uint32
	body    []byte
	options map[uint16]string
}

// read takes a file apart, by the letter of the format.
func read(file []byte) (blocks []block, err error) {
	le := binary.LittleEndian
	for len(file) > 0 {
		if len(file) < 12 {
			return nil, fmt.Errorf("%d bytes are left over", len(file))
		}
		kind, n := le.Uint32(file), le.Uint32(file[4:])
		if n%4 != 0 || n < 12 || int(n) > len(file) || le.Uint32(file[n-4:]) != n {
			return nil, fmt.Errorf("block %d of type %#x: length %d, at the end %d", len(blocks), kind, n, le.Uint32(file[n-4:]))
		}
		body := file[8 : n-4]
		fixed := map[uint32]int{0x0a0d0d0a: 16, 1: 8, 6: 20}[kind]
		if kind == 6 {
			fixed += (int(le.Uint32(body[12:])) + 3) / 4 * 4
		}
		b := block{kind, body, map[uint16]string{}}
		for rest := body[fixed:]; ; {
			code, size := le.Uint16(rest), int(le.Uint16(rest[2:]))
			if code == 0 {
				if size != 0 || len(rest) != 4 {
					return nil, fmt.Errorf("%d bytes behind the options", len(rest)-4)
				}
				break
			}
			b.options[code] = string(rest[4 : 4+size])
			rest = rest[4+(size+3)/4*4:]
		}
		blocks, file = append(blocks, b), file[n:]
	}
	return blocks, nil
}

// TestWriter: what is written is read again, by a reader of its own.
func TestWriter(t *testing.T) {
	var file bytes.Buffer
	w, err := NewWriter(&file, Section{Program: "prog", Comment: "all"})
	must(t, err)
	for i, name := range []string{"torA port 1", "x"} {
		if id, err := w.Interface(Interface{Name: name, Description: "d" + name}); err != nil || id != i {
			t.Fatal(id, err)
		}
	}
	at := time.Unix(1<<31+5, 123456789)
	frames := [][]byte{{}, {1}, []byte("four"), bytes.Repeat([]byte{7}, 1501)}
	for i, f := range frames {
		must(t, w.Packet(Packet{Interface: i % 2, Time: at.Add(time.Duration(i)), Direction: Direction(i % 3), Data: f, Comment: strings.Repeat("é", i)}))
	}
	long := strings.Repeat("€", 30000)
	must(t, w.Packet(Packet{Time: at, Comment: long}))
	must(t, w.Packet(Packet{Time: at, Comment: "bad\xff"}))
	blocks, err := read(file.Bytes())
	must(t, err)
	if len(blocks) != 3+len(frames)+2 {
		t.Fatalf("%d blocks", len(blocks))
	}
	le := binary.LittleEndian
	if b := blocks[0]; b.kind != 0x0a0d0d0a || le.Uint32(b.body) != 0x1a2b3c4d || le.Uint16(b.body[4:]) != 1 || le.Uint16(b.body[6:]) != 0 || b.options[4] != "prog" || b.options[1] != "all" {
		t.Errorf("section %+v", b)
	}
	if b := blocks[2]; b.kind != 1 || le.Uint16(b.body) != 1 || b.options[2] != "x" || b.options[3] != "dx" || b.options[9] != "\x09" {
		t.Errorf("interface %+v", b)
	}
	for i, f := range frames {
		b := blocks[3+i]
		ns := uint64(le.Uint32(b.body[4:]))<<32 | uint64(le.Uint32(b.body[8:]))
		got := b.body[20 : 20+le.Uint32(b.body[12:])]
		if b.kind != 6 || int(le.Uint32(b.body)) != i%2 || ns != uint64(at.UnixNano())+uint64(i) || !bytes.Equal(got, f) || int(le.Uint32(b.body[16:])) != len(f) {
			t.Errorf("packet %d: %+v", i, b)
		}
		if flags := b.options[2]; b.options[1] != strings.Repeat("é", i) || i%3 == 0 && flags != "" || i%3 != 0 && flags != string([]byte{byte(i % 3), 0, 0, 0}) {
			t.Errorf("packet %d has options %v", i, b.options)
		}
	}
	if c := blocks[7].options[1]; len(c) != 65535/3*3 || !strings.HasPrefix(long, c) {
		t.Errorf("a long comment has %d bytes", len(c))
	}
	if c := blocks[8].options[1]; c != "bad\uFFFD" {
		t.Errorf("a comment that is no UTF-8: %q", c)
	}
	for _, id := range []int{-1, 2} {
		if err := w.Packet(Packet{Interface: id}); !errors.Is(err, ErrInterface) {
			t.Errorf("interface %d: %v", id, err)
		}
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
