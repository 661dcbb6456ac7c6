// Package nbd serves block devices to NBD clients: kernels, QEMU, libnbd, fio. It holds the
// server's half of the protocol and no storage; what it serves are Exports. A Device is the client's half, for
// programs that measure.
//
// It speaks the fixed newstyle handshake, TLS by STARTTLS, simple and structured replies,
// READ, WRITE, FLUSH, TRIM, WRITE_ZEROES, BLOCK_STATUS (base:allocation) and DISC. It offers
// neither CACHE, as it has no cache, nor holes in answers to READ: a client that wants to
// know them asks by BLOCK_STATUS.
//
// Source: doc/proto.md of github.com/NetworkBlockDevice/nbd (89ba7b5), "the protocol" below.
package nbd

import (
	"context"
)

// An Export is a block device. Its methods may be called at the same time, by all
// connections. They end soon after ctx has ended, which happens when the client has gone.
// Then, as after any other error of a write, all, part or nothing may have been written.
//
// All offsets, lengths and sizes are in bytes. The server has checked that a range lies in
// the export, is not empty and consists of whole blocks of Info.MinBlock, and that an export
// that is written to is not ReadOnly.
//
// The server tells all clients that they may use several connections (CAN_MULTI_CONN).
// Therefore:
//   - what a Write, Trim or WriteZeroes that ended with nil has written, every later ReadAt of
//     any connection reads, wherever the connection ends;
//   - a Flush that ended with nil has made durable all that had ended with nil before the Flush
//     began, of all connections. A write with fua is durable when it ends with nil.
//
// Write and Flush do not wait: they call done once, with how they have ended, perhaps before they return. Any
// goroutine may call it; it waits for nothing.
//
// Writes that overlap while both are under way may take effect in either order, in each part
// of a request apart.
//
// An error is an Errno or wraps one; see there for others.
type Export interface {
	// Info describes the export. It does not change while the export is open.
	Info() Info
	// Done is closed when the export is no more: deleted, or changed in what Info says. The
	// server then ends its connections as Shutdown does.
	Done() <-chan struct{}
	// ReadAt fills p, or returns an error.
	ReadAt(ctx context.Context, p []byte, off int64) error
	// Buffer returns memory for the next bytes of a write that has n more: at least one and
	// at most n bytes, in whole blocks of MinBlock. The server reads the socket straight into
	// it. A write that gets less than n becomes several Writes. Buffer waits for memory.
	Buffer(ctx context.Context, n int) (Buffer, error)
	// Write writes all bytes of b. It takes the buffer, also when it fails.
	Write(ctx context.Context, b Buffer, off int64, fua bool, done func(error))
	// Flush makes durable what is described above.
	Flush(ctx context.Context, done func(error))
	// Trim says that the range is not needed. What it reads as is not defined.
	Trim(ctx context.Context, off, n int64, fua bool) error
	// WriteZeroes makes the range read as zeros.
	WriteZeroes(ctx context.Context, off, n int64, how Zeroes) error
	// Extents describes the range from off on, in order and without gaps: at least one extent,
	// at most limit, all of the range or a first part of it.
	Extents(ctx context.Context, off, n int64, limit int) ([]Extent, error)
}

// A Buffer is memory of an Export. It is given to Write or released, once.
type Buffer interface {
	Bytes() []byte
	Release()
}

// Zeroes is how zeros are to be written.
type Zeroes struct {
	FUA    bool // durable when it returns
	NoHole bool // keeps the space, so that a later write does not fail for lack of it
	Fast   bool // fail with ENOTSUP at once, unless it is faster than writing that many zeros
}

// An Extent is a part of an export.
type Extent struct {
	Length int64
	Hole   bool // has no space of its own
	Zero   bool // reads as zeros
}

// Info describes an export.
type Info struct {
	Name        string // at most 4096 bytes of UTF-8
	Description string // one line for people; may be empty
	Size        int64  // a multiple of MinBlock
	// MinBlock is what offsets and lengths are multiples of; a power of two, at most 64 KiB.
	// 0 is 1.
	MinBlock int
	// PreferredBlock is the length from which on aligned requests are efficient; a power of
	// two, at least 512 and MinBlock. 0 is 4096, or MinBlock if that is more.
	PreferredBlock int
	// MaxPayload is the longest READ and WRITE. 0 is 32 MiB, which is the most, and which
	// clients expect that do not ask. A client that sends more gets an error.
	MaxPayload int
	ReadOnly   bool
}
