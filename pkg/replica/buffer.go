package replica

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/mcrdma/mcrdma/pkg/mcrdma"
	"github.com/mcrdma/mcrdma/pkg/replica/wal"
)

// MaxEntry is the maximum size in bytes of an entry of the log; longer writes are several entries.
const MaxEntry = wal.MaxData

// A Buffer holds the bytes of a write, which go from there to the network and the disk without
// being copied.
type Buffer struct {
	class *class
	slot  mcrdma.Piece // the header, and the data behind it
	data  []byte
	refs  atomic.Int32
}

// Bytes returns the memory to fill with the data of the write.
func (b *Buffer) Bytes() []byte { return b.data }

// Release releases the buffer. WriteBuffer and StartWrite do so, too.
func (b *Buffer) Release() {
	if b != nil && b.refs.Add(-1) == 0 {
		b.class.put(b)
	}
}

// retain adds a reference, for one more Release.
func (b *Buffer) retain() *Buffer {
	if b != nil {
		b.refs.Add(1)
	}
	return b
}

// register makes memory that a device may read.
type register func(n int) (*mcrdma.Memory, error)

// A class has buffers of one size, which are allocated on first use.
type class struct {
	size  int // of the data
	alloc register
	short func()          // a buffer is missing: release those that need not be kept
	ended <-chan struct{} // the volume is closed: buffers need not come back
	free  chan *Buffer
	slab  int // buffers that are made at once

	mu     sync.Mutex
	unmade int
	waits  atomic.Int32
}

func (c *class) put(b *Buffer) { c.free <- b } // there is room for all

// try returns a buffer if there is one.
func (c *class) try() (*Buffer, error) {
	for {
		select {
		case b := <-c.free:
			b.refs.Store(1)
			return b, nil
		default:
		}
		if made, err := c.make(); !made || err != nil {
			return nil, err
		}
	}
}

// make makes more buffers, up to the class's bound.
func (c *class) make() (bool, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := min(c.slab, c.unmade)
	if n == 0 || len(c.free) > 0 {
		return n > 0, nil
	}
	stride := (wal.HeaderSize + c.size + align - 1) / align * align
	memory, err := c.alloc(n * stride)
	if err != nil {
		return false, err
	}
	c.unmade -= n
	for i := range n {
		c.free <- &Buffer{class: c, slot: memory.Slice(i*stride, wal.HeaderSize+c.size)}
	}
	return true, nil
}

// get waits for a buffer.
func (c *class) get(ctx context.Context) (*Buffer, error) {
	if b, err := c.try(); b != nil || err != nil {
		return b, err
	}
	c.waits.Add(1)
	defer c.waits.Add(-1)
	c.short()
	select {
	case b := <-c.free:
		b.refs.Store(1)
		return b, nil
	case <-c.ended:
		return nil, ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// A pool has a volume's buffers, which bound its memory: nothing is accepted without one. Each size
// has its own bound, so that one size cannot use up the memory of another.
type pool []*class

// newPool makes a pool of about this many bytes. short is called when a buffer is missing.
func newPool(bytes int, alloc register, short func(), ended <-chan struct{}) pool {
	var p pool
	for _, c := range []struct{ size, share int }{{8 << 10, 4}, {128 << 10, 4}, {MaxEntry, 2}} {
		n := max(bytes/c.share/c.size, 4)
		p = append(p, &class{size: c.size, alloc: alloc, short: short, ended: ended, slab: max(1, min(n, MaxEntry/c.size)), unmade: n, free: make(chan *Buffer, n)})
	}
	return p
}

// class returns the class for n bytes, at most MaxEntry.
func (p pool) class(n int) *class {
	for _, c := range p {
		if n <= c.size {
			return c
		}
	}
	return p[len(p)-1]
}

// get returns a buffer of n bytes, at most MaxEntry, and waits for it.
func (p pool) get(ctx context.Context, n int) (*Buffer, error) {
	b, err := p.class(n).get(ctx)
	if err == nil {
		b.data = b.slot.Bytes()[wal.HeaderSize:][:n:n]
	}
	return b, err
}

// try returns a buffer of n bytes, or nil.
func (p pool) try(n int) *Buffer {
	c := p.class(n)
	b, err := c.try()
	if b == nil || err != nil {
		c.short()
		return nil
	}
	b.data = b.slot.Bytes()[wal.HeaderSize:][:n:n]
	return b
}

// memory has a volume's pools, separate for uses that must not wait for each other.
type memory struct {
	written pool // writes of clients, here or forwarded by another host
	landed  pool // entries that come by the group
	pushed  pool // entries that come by messages
}

func newMemory(bytes int, alloc register, short func(), ended <-chan struct{}) memory {
	return memory{newPool(bytes, alloc, short, ended), newPool(bytes, alloc, short, ended), newPool(4*MaxEntry+bytes/8, alloc, short, ended)}
}

// wanted says whether a buffer is waited for.
func (m *memory) wanted() bool {
	return m.written.wanted() || m.landed.wanted() || m.pushed.wanted()
}

func (p pool) wanted() bool {
	for _, c := range p {
		if c.waits.Load() > 0 {
			return true
		}
	}
	return false
}
