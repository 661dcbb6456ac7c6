package replica

import (
	"context"
	"errors"
	"fmt"

	"github.com/mcrdma/mcrdma/pkg/replica/core"
	"github.com/mcrdma/mcrdma/pkg/replica/wal"
)

// do has the loop try a call until it is done or ctx ends.
func (l *loop) do(ctx context.Context, try func(c *call) bool) error {
	done := make(chan error, 1)
	c := &call{finish: func(err error) { done <- err }}
	c.try = func() bool { return try(c) }
	l.post(func() { l.take(c) })
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		l.abandon(c)
		return ctx.Err()
	case <-l.ctx.Done():
		l.abandon(c)
		return errAgain
	}
}

// start is do without waiting: then is called when the call is done, often by the loop, and must
// not block. If ctx ends before the call was accepted, the call is dropped eventually; an accepted
// call completes.
func (l *loop) start(ctx context.Context, try func(c *call) bool, then func(err error)) {
	c := &call{finish: then, ctx: ctx}
	c.try = func() bool { return try(c) }
	if !l.offer(func() { l.take(c) }) {
		then(errAgain)
	}
}

// take tries a call, if this node may serve it.
func (l *loop) take(c *call) {
	switch {
	case c.gone:
	case l.ctx.Err() != nil || l.node.State() < core.Fencing:
		c.finish(errAgain)
	default:
		l.calls.take(c)
	}
}

// abandon returns when the loop will not try a call any more, so the caller may reuse its memory.
func (l *loop) abandon(c *call) {
	select {
	case <-l.await(func() { c.gone = true }):
	case <-l.stopped:
	}
}

// writing writes an entry, whose data is in the buffer. Its version is not known yet. A repeated
// write that is in the log already, or was, is not written again.
func (l *loop) writing(r *request) func(c *call) bool {
	return func(c *call) bool {
		e := &r.entry
		index, ok, known := l.content.made(requestID{e.Session, e.Seq}, r.floor)
		if !ok {
			if !known {
				c.finish(errPast)
				return true
			}
			if e.Version, ok = l.node.Write(now()); !ok {
				return false
			}
			l.content.arrive(item{Entry: *e, buf: r.buf.retain()})
			index = e.Version.Index
		}
		if !r.durable {
			l.calls.written(c, index)
			return true
		}
		c.try = func() bool { return l.beginFlush(c) }
		return c.try()
	}
}

// trying is how a change or a flush is tried.
func (l *loop) trying(r *request) func(c *call) bool {
	if r.op == opFlush {
		return l.beginFlush
	}
	return l.writing(r)
}

// beginFlush makes all earlier writes durable.
func (l *loop) beginFlush(c *call) bool {
	return l.calls.flushing(c, func(id uint64) bool { return l.node.Flush(id, now()) })
}

// A reading is a read of the store, and then of the log.
type reading struct {
	iv    core.Interval
	shown uint64 // entries that the store had when the read began
}

// begin waits until reads are served.
func (l *loop) begin(ctx context.Context, r *reading) error {
	return l.do(ctx, func(c *call) bool {
		var ok bool
		if r.iv, _, ok = l.node.Read(now()); ok {
			r.shown = l.shown
			c.finish(nil)
		}
		return ok
	})
}

// end calls f for the entries that the store may lack, up to index. If it returns true, the data
// may be served; otherwise the read must begin again.
func (l *loop) end(ctx context.Context, r *reading, f func(index uint64) bool) (ok bool, err error) {
	err = l.do(ctx, func(c *call) bool {
		iv, index, leased := l.node.Read(now())
		if !leased {
			return false
		}
		ok = iv.Since == r.iv.Since && f(index)
		c.finish(nil)
		return true
	})
	return ok, err
}

// readAt reads a range from the store, and over it newer entries from the log.
func (l *loop) readAt(ctx context.Context, p []byte, off int64) error {
	for {
		var r reading
		var rest []part
		err := l.begin(ctx, &r)
		if err != nil {
			return err
		}
		if err := l.disk.store.ReadAt(p, off); err != nil {
			return l.unreadable("the store", err)
		}
		ok, err := l.end(ctx, &r, func(index uint64) (ok bool) {
			rest, ok = l.content.read(p, off, r.shown, index)
			return ok
		})
		if err != nil {
			return err
		}
		for _, q := range rest {
			e, err := l.fetch(q.index)
			if ok = ok && err == nil; ok { // otherwise it was trimmed meanwhile, and the store has it
				copy(p[q.off-off:q.end-off], e.Data[q.off-e.Offset:])
			}
		}
		if ok && len(rest) > 0 {
			ok, err = l.end(ctx, &r, func(uint64) bool { return true })
		}
		if ok || err != nil {
			return err
		}
	}
}

// fetch reads an entry of the log from the disk.
func (l *loop) fetch(index uint64) (wal.Entry, error) {
	e, err := l.disk.log.Read(index)
	if err != nil && !errors.Is(err, wal.ErrNotFound) {
		err = l.unreadable("the log", err)
	}
	return e, err
}

// unreadable ends this host's copy, so that another host serves.
func (l *loop) unreadable(what string, err error) error {
	if l.ctx.Err() == nil { // else it was closed
		l.post(func() { l.fail(fmt.Errorf("%s: %w", what, err)) })
	}
	return errAgain
}
