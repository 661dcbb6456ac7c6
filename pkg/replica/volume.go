package replica

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	replicav1 "github.com/mcrdma/mcrdma/api/replica/v1"
	"github.com/mcrdma/mcrdma/pkg/replica/core"
	"github.com/mcrdma/mcrdma/pkg/replica/osdmap"
	"github.com/mcrdma/mcrdma/pkg/replica/wal"
)

// Errors of this package wrap these.
var (
	// ErrRange: the bytes are outside of the volume, or not whole blocks.
	ErrRange = errors.New("not in the volume")
	// ErrUnknown: it is unknown whether a write has taken effect.
	ErrUnknown = errors.New("it is unknown whether the write has taken effect")
	// ErrClosed: the volume was closed here, or deleted.
	ErrClosed = errors.New("the volume is closed")
)

// A Volume is a replicated volume, at one of the hosts that have a copy of it. All methods may be
// called by any goroutine, at any host: if this host is not the primary, requests are forwarded. A
// request that cannot be served waits until it can, or ctx ends; a write may take effect after
// that.
type Volume struct {
	info    osdmap.Volume // except for Hosts, which may change
	loop    *loop
	peers   *peers
	memory  *memory
	session uint64
	seq     atomic.Uint64
	floor   atomic.Uint64 // an index that is committed
	route   atomic.Pointer[route]
	access  access
	pending pending
	hosts   atomic.Pointer[[]core.ID]
	last    Status // the loop's, until that has ended
	closed  chan struct{}
}

// A route is where requests go.
type route struct {
	primary core.Member
	here    bool
	ctx     context.Context // ends when another takes its place
	cancel  context.CancelFunc
}

// Info returns the configuration manager's record of the volume.
func (v *Volume) Info() osdmap.Volume {
	i := v.info
	i.Hosts = *v.hosts.Load()
	return i
}

// Done returns a channel that is closed when the volume is closed at this host, or deleted.
func (v *Volume) Done() <-chan struct{} { return v.closed }

// check checks that a range has whole blocks inside the volume.
func (v *Volume) check(off, n int64) error {
	b := int64(v.info.BlockSize)
	if off < 0 || n < 0 || off > v.info.Size-n || off%b != 0 || n%b != 0 {
		return fmt.Errorf("%w: %d bytes at %d of volume %s, which has %d in blocks of %d", ErrRange, n, off, v.info.Name, v.info.Size, b)
	}
	return nil
}

// Buffer returns a buffer of min(n, MaxEntry) bytes, to be filled and passed to WriteBuffer. It
// waits for memory.
func (v *Volume) Buffer(ctx context.Context, n int) (*Buffer, error) {
	return v.memory.written.get(ctx, min(max(n, 0), MaxEntry))
}

// Scarce reports whether someone waits for a Buffer, here or for a request that another host forwards.
func (v *Volume) Scarce() bool { return v.memory.written.wanted() }

// maxRead is how many bytes are read at once.
const maxRead = 4 << 20

// ReadAt fills p from offset off. More than 4 MiB are read in several parts, which is not atomic.
func (v *Volume) ReadAt(ctx context.Context, p []byte, off int64) error {
	if err := v.check(off, int64(len(p))); err != nil {
		return err
	}
	for part := range slices.Chunk(p, maxRead) {
		if err := v.do(ctx, &request{op: opRead, off: off, n: int64(len(part)), read: part}); err != nil {
			return err
		}
		off += int64(len(part))
	}
	return nil
}

// WriteBuffer writes all bytes of a buffer atomically. It releases the buffer, even if it fails. It
// returns when all acting members have the bytes in memory, or, with durable, on disk.
func (v *Volume) WriteBuffer(ctx context.Context, b *Buffer, off int64, durable bool) error {
	defer b.Release()
	if err := v.check(off, int64(len(b.data))); err != nil || len(b.data) == 0 {
		return err
	}
	return v.do(ctx, v.changing(opWrite, off, int64(len(b.data)), b, durable))
}

