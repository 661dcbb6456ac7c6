package main

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
)

// maxServed is the largest region that a receiver grants, in bytes.
const maxServed = 1 << 30

// A layout is the layout of writes in a receiver's region: in slots, one after another, and around
// again. With checks each write consumes a receive, and the receiver posts it again when it has
// verified the write. So at most receives+depth writes after an unverified one can have begun, and
// with more slots than that none of them uses its slot. The region's last byte is for writes that
// end a check.
type layout struct {
	check                 bool
	size, slots, receives int
}

func layoutOf(size, depth int, check bool) layout {
	if !check {
		return layout{size: size, slots: depth}
	}
	return layout{check: true, size: size, slots: 2*depth + 1, receives: depth}
}

// length returns the length of the region.
func (l layout) length() int { return l.size*l.slots + 1 }

// offset returns the offset of a write.
func (l layout) offset(seq uint32) int { return int(uint64(seq)%uint64(l.slots)) * l.size }

const layoutForm = "mcbench size=%d slots=%d receives=%d check=%t"

// String returns the region's name, from which the receiver knows the layout.
func (l layout) String() string { return fmt.Sprintf(layoutForm, l.size, l.slots, l.receives, l.check) }

// parseLayout parses a region's name. It must match the region's length.
func parseLayout(name string, length uint64) (l layout, err error) {
	if length > maxServed {
		return l, fmt.Errorf("mcbench gives regions of up to %d bytes, and %d are asked for", maxServed, length)
	}
	if _, err := fmt.Sscanf(name, layoutForm, &l.size, &l.slots, &l.receives, &l.check); err != nil || l.String() != name {
		return l, fmt.Errorf("the sender is not mcbench of this version: its region is called %q", name)
	}
	if l.size < 1 || l.size > maxServed || l.slots < 1 || l.slots > maxServed || uint64(l.length()) != length || l.receives < 0 || l.receives > l.slots {
		return l, fmt.Errorf("the sender's region of %d bytes is none of %q", length, name)
	}
	return l, nil
}

const (
	shifts = 4096 // different contents
	stride = 97   // odd, so that all of them occur
	seed   = 0x6d637264
	last   = 1<<32 - 1 // immediate of writes that end a check
)

// pattern returns the source of writes of up to size bytes.
func pattern(size int) []byte {
	var key [32]byte
	binary.LittleEndian.PutUint64(key[:], seed)
	b := make([]byte, size+shifts)
	_, _ = rand.NewChaCha8(key).Read(b) // it returns no error
	return b
}

// shift returns where in the pattern the content of a write begins. Consecutive writes to the same
// slot differ, and so do writes to adjacent slots.
func shift(seq uint32) int { return int(seq % shifts * stride % shifts) }

// verify checks the content of a write.
func (l layout) verify(region, pattern []byte, seq uint32) error {
	off := l.offset(seq)
	got, want := region[off:off+l.size], pattern[shift(seq):][:l.size]
	if bytes.Equal(got, want) {
		return nil
	}
	for i := range got {
		if got[i] != want[i] {
			return fmt.Errorf("write %d: byte %d of %d is 0x%02x, and 0x%02x was sent", seq, i, l.size, got[i], want[i])
		}
	}
	return nil
}
