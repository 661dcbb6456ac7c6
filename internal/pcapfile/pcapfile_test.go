package pcapfile

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// capture returns a capture with two frames, the second one cut off.
func capture(order binary.AppendByteOrder, magic, linkType uint32, frac uint32) []byte {
	b := order.AppendUint32(nil, magic)
	b = order.AppendUint16(b, 2)
	b = order.AppendUint16(b, 4)
	for _, v := range []uint32{0, 0, 65535, linkType, 1000, frac, 3, 3} {
		b = order.AppendUint32(b, v)
	}
	b = append(b, "abc"...)
	for _, v := range []uint32{1001, 0, 2, 60} {
		b = order.AppendUint32(b, v)
	}
	return append(b, "de"...)
}

func TestByteOrdersAndUnits(t *testing.T) {
	for _, c := range []struct {
		order binary.AppendByteOrder
		magic uint32
		ns    int64
	}{
		{binary.LittleEndian, 0xa1b2c3d4, 5000}, {binary.BigEndian, 0xa1b2c3d4, 5000},
		{binary.LittleEndian, 0xa1b23c4d, 5}, {binary.BigEndian, 0xa1b23c4d, 5},
	} {
		got, err := read(bytes.NewReader(capture(c.order, c.magic, 1, 5)))
		want := []Frame{
			{Time: time.Unix(1000, c.ns).UTC(), Data: []byte("abc"), Len: 3},
			{Time: time.Unix(1001, 0).UTC(), Data: []byte("de"), Len: 60},
		}
		if diff := cmp.Diff(want, got); diff != "" || err != nil {
			t.Errorf("%v, magic %#x: %v (-want +got):\n%s", c.order, c.magic, err, diff)
		}
	}
}

func TestCutOff(t *testing.T) {
	whole := capture(binary.LittleEndian, 0xa1b2c3d4, 1, 0)
	for n := range whole {
		_, err := read(bytes.NewReader(whole[:n]))
		if atFrame := n == 24 || n == 24+16+3; atFrame && err != nil || !atFrame && !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("cut off after %d bytes: %v", n, err)
		}
	}
}

func TestNoCapture(t *testing.T) {
	longer := capture(binary.BigEndian, 0xa1b2c3d4, 1, 0)
	longer[24+15]-- // the length on the wire
	for name, b := range map[string][]byte{
		"cooked": capture(binary.BigEndian, 0xa1b2c3d4, 113, 0), "pcapng": capture(binary.LittleEndian, 0x0a0d0d0a, 1, 0), "longer": longer,
	} {
		name := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(name, b, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := (&Tail{Name: name}).Read(); !errors.Is(err, ErrFormat) {
			t.Errorf("%s: %v, want ErrFormat", name, err)
		}
	}
}

// TestTail: a file that grows by any part of a frame is read as a whole, and each frame once.
func TestTail(t *testing.T) {
	one := capture(binary.LittleEndian, 0xa1b2c3d4, 1, 5)
	whole := slices.Concat(one, one[headerLen:], one[headerLen:])
	name := filepath.Join(t.TempDir(), "x.pcap")
	tail := Tail{Name: name}
	if _, err := tail.Read(); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
	var got []Frame
	counts := map[int]int{}
	for n := range len(whole) + 1 {
		if err := os.WriteFile(name, whole[:n], 0o600); err != nil {
			t.Fatal(err)
		}
		frames, err := tail.Read()
		if err != nil {
			t.Fatalf("%d bytes: %v", n, err)
		}
		got = append(got, frames...)
		counts[len(frames)]++
	}
	want, err := read(bytes.NewReader(whole))
	if diff := cmp.Diff(want, got); diff != "" || err != nil || counts[1] != 6 || counts[0] != len(whole)-5 {
		t.Errorf("%v, %v (-want +got):\n%s", err, counts, diff)
	}
	if err := os.WriteFile(name, one, 0o600); err != nil { // the switch was started again
		t.Fatal(err)
	}
	if frames, err := tail.Read(); err != nil || len(frames) != 2 {
		t.Errorf("another file: %d frames, %v", len(frames), err)
	}
}

func FuzzRead(f *testing.F) {
	f.Add(capture(binary.LittleEndian, 0xa1b2c3d4, 1, 1))
	f.Add(capture(binary.BigEndian, 0xa1b23c4d, 1, 1))
	f.Fuzz(func(t *testing.T, b []byte) {
		frames, _ := read(bytes.NewReader(b))
		for _, f := range frames {
			if len(f.Data) > f.Len {
				t.Fatalf("a frame of %d has %d bytes", f.Len, len(f.Data))
			}
		}
	})
}
