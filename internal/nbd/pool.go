package nbd

import (
	"context"
	"math/bits"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"
)

// shortStall is StallTime while little memory is left: then a client that takes its replies slowly keeps it from
// others.
const shortStall = 5 * time.Second

// A pool is the memory for replies to READ, of all connections of a server: a client that reads and does not
// take the replies must not cost the host its memory. A long READ is not passed for ever.
type pool struct{ free *semaphore.Weighted }

func newPool(bytes int) *pool { return &pool{semaphore.NewWeighted(int64(bytes))} }

// buffer waits for memory for n bytes of data.
func (p *pool) buffer(ctx context.Context, n int) (*readBuffer, error) {
	if p.free.Acquire(ctx, int64(n)) != nil {
		return nil, context.Cause(ctx)
	}
	b := newReadBuffer(n)
	b.of = p
	return b, nil
}

// stall is for how long a client may take no replies.
func (p *pool) stall(longest time.Duration) time.Duration {
	if !p.free.TryAcquire(MaxPayload) {
		return min(longest, shortStall)
	}
	p.free.Release(MaxPayload)
	return longest
}

// A readBuffer is memory for the reply to a READ: a header, right before the data.
type readBuffer struct {
	mem  []byte
	from int // where the header begins
	to   int
	of   *pool
}

// readBuffers hold those for up to 1<<i bytes of data.
var readBuffers [26]sync.Pool

func newReadBuffer(n int) *readBuffer {
	class := bits.Len(uint(n - 1))
	b, _ := readBuffers[class].Get().(*readBuffer)
	if b == nil {
		b = &readBuffer{mem: make([]byte, dataLen+1<<class)}
	}
	b.to = dataLen + n
	return b
}

func (b *readBuffer) data() []byte { return b.mem[dataLen:b.to] }

func (b *readBuffer) release() {
	of, n := b.of, b.to-dataLen
	readBuffers[bits.Len(uint(len(b.mem)-dataLen-1))].Put(b)
	of.free.Release(int64(n))
}

// head puts the header in front of the data.
func (b *readBuffer) head(structured bool, r request) {
	var header [dataLen]byte
	h := appendData(header[:0], structured, r)
	b.from = dataLen - len(h)
	copy(b.mem[b.from:], h)
}
