package traffic

import (
	"cmp"
	"fmt"
)

// Default sizes of a Memory.
const (
	DefaultShared  = 12 << 20
	DefaultReserve = 10 << 10 // any frame
)

// Memory configures a switch's packet memory, modeled on switches with a shared buffer: each queue
// has some reserved bytes, and beyond them uses bytes shared by all: at most as many as are still
// free. So one busy queue gets half of them, and each of n busy ones gets 1/(n+1).
type Memory struct {
	Shared  int // bytes shared by all queues; 0 means DefaultShared
	Reserve int // additional bytes for each queue; 0 means DefaultReserve
}

// MaxShared is the largest Memory.Shared and Memory.Reserve.
const MaxShared = 1 << 40

// A Buffer is the packet memory that the queues of a switch share. It only counts bytes; it does
// not hold packets.
type Buffer struct {
	size Memory
	used int // of the shared bytes
}

// NewBuffer returns an empty Buffer. The error wraps ErrInvalid.
func NewBuffer(m Memory) (*Buffer, error) {
	if m.Shared < 0 || m.Shared > MaxShared || m.Reserve < 0 || m.Reserve > MaxShared {
		return nil, fmt.Errorf("traffic: %w: a memory of %d shared bytes and %d for each queue; want 0 to %d bytes", ErrInvalid, m.Shared, m.Reserve, int64(MaxShared))
	}
	return &Buffer{size: Memory{cmp.Or(m.Shared, DefaultShared), cmp.Or(m.Reserve, DefaultReserve)}}, nil
}

// Free returns the number of free shared bytes.
func (b *Buffer) Free() int { return b.size.Shared - b.used }

// An account is the bytes that one holder has in a Buffer. Each queue has one. A switch with
// priority flow control would also charge each packet to the account of its ingress port and class,
// and pause the sender when take fails for it.
type account struct{ bytes int }

// take charges n bytes to an account, and returns false if that exceeds its limit.
func (b *Buffer) take(a *account, n int) bool {
	had, has := b.borrowed(a.bytes), b.borrowed(a.bytes+n)
	if has > b.Free() {
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

// borrowed returns the shared bytes held by an account of that size.
func (b *Buffer) borrowed(bytes int) int { return max(0, bytes-b.size.Reserve) }
