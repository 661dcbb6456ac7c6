package mcrdma

import (
	"fmt"
	"slices"
	"sync"

	"github.com/mcrdma/mcrdma/pkg/mcrdma/internal/unicast"
	"github.com/mcrdma/mcrdma/pkg/qp"
)

// A Memory is registered memory, which the device may read and write. All methods may be called by
// any goroutine.
type Memory struct {
	client *Client
	buf    []byte
	mr     qp.MR // nil: there is no device

	mu     sync.Mutex
	users  int // operations, receives and regions
	closed bool
}

// A Piece is a part of a Memory: the data of an operation, the buffer of a receive, or a region.
// The zero Piece is empty. Pieces are small values.
type Piece struct {
	mem    *Memory
	off, n int
}

// Register registers buf, which must not be empty, with the device. The caller may go on using buf;
// the Memory keeps it alive until Close. Registering is expensive: register memory once, and reuse
// it.
func (c *Client) Register(buf []byte) (*Memory, error) {
	if len(buf) == 0 {
		return nil, fmt.Errorf("%w memory: it is empty", ErrInvalid)
	}
	m := &Memory{client: c, buf: slices.Clip(buf)}
	c.mu.Lock()
	defer c.mu.Unlock()
	err := c.errClosed()
	if err != nil {
		return nil, err
	}
	if c.pd != nil {
		if m.mr, err = c.pd.RegMR(buf, qp.AccessLocalWrite); err != nil {
			return nil, fmt.Errorf("register %d bytes: %w", len(buf), closedOr(err))
		}
	}
	c.memories[m] = struct{}{}
	return m, nil
}

// maxAlloc is Alloc's limit in bytes.
const maxAlloc = 1 << 40

// Alloc allocates n bytes of memory, at most 1 TiB, and registers them. As with make, the process
// ends if the host does not have enough.
func (c *Client) Alloc(n int) (*Memory, error) {
	if n < 1 || n > maxAlloc {
		return nil, fmt.Errorf("%w memory of %d bytes; 1 to %d are possible", ErrInvalid, n, maxAlloc)
	}
	return c.Register(make([]byte, n))
}

// Bytes returns the memory.
func (m *Memory) Bytes() []byte { return m.buf }

// All returns the whole memory as a Piece.
func (m *Memory) All() Piece { return Piece{m, 0, len(m.buf)} }

// Slice returns n bytes, starting at off. It panics if they are out of range, as slicing does.
func (m *Memory) Slice(off, n int) Piece {
	_ = m.buf[off : off+n : off+n]
	return Piece{m, off, n}
}

// Close deregisters the memory. The error wraps ErrBusy if operations in flight, posted receives or
// regions use it; it then stays registered. Close may be called again.
func (m *Memory) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return nil
	}
	if m.users > 0 {
		return fmt.Errorf("%w: %d operations, receives or regions lie in the memory", ErrBusy, m.users)
	}
	m.closed = true
	forget(m.client, m.client.memories, m, struct{}{})
	return m.deregister()
}

func (m *Memory) deregister() error {
	if m.mr == nil {
		return nil
	}
	return ignoreClosed(m.mr.Close())
}

// Len returns the number of bytes.
func (p Piece) Len() int { return p.n }

// Bytes returns the memory itself, not a copy; nil for the zero Piece.
func (p Piece) Bytes() []byte {
	if p.mem == nil {
		return nil
	}
	return p.mem.buf[p.off : p.off+p.n : p.off+p.n]
}

// Slice returns n bytes of the piece, starting at off. It panics if they are out of range.
func (p Piece) Slice(off, n int) Piece {
	_ = p.Bytes()[off : off+n : off+n]
	return Piece{p.mem, p.off + off, n}
}

// buf is the piece for the unicast connection.
func (p Piece) buf() unicast.Buf {
	b := unicast.Buf{Bytes: p.Bytes()}
	if p.mem.mr != nil {
		b.SGE = p.sge()
	}
	return b
}

func (p Piece) sge() qp.SGE { return p.mem.mr.SGE(p.off, p.n) }

// hold checks that the piece belongs to c, and keeps it registered until release. Pieces
// without bytes need nothing.
func (p Piece) hold(c *Client) error {
	switch {
	case p.n == 0:
		return nil
	case p.mem.client != c:
		return fmt.Errorf("%w piece: its memory is registered by another Client", ErrInvalid)
	}
	m := p.mem
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return fmt.Errorf("%w: the memory was closed", ErrClosed)
	}
	m.users++
	return nil
}

func (p Piece) release() {
	if p.n > 0 {
		p.mem.mu.Lock()
		p.mem.users--
		p.mem.mu.Unlock()
	}
}

// holdAll holds all pieces, or none.
func holdAll(c *Client, pieces []Piece) error {
	for i, p := range pieces {
		if err := p.hold(c); err != nil {
			releaseAll(pieces[:i])
			return err
		}
	}
	return nil
}

func releaseAll(pieces []Piece) {
	for _, p := range pieces {
		p.release()
	}
}
