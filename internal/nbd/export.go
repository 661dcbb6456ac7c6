// Package nbd serves block devices to NBD clients: kernels, QEMU, libnbd, fio. It implements the
// server side of the protocol and no storage: it serves Exports. A Device is the client side, for
// benchmarks.
//
// It supports the fixed newstyle handshake, STARTTLS, simple and structured replies, READ, WRITE,
// FLUSH, TRIM, WRITE_ZEROES, BLOCK_STATUS (base:allocation) and DISC. It has no CACHE, because it
// has no cache, and no hole chunks in replies to READ: clients use BLOCK_STATUS instead.
//
// Source: doc/proto.md of github.com/NetworkBlockDevice/nbd (89ba7b5), "the protocol" below.
package nbd

import (
	"context"
)

// An Export is a block device. Its methods may be called concurrently, by all connections. They
// return soon after ctx ends, which happens when the client disconnects. Then, as after any other
// error of a write, all, some or none of it may have been written.
//
// All offsets, lengths and sizes are in bytes. The server has checked that a range lies in
// the export, is not empty and consists of whole blocks of Info.MinBlock.
//
// The server sets CAN_MULTI_CONN: clients may use several connections. Therefore:
//   - after a Write, Trim or WriteZeroes has completed with nil, every later ReadAt of any
//     connection reads its data, even if the writing connection has ended;
//   - a Flush that completes with nil has made durable all writes, of all connections, that had
//     completed with nil before the Flush began. A write with fua is durable when it completes with
//     nil.
//
// Write and Flush do not block: they call done once with the result, perhaps before they return.
// Any goroutine may call done, and done does not block.
//
// Overlapping writes in flight may take effect in either order, and the order may differ from byte
// to byte.
//
// An error is or wraps an Errno, or is mapped as described there.
type Export interface {
	// Info describes the export. It does not change while the export is open.
	Info() Info
	// Done is closed when the export is deleted or its Info changes. The server then ends its
	// connections as Shutdown does.
	Done() <-chan struct{}
	// ReadAt fills p, or returns an error.
	ReadAt(ctx context.Context, p []byte, off int64) error
	// Buffer returns memory for the next bytes of a write that has n more: at least one and at most
	// n bytes, in whole blocks of MinBlock. The server reads from the socket directly into it. A
	// write that gets less than n becomes several Writes. Buffer waits until memory is free.
	Buffer(ctx context.Context, n int) (Buffer, error)
	// Scarce reports whether someone waits for a Buffer. Clients that stop in the middle of a payload
	// do not keep theirs for long then.
	Scarce() bool
	// Write writes all bytes of b. It takes ownership of the buffer, also when it fails.
	Write(ctx context.Context, b Buffer, off int64, fua bool, done func(error))
	// Flush makes completed writes durable, as described above.
	Flush(ctx context.Context, done func(error))
	// Trim marks the range as unused. Reads of it return undefined data.
	Trim(ctx context.Context, off, n int64, fua bool) error
	// WriteZeroes makes the range read as zeros.
	WriteZeroes(ctx context.Context, off, n int64, how Zeroes) error
	// Extents describes the range from off, in order and without gaps, by at least one and at most
	// limit extents. They may cover only the beginning of the range.
	Extents(ctx context.Context, off, n int64, limit int) ([]Extent, error)
}

// A Buffer is memory of an Export. It is passed to Write or released, exactly once.
type Buffer interface {
	Bytes() []byte
	Release()
}

// Zeroes are the options of WriteZeroes.
type Zeroes struct {
	FUA    bool // durable on completion
	NoHole bool // keep space allocated, so that a later write does not fail with ENOSPC
	Fast   bool // fail with ENOTSUP at once, unless it is faster than writing zeros
}

// An Extent is a part of an export.
type Extent struct {
	Length int64
	Hole   bool // no space is allocated
	Zero   bool // reads as zeros
}

// Info describes an export.
type Info struct {
	Name        string // at most 4096 bytes of UTF-8
	Description string // one line for people; may be empty
	Size        int64  // a multiple of MinBlock
	// MinBlock is the unit of offsets and lengths: a power of two, at most 64 KiB. 0 means 1.
	MinBlock int
}
