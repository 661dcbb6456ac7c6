package nbd

import (
	"context"
	"math/bits"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"
)

// shortStall is the StallTime while little memory is free, so that a client that reads its replies
// slowly does not block others.
const shortStall = 5 * time.Second

// A pool is the memory for replies to READ, of all connections of a server. It bounds the memory
// that clients occupy by not reading their replies, and counts whole buffers, which may be longer
// than the data. Requests for memory are served in order, so that a long READ does not starve.
type pool struct{ free *semaphore.Weighted }

func newPool(bytes int) *pool { return &pool{semaphore.NewWeighted(int64(bytes))} }

// buffer waits for memory for n bytes of data.
func (p *pool) buffer(ctx context.Context, n int) (*readBuffer, error) {
	class := bits.Len(uint(n - 1))
	if p.free.Acquire(ctx, 1<<class) != nil {
		return nil, context.Cause(ctx)
	}
	b, _ := readBuffers[class].Get().(*readBuffer)
	if b == nil {
		b = &readBuffer{mem: make([]byte, dataLen+1<<class)}
	}
	b.to, b.of = dataLen+n, p
	return b, nil
}

// stall returns how long a client may accept no reply data.
func (p *pool) stall(longest time.Duration) time.Duration {
	if !p.free.TryAcquire(MaxPayload) {
		return min(longest, shortStall)
	}
	p.free.Release(MaxPayload)
	return longest
}

// A readBuffer is memory for the reply to a READ: a header, and the data directly after it.
type readBuffer struct {
	mem  []byte
	from int // where the header begins
	to   int
	of   *pool
}

// readBuffers[i] holds buffers for up to 1<<i bytes of data.
var readBuffers [26]sync.Pool

func (b *readBuffer) data() []byte { return b.mem[dataLen:b.to] }

func (b *readBuffer) release() {
	of, n := b.of, len(b.mem)-dataLen
	readBuffers[bits.Len(uint(n-1))].Put(b)
	of.free.Release(int64(n))
}

// head writes the header in front of the data.
func (b *readBuffer) head(structured bool, r request) {
	var header [dataLen]byte
	h := appendData(header[:0], structured, r)
	b.from = dataLen - len(h)
	copy(b.mem[b.from:], h)
}
