package wal

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"testing"

	"github.com/mcrdma/mcrdma/pkg/replica/core"
)

func crcOf(b []byte) []byte {
	return binary.LittleEndian.AppendUint32(nil, crc32.Checksum(b, castagnoli))
}

// FuzzParseHeader: what is parsed is what would be written, and all else is refused.
func FuzzParseHeader(f *testing.F) {
	for _, e := range []Entry{
		{Version: core.Version{Epoch: 1, Index: 1}, Kind: Data, Length: 4, Data: []byte("data")},
		{Version: core.Version{Epoch: 1 << 60, Index: 1 << 60}, Kind: Trim, Offset: 1 << 50, Length: 1 << 50, Session: 1, Seq: 2},
		{Version: core.Version{Epoch: 1, Index: 1}, Kind: Zero, Length: 1},
		{Kind: kindTrim},
	} {
		f.Add(e.AppendHeader(nil), e.Data, true)
	}
	f.Add([]byte{}, []byte{}, false)
	f.Fuzz(func(t *testing.T, b, data []byte, seal bool) {
		if seal && len(b) >= HeaderSize { // so that the fuzzer comes past the CRC
			clear(b[8:12])
			copy(b[8:], crcOf(b[:HeaderSize]))
		}
		e, err := ParseHeader(b)
		if err != nil {
			if !errors.Is(err, ErrDamaged) && !errors.Is(err, ErrFormat) && !errors.Is(err, ErrInvalid) {
				t.Fatal(err)
			}
			return
		}
		if got := e.AppendHeader(nil); !bytes.Equal(got, b[:HeaderSize]) {
			t.Fatalf("%x parsed, %x written", b[:HeaderSize], got)
		}
		if e.DataLen() < 0 || e.DataLen() > MaxData {
			t.Fatalf("%d bytes of data", e.DataLen())
		}
		if err := e.SetData(data); err == nil && (len(data) != e.DataLen() || !bytes.Equal(crcOf(data), b[12:16])) {
			t.Fatal("data taken that is not the entry's")
		}
	})
}

// FuzzSegments changes bytes of a log's files, and cuts the last one: it is refused, or holds what it held at
// some time, and never anything else.
func FuzzSegments(f *testing.F) {
	disk, states := sample(f)
	files := disk.files()
	f.Add([]byte{}, uint16(0))
	f.Add([]byte{0, 0, 0, 1}, uint16(0))
	f.Add([]byte{2, 4, 0, 1, 2, 4, 1, 255}, uint16(100))
	f.Fuzz(func(t *testing.T, edits []byte, cut uint16) {
		changed := disk.with(files)
		all := changed.files()
		for ; len(edits) >= 4; edits = edits[4:] {
			b := all[int(edits[0])%len(all)]
			b[int(binary.LittleEndian.Uint16(edits[1:]))%len(b)] ^= edits[3]
		}
		last := &all[len(all)-1]
		*last = (*last)[:len(*last)-int(cut)%(len(*last)+1)]
		l, err := open(disk.with(all), 7, Options{})
		if err != nil {
			if !ours(err) && !errors.Is(err, ErrForeign) {
				t.Fatal(err)
			}
			return
		}
		for i := range states {
			if err = states[i].compare(l); err == nil {
				return
			}
		}
		t.Fatal(err)
	})
}