// StartWrite is WriteBuffer without waiting: done is called once, by any goroutine, perhaps before
// StartWrite returns. It must not block.
func (v *Volume) StartWrite(ctx context.Context, b *Buffer, off int64, durable bool, done func(error)) {
	if err := v.check(off, int64(len(b.data))); err != nil || len(b.data) == 0 {
		b.Release()
		done(err)
		return
	}
	v.start(ctx, v.changing(opWrite, off, int64(len(b.data)), b, durable), func(err error) {
		b.Release()
		done(err)
	})
}

// WriteAt is WriteBuffer for a byte slice, which it copies. More than MaxEntry bytes are written in
// several parts, which is not atomic.
func (v *Volume) WriteAt(ctx context.Context, p []byte, off int64, durable bool) error {
	if err := v.check(off, int64(len(p))); err != nil {
		return err
	}
	for len(p) > 0 {
		b, err := v.Buffer(ctx, len(p))
		if err != nil {
			return err
		}
		n := copy(b.data, p)
		if err := v.WriteBuffer(ctx, b, off, durable); err != nil {
			return err
		}
		p, off = p[n:], off+int64(n)
	}
	return nil
}

// Trim makes a range read as zeros and frees its space.
func (v *Volume) Trim(ctx context.Context, off, n int64, durable bool) error {
	return v.clear(ctx, opTrim, off, n, durable)
}

// WriteZeroes makes a range read as zeros, and keeps its space.
func (v *Volume) WriteZeroes(ctx context.Context, off, n int64, durable bool) error {
	return v.clear(ctx, opZero, off, n, durable)
}

func (v *Volume) clear(ctx context.Context, op replicav1.Operation, off, n int64, durable bool) error {
	if err := v.check(off, n); err != nil || n == 0 {
		return err
	}
	b, err := v.Buffer(ctx, 0) // for the header
	if err != nil {
		return err
	}
	defer b.Release()
	return v.do(ctx, v.changing(op, off, n, b, durable))
}

// changing is a request that changes a range.
func (v *Volume) changing(op replicav1.Operation, off, n int64, b *Buffer, durable bool) *request {
	r := &request{op: op, off: off, n: n, durable: durable, floor: v.floor.Load()}
	r.change(v.session, v.seq.Add(1), b)
	return r
}

// Flush returns when all writes that were complete before the call are on the disks of all acting
// members.
func (v *Volume) Flush(ctx context.Context) error { return v.do(ctx, &request{op: opFlush}) }

// StartFlush is Flush without waiting; done is as in StartWrite.
func (v *Volume) StartFlush(ctx context.Context, done func(error)) {
	v.start(ctx, &request{op: opFlush}, done)
}

// Extents describes a range by at most limit extents, which may cover only its first part.
func (v *Volume) Extents(ctx context.Context, off, n int64, limit int) ([]Extent, error) {
	if err := v.check(off, n); err != nil {
		return nil, err
	}
	r := &request{op: opExtents, off: off, n: n, limit: max(limit, 1)}
	err := v.do(ctx, r)
	return r.extents, err
}

// Operations of requests.
const (
	opRead    = replicav1.Operation_OPERATION_READ
	opWrite   = replicav1.Operation_OPERATION_WRITE
	opTrim    = replicav1.Operation_OPERATION_TRIM
	opZero    = replicav1.Operation_OPERATION_ZERO
	opFlush   = replicav1.Operation_OPERATION_FLUSH
	opExtents = replicav1.Operation_OPERATION_EXTENTS
)

// kinds are the entries of the operations that change the volume.
var kinds = map[replicav1.Operation]wal.Kind{opWrite: wal.Data, opTrim: wal.Trim, opZero: wal.Zero}

// A request is repeated, at each new primary, until it is done.
type request struct {
	op      replicav1.Operation
	off, n  int64
	read    []byte
	entry   wal.Entry
	buf     *Buffer
	durable bool
	floor   uint64 // was committed before the request was first made
	tries   int    // that may have taken effect
	limit   int
	extents []Extent
}

