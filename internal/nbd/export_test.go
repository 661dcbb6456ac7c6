package nbd

import (
	"context"
	"errors"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"go.uber.org/goleak"

	"github.com/mcrdma/mcrdma/internal/testenv"
)

func TestMain(m *testing.M) {
	testenv.OneProcessor()
	goleak.VerifyTestMain(m)
}

const memBlock = 4096

// memory is an export in memory, which loses what is not durable when the power fails.
type memory struct {
	info Info
	gone chan struct{}
	// pieces bounds Buffer, if not 0. before is called in each method, if set, with its name.
	pieces int
	before func(ctx context.Context, method string) error
	scarce atomic.Bool

	mu       sync.Mutex
	data     []byte
	durable  []byte         // content after a power failure
	used     []bool         // blocks that have space
	dirty    map[int64]bool // blocks that are not durable
	buffers  sync.Pool
	borrowed int
}

func newMemory(info Info) *memory {
	return &memory{info: info, gone: make(chan struct{}), data: make([]byte, info.Size),
		durable: make([]byte, info.Size), used: make([]bool, (info.Size+memBlock-1)/memBlock), dirty: map[int64]bool{}}
}

type memBuffer struct {
	m *memory
	b []byte
}

func (b *memBuffer) Bytes() []byte { return b.b }
func (b *memBuffer) Release() {
	b.m.mu.Lock()
	b.m.borrowed--
	b.m.mu.Unlock()
	b.m.buffers.Put(b)
}

func (m *memory) call(ctx context.Context, method string) error {
	if m.before != nil {
		return m.before(ctx, method)
	}
	return nil
}

func (m *memory) Info() Info            { return m.info }
func (m *memory) Done() <-chan struct{} { return m.gone }

func (m *memory) ReadAt(ctx context.Context, p []byte, off int64) error {
	if err := m.call(ctx, "read"); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	copy(p, m.data[off:])
	return nil
}

func (m *memory) Buffer(ctx context.Context, n int) (Buffer, error) {
	if err := m.call(ctx, "buffer"); err != nil {
		return nil, err
	}
	if m.pieces > 0 {
		n = min(n, m.pieces)
	}
	b, _ := m.buffers.Get().(*memBuffer)
	if b == nil || cap(b.b) < n {
		b = &memBuffer{m, make([]byte, n)}
	}
	b.b = b.b[:n]
	m.mu.Lock()
	m.borrowed++
	m.mu.Unlock()
	return b, nil
}

func (m *memory) Scarce() bool { return m.scarce.Load() }

// change runs f on the content, and makes the range durable with fua.
func (m *memory) change(off, n int64, fua, used bool, f func(p []byte)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f(m.data[off : off+n])
	for i := off / memBlock; i*memBlock < off+n; i++ {
		m.dirty[i] = true
		if used || i*memBlock >= off && (i+1)*memBlock <= off+n {
			m.used[i] = used
		}
	}
	if fua {
		copy(m.durable[off:], m.data[off:off+n])
	}
}

func (m *memory) Write(ctx context.Context, b Buffer, off int64, fua bool, done func(error)) {
	if m.before == nil {
		done(m.write(ctx, b, off, fua))
		return
	}
	go func() { done(m.write(ctx, b, off, fua)) }()
}

func (m *memory) write(ctx context.Context, b Buffer, off int64, fua bool) error {
	defer b.Release()
	if err := m.call(ctx, "write"); err != nil {
		return err
	}
	p := b.Bytes()
	m.change(off, int64(len(p)), fua, true, func(q []byte) { copy(q, p) })
	return nil
}

func (m *memory) Flush(ctx context.Context, done func(error)) {
	go func() { done(m.flush(ctx)) }()
}

func (m *memory) flush(ctx context.Context) error {
	if err := m.call(ctx, "flush"); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for i := range m.dirty {
		copy(m.durable[i*memBlock:min((i+1)*memBlock, m.info.Size)], m.data[i*memBlock:])
	}
	clear(m.dirty)
	return nil
}

func (m *memory) Trim(ctx context.Context, off, n int64, fua bool) error {
	if err := m.call(ctx, "trim"); err != nil {
		return err
	}
	m.change(off, n, fua, false, func(p []byte) { clear(p) })
	return nil
}

func (m *memory) WriteZeroes(ctx context.Context, off, n int64, how Zeroes) error {
	if err := m.call(ctx, "zeroes"); err != nil {
		return err
	}
	if how.Fast && how.NoHole {
		return ENOTSUP
	}
	m.change(off, n, how.FUA, how.NoHole, func(p []byte) { clear(p) })
	return nil
}

func (m *memory) Extents(ctx context.Context, off, n int64, limit int) (extents []Extent, _ error) {
	if err := m.call(ctx, "extents"); err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for at := off; at < off+n; {
		end := min((at/memBlock+1)*memBlock, m.info.Size)
		hole := !m.used[at/memBlock]
		if last := len(extents) - 1; last >= 0 && extents[last].Hole == hole {
			extents[last].Length += end - at
		} else if len(extents) == limit {
			break
		} else {
			extents = append(extents, Extent{end - at, hole, hole})
		}
		at = end
	}
	return extents, nil
}

// unused reports whether no buffer is held.
func (m *memory) unused() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.borrowed == 0
}

// content is a copy of a range: what reads give, and what a power failure would leave.
func (m *memory) content(off, n int) (now, durable []byte) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.data[off : off+n]), slices.Clone(m.durable[off : off+n])
}

func TestErrnoOf(t *testing.T) {
	for _, c := range []struct {
		err  error
		want Errno
	}{
		{nil, 0},
		{ENOSPC, ENOSPC},
		{errors.Join(errors.New("a"), ESHUTDOWN), ESHUTDOWN},
		{&os.PathError{Op: "write", Path: "x", Err: syscall.ENOSPC}, ENOSPC},
		{syscall.EDQUOT, ENOSPC},
		{syscall.EFBIG, ENOSPC},
		{syscall.EROFS, EPERM},
		{syscall.EACCES, EPERM},
		{syscall.ENOMEM, ENOMEM},
		{syscall.EOPNOTSUPP, ENOTSUP},
		{syscall.ENOENT, EIO},
		{context.Canceled, ESHUTDOWN},
		{errors.New("other"), EIO},
		{Errno(0), EIO},
	} {
		if got := errnoOf(c.err); got != c.want {
			t.Errorf("%v: %d, want %d", c.err, got, c.want)
		}
	}
}
