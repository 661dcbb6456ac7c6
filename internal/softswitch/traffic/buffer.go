package traffic

import (
	"cmp"
	"fmt"
)

// Sizes of a Memory where nothing else is said.
const (
	DefaultShared  = 12 << 20
	DefaultReserve = 10 << 10 // any frame
)

// Memory describes a switch's packet memory, as switches with a shared buffer have
// it: each queue has some bytes of its own, and what it holds beyond them is taken
// from those that all share. How much of these one queue may hold depends on how
// many are free, so that a few busy queues get much and many busy queues leave some
// for others.
type Memory struct {
	Shared  int // bytes for all queues together; 0 means DefaultShared
	Reserve int // bytes for each queue besides; 0 means DefaultReserve
	// Shift is how much one queue may hold of the shared bytes: as many as are
	// free, divided by 2^Shift. With 0, one busy queue gets half of them, and of
	// n busy ones each gets 1/(n+1).
	Shift int
}

// MaxShared is the largest Memory.Shared and Memory.Reserve.
const MaxShared = 1 << 40

// Check reports a memory that cannot be. The error wraps ErrInvalid.
func (m Memory) Check() error {
	if m.Shared < 0 || m.Shared > MaxShared || m.Reserve < 0 || m.Reserve > MaxShared || m.Shift < 0 || m.Shift > 40 {
		return fmt.Errorf("traffic: %w: a memory of %d shared bytes, %d for each queue and a shift of %d; want 0 to %d bytes and a shift of 0 to 40",
			ErrInvalid, m.Shared, m.Reserve, m.Shift, int64(MaxShared))
	}
	return nil
}

func (m Memory) withDefaults() Memory {
	return Memory{cmp.Or(m.Shared, DefaultShared), cmp.Or(m.Reserve, DefaultReserve), m.Shift}
}

// A Buffer is the packet memory that the queues of a switch share. It counts bytes;
// the packets are elsewhere.
type Buffer struct {
	size Memory
	used int // of the shared bytes
}

// NewBuffer returns an empty Buffer. The error wraps ErrInvalid.
func NewBuffer(m Memory) (*Buffer, error) {
	if err := m.Check(); err != nil {
		return nil, err
	}
	return &Buffer{size: m.withDefaults()}, nil
}

// Free returns how many of the shared bytes are free.
func (b *Buffer) Free() int { return b.size.Shared - b.used }

// An account is what one holder has in a Buffer. Each queue has one. A switch with
// priority flow control would charge a second one for each packet, of its ingress
// port and class, and pause the sender when take refuses that.
type account struct{ bytes int }

// take charges an account with n bytes, if it may hold that much.
func (b *Buffer) take(a *account, n int) bool {
	had, has := b.borrowed(a.bytes), b.borrowed(a.bytes+n)
	if has > b.Free()>>b.size.Shift {
		return false
	}
	a.bytes += n
	b.used += has - had
	return true
}

// give returns n bytes of an account.
func (b *Buffer) give(a *account, n int) {
	b.used -= b.borrowed(a.bytes) - b.borrowed(a.bytes-n)
	a.bytes -= n
}

// borrowed is how many shared bytes an account of that size holds.
func (b *Buffer) borrowed(bytes int) int { return max(0, bytes-b.size.Reserve) }