// change sets the entry of a request that changes a range.
func (r *request) change(session, seq uint64, b *Buffer) {
	r.buf, r.entry = b, wal.Entry{Kind: kinds[r.op], Offset: r.off, Length: r.n, Session: session, Seq: seq}
	if r.op == opWrite {
		r.entry.Data = b.data
		r.entry.AppendHeader(b.slot.Bytes()[:0]) // computes the CRC here, and not in the loop
	}
}

// retryTime is the time after which a request is repeated if nothing has changed.
const retryTime = 20 * time.Millisecond

// do makes a request until it is done.
func (v *Volume) do(ctx context.Context, r *request) error {
	defer v.pending.begin()()
	to := v.route.Load()
	return v.retry(ctx, to, r, v.once(ctx, to, r))
}

// start is do without waiting, for a change or a flush.
func (v *Volume) start(ctx context.Context, r *request, done func(error)) {
	to := v.route.Load()
	if !to.here {
		go func() { done(v.do(ctx, r)) }()
		return
	}
	r.tries++
	answered := v.pending.begin()
	end := func(err error) {
		answered()
		done(err)
	}
	v.loop.start(ctx, v.loop.trying(r), func(err error) {
		if err == nil {
			end(nil)
			return
		}
		go func() { end(v.retry(ctx, to, r, err)) }()
	})
}

// once makes a request at the known primary.
func (v *Volume) once(ctx context.Context, to *route, r *request) error {
	switch {
	case to.here:
		r.tries++
		return v.here(ctx, r)
	case to.primary.ID != 0:
		return v.forward(ctx, to, r)
	}
	return errAgain
}

// retry repeats a request that has ended with err, until it is done.
func (v *Volume) retry(ctx context.Context, to *route, r *request, err error) error {
	for {
		switch {
		case errors.Is(err, errPast) && r.tries == 1: // it was not made before
			r.floor, r.tries = v.floor.Load(), 0
		case errors.Is(err, errPast):
			return fmt.Errorf("%w: %d bytes at %d of volume %s: the primary has changed, and does not know which writes were made so long ago; repeat the write if nothing else has written there",
				ErrUnknown, r.n, r.off, v.info.Name)
		case !errors.Is(err, errAgain):
			return err
		default:
			select {
			case <-to.ctx.Done():
			case <-time.After(retryTime):
			case <-ctx.Done():
				return ctx.Err()
			case <-v.closed:
				return fmt.Errorf("%w: %s", ErrClosed, v.info.Name)
			}
		}
		to = v.route.Load()
		err = v.once(ctx, to, r)
	}
}

// here makes a request at this host's node.
func (v *Volume) here(ctx context.Context, r *request) (err error) {
	switch r.op {
	case opRead:
		return v.loop.readAt(ctx, r.read, r.off)
	case opExtents:
		r.extents, err = v.loop.extents(ctx, r.off, r.n, r.limit)
		return err
	}
	return v.loop.do(ctx, v.loop.trying(r))
}

// statusChanged handles the node's status. It is called in the loop.
func (v *Volume) statusChanged(s core.Status, failure error) {
	was := v.route.Load()
	here := s.State >= core.Fencing && failure == nil
	to := route{primary: s.Map.Primary, here: here}
	if failure != nil && s.Map.Primary == s.Self {
		to.primary = core.Member{} // another one will be
	}
	v.seen(s.Commit)
	if s.Map.Up != nil && !slices.Equal(s.Map.Up, *v.hosts.Load()) {
		up := s.Map.Up
		v.hosts.Store(&up)
	}
	if was == nil || was.primary != to.primary || was.here != to.here {
		next := to // the usual case allocates nothing
		next.ctx, next.cancel = context.WithCancel(context.Background())
		v.route.Store(&next)
		if was != nil {
			was.cancel()
		}
	}
	v.last = Status{Status: s, Failure: failure}
}
