package nbd

import (
	"bytes"
	"encoding/binary"
	"errors"
	"testing"
	"testing/synctest"
	"unicode/utf8"
)

func FuzzRequest(f *testing.F) {
	f.Add(req(cmdRead, 0, 1, 0, 4096), int64(1<<20), uint8(9), uint8(0))
	f.Add(req(cmdWrite, flagFUA, 1, 1<<20-1, 2), int64(1<<20), uint8(0), uint8(1))
	f.Add(req(cmdBlockStatus, flagReqOne, 1, 0, -1), int64(1<<62), uint8(16), uint8(6))
	f.Add(req(cmdRead, flagDF, 1, -1, -1), int64(0), uint8(12), uint8(2))
	f.Fuzz(func(t *testing.T, b []byte, size int64, block, is uint8) {
		if len(b) < requestLen || size < 0 {
			return
		}
		r, err := parseRequest(b)
		if err != nil {
			var broken violation
			if !errors.As(err, &broken) || binary.BigEndian.Uint32(b) == requestMagic {
				t.Fatal(err)
			}
			return
		}
		if again := req(int(r.cmd), int(r.flags), r.cookie, int64(r.offset), int(r.length)); !bytes.Equal(again, b[:requestLen]) {
			t.Fatalf("%+v is % x", r, again)
		}
		l := limits{Info: Info{Size: size, MinBlock: 1 << (block % 17)}, structured: is&2 != 0,
			status: is&4 != 0}
		if r.weight() > MaxPayload {
			t.Fatalf("a weight of %d", r.weight())
		}
		if err := l.check(r); err != nil {
			if e := errnoOf(err); e == EIO || e == 0 {
				t.Fatalf("%v is no error of the protocol", err)
			}
			return
		}
		end := r.offset + uint64(r.length)
		if end < r.offset || end > uint64(size) || r.offset%uint64(l.MinBlock) != 0 || int(r.length)%l.MinBlock != 0 ||
			r.cmd == cmdRead && r.length > MaxPayload || r.cmd == cmdBlockStatus && !l.status || r.cmd > cmdBlockStatus {
			t.Fatalf("%+v within %+v", r, l)
		}
	})
}

func FuzzOption(f *testing.F) {
	f.Add(option(optGo)[:optionLen])
	f.Add([]byte("IHAVEOPUxxxxyyyy"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) < optionLen {
			return
		}
		kind, length, err := parseOption(b)
		if (err == nil) != (string(b[:8]) == "IHAVEOPT") {
			t.Fatal(err)
		}
		if err == nil && !bytes.Equal(b[8:16], join(be32(int(kind)), be32(int(length)))) {
			t.Fatal(kind, length)
		}
	})
}

func FuzzGo(f *testing.F) {
	f.Add(join(str("vol"), be16(2), be16(0), be16(3)))
	f.Add(join(str(""), be16(0)))
	f.Add(be32(-1))
	f.Fuzz(func(t *testing.T, b []byte) {
		name, infos, err := parseGo(b)
		if err != nil {
			return
		}
		again := join(str(name), be16(len(infos)))
		for _, i := range infos {
			again = join(again, be16(int(i)))
		}
		if !bytes.Equal(again, b) || !utf8.ValidString(name) || len(name) > maxName {
			t.Fatalf("%q and %d are % x", name, infos, again)
		}
	})
}

func FuzzMeta(f *testing.F) {
	f.Add(join(str("vol"), be32(1), str("base:allocation")), true)
	f.Add(join(str("vol"), be32(2), str("base:"), str("qemu:x")), false)
	f.Add(join(str("vol"), be32(-1)), true)
	f.Fuzz(func(t *testing.T, b []byte, list bool) {
		name, selected, err := parseMeta(b, list)
		if err != nil {
			return
		}
		if selected && !bytes.Contains(b, []byte("base:")) && !(list && len(b) == 4+len(name)+4) {
			t.Fatalf("%q selects", b)
		}
		if !bytes.HasPrefix(b, str(name)) {
			t.Fatalf("%q", name)
		}
	})
}

func FuzzExtents(f *testing.F) {
	f.Add(uint32(1<<20), uint16(0), []byte{1, 0, 2, 3, 3, 3, 0, 0, 9, 1})
	f.Add(uint32(1<<32-1), uint16(flagReqOne), []byte{255, 1, 255, 1})
	f.Fuzz(func(t *testing.T, length uint32, flags uint16, kinds []byte) {
		var extents []Extent
		for i := 0; i+1 < len(kinds); i += 2 {
			extents = append(extents, Extent{int64(int8(kinds[i])) << 24, kinds[i+1]&1 != 0, kinds[i+1]&2 != 0})
		}
		r := request{cmd: cmdBlockStatus, flags: flags, cookie: 5, length: length}
		b := appendExtents([]byte("before"), r, extents)
		if string(b[:6]) != "before" {
			t.Fatal("what was before has changed")
		}
		if b = b[6:]; len(b) == 0 {
			if length > 0 && len(extents) > 0 && extents[0].Length > 0 {
				t.Fatalf("%v of %d bytes: no answer", extents, length)
			}
			return
		}
		list := b[chunkLen+4:]
		if binary.BigEndian.Uint32(b[16:]) != uint32(4+len(list)) || len(list)%8 != 0 || len(list) == 0 || len(list) > 8*maxExtents {
			t.Fatalf("% x", b)
		}
		sum, last := uint64(0), uint32(99)
		for ; len(list) > 0; list = list[8:] {
			n, state := binary.BigEndian.Uint32(list), binary.BigEndian.Uint32(list[4:])
			if n == 0 || state == last {
				t.Fatalf("% x", b)
			}
			sum, last = sum+uint64(n), state
		}
		if sum > uint64(length) || flags&flagReqOne != 0 && len(b) != chunkLen+12 {
			t.Fatalf("%d bytes of %d: % x", sum, length, b)
		}
	})
}

// FuzzConversation: for any data from a client, the server neither panics nor hangs.
func FuzzConversation(f *testing.F) {
	f.Add(conversation())
	f.Add(join(be32(0), option(optExportName, []byte("vol")), req(cmdRead, 0, 1, 0, 10)))
	f.Fuzz(func(t *testing.T, words []byte) {
		synctest.Test(t, func(t *testing.T) {
			l := newPipes()
			m := newMemory(Info{Name: "vol", Size: 1 << 16})
			s := start(t, only(m), l)
			say(l, words, false, nil)
			if err := s.Shutdown(t.Context()); err != nil || !m.unused() {
				t.Fatalf("%v, buffers given back: %v", err, m.unused())
			}
		})
	})
}
