package nbd

import (
	"context"
	"math/bits"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"
)

// shortStall is the StallTime while little memory is free, so that a client that reads its replies
// slowly, or stops in a payload, does not block others.
const shortStall = 5 * time.Second

// shortRead is the longest READ of those with memory of their own.
const shortRead = 128 << 10

// A pool is the memory for replies to READ, of all connections of a server. It bounds the memory
// that clients occupy by not reading their replies, and counts whole buffers, which may be longer
// than the data. Requests for memory are served in order, so that a long READ does not starve.
// Short ones have memory of their own, so that they do not wait for clients that leave long replies.
// Nor do they wait for clients that leave short ones: each connection has room for one more.
type pool struct{ short, long *semaphore.Weighted }

func newPool(bytes int) *pool {
	return &pool{semaphore.NewWeighted(int64(bytes / 4)), semaphore.NewWeighted(int64(bytes))}
}

// maxUnsent is how much of it one connection may have, unless a single reply is longer, and of short
// replies a quarter.
const maxUnsent = 8 << 20

// share is what the replies of one connection may take.
type share struct {
	unsent *semaphore.Weighted // maxUnsent
	last   *semaphore.Weighted // shortRead: beside the pool, when that has no more for short replies
}

func newShare() share {
	return share{semaphore.NewWeighted(maxUnsent), semaphore.NewWeighted(shortRead)}
}

// buffer waits for memory for n bytes of data, which counts in the connection's share, too, until it
// is released.
func (p *pool) buffer(ctx context.Context, n int, s share) (*readBuffer, error) {
	class, of := bits.Len(uint(n-1)), p.long
	whole := int64(1) << class
	own := min(whole, maxUnsent)
	if n <= shortRead {
		own = 4 * whole
	}
	if s.unsent.Acquire(ctx, own) != nil {
		return nil, context.Cause(ctx)
	}
	if n <= shortRead {
		if of = p.short; of.TryAcquire(whole) {
			return newReadBuffer(class, n, of, s.unsent, own), nil
		}
		of = s.last
	}
	if of.Acquire(ctx, whole) != nil {
		s.unsent.Release(own)
		return nil, context.Cause(ctx)
	}
	return newReadBuffer(class, n, of, s.unsent, own), nil
}

func newReadBuffer(class, n int, of, unsent *semaphore.Weighted, own int64) *readBuffer {
	b, _ := readBuffers[class].Get().(*readBuffer)
	if b == nil {
		b = &readBuffer{mem: make([]byte, dataLen+1<<class)}
	}
	b.to, b.of, b.unsent, b.own = dataLen+n, of, unsent, own
	return b
}

// stall returns how long a client may accept no reply data.
func (p *pool) stall(longest time.Duration) time.Duration {
	if !room(p.short, 8*shortRead) || !room(p.long, MaxPayload) {
		return min(longest, shortStall)
	}
	return longest
}

func room(in *semaphore.Weighted, n int64) bool {
	ok := in.TryAcquire(n)
	if ok {
		in.Release(n)
	}
	return ok
}

// A readBuffer is memory for the reply to a READ: a header, and the data directly after it.
type readBuffer struct {
	mem  []byte
	from int // where the header begins
	to   int

	of, unsent *semaphore.Weighted
	own        int64 // what it counts in unsent
}

// readBuffers[i] holds buffers for up to 1<<i bytes of data.
var readBuffers [26]sync.Pool

func (b *readBuffer) data() []byte { return b.mem[dataLen:b.to] }

func (b *readBuffer) release() {
	of, unsent, own, whole := b.of, b.unsent, b.own, int64(len(b.mem)-dataLen)
	readBuffers[bits.Len(uint(whole-1))].Put(b)
	of.Release(whole)
	unsent.Release(own)
}

// head writes the header in front of the data.
func (b *readBuffer) head(structured bool, r request) {
	var header [dataLen]byte
	h := appendData(header[:0], structured, r)
	b.from = dataLen - len(h)
	copy(b.mem[b.from:], h)
}
