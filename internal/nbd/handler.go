package nbd

import (
	"context"
	"fmt"
	"sync"
)

// A handler carries out the requests of one connection.
type handler struct {
	limits
	export Export
	out    *replies
	stats  *counters
	pool   *pool
	share  share
}

// A job is a request, or a piece of a WRITE.
type job struct {
	request
	refused error  // why the request, or the rest of a WRITE, is refused
	write   *write // nil for other requests, and for an empty WRITE
	buffer  Buffer // the piece of write, which begins at at
	at      int64
}

// A write is a WRITE whose payload is in one or more Buffers.
type write struct {
	request
	mu     sync.Mutex
	pieces int // pieces to complete, including the last one from the start
	err    error
	of     *handler
	done   func(error) // endPiece
}

var writes = sync.Pool{New: func() any { return new(write) }}

func (h *handler) newWrite(r request) *write {
	w := writes.Get().(*write)
	w.request, w.pieces, w.err, w.of = r, 1, nil, h
	if w.done == nil {
		w.done = func(err error) { w.of.endPiece(w, err) }
	}
	return w
}

// add is called before each piece except the last.
func (w *write) add() {
	w.mu.Lock()
	w.pieces++
	w.mu.Unlock()
}

// short reports whether a job needs no other goroutine: the export starts it without blocking, or
// there is nothing to do.
func (j *job) short() bool {
	return j.refused != nil || j.cmd == cmdFlush || j.buffer != nil && len(j.buffer.Bytes()) <= maxShort
}

// maxShort is the most bytes of a write that the reader passes to the export itself, before it
// reads the next request.
const maxShort = 64 << 10

func (h *handler) handle(ctx context.Context, j job) {
	r, at, n := j.request, int64(j.offset), int64(j.length)
	fua := r.flags&flagFUA != 0
	var err error
	switch {
	case j.buffer != nil:
		h.export.Write(ctx, j.buffer, j.at, fua, j.write.done)
		return
	case j.write != nil:
		h.endPiece(j.write, j.refused)
		return
	case j.refused != nil:
		err = j.refused
	case r.cmd == cmdFlush:
		h.export.Flush(ctx, func(err error) { h.reply(r, err) })
		return
	case n == 0: // nothing to do
	case r.cmd == cmdRead:
		var b *readBuffer
		if b, err = h.pool.buffer(ctx, int(n), h.share); err != nil {
			break
		}
		if err = h.export.ReadAt(ctx, b.data(), at); err == nil {
			h.stats.read.Add(n)
			h.stats.requests.Add(1)
			h.out.data(r, h.structured, b)
			return
		}
		b.release()
	case r.cmd == cmdTrim:
		err = h.export.Trim(ctx, at, n, fua)
	case r.cmd == cmdWriteZeroes:
		err = h.export.WriteZeroes(ctx, at, n, Zeroes{FUA: fua, NoHole: r.flags&flagNoHole != 0, Fast: r.flags&flagFastZero != 0})
	case r.cmd == cmdBlockStatus:
		limit := maxExtents
		if r.flags&flagReqOne != 0 {
			limit = 1
		}
		var extents []Extent
		if extents, err = h.export.Extents(ctx, at, n, limit); err == nil {
			h.stats.requests.Add(1) // before the client sees the reply
			if h.out.extents(r, extents) {
				return
			}
			h.stats.requests.Add(-1)
			err = fmt.Errorf("the export knows no extent at %d", at)
		}
	}
	h.reply(r, err)
}

// endPiece is called when a piece has been written, or with err if there is none. The last call
// sends the reply.
func (h *handler) endPiece(w *write, err error) {
	w.mu.Lock()
	w.pieces--
	if w.err == nil {
		w.err = err
	}
	last, r, err := w.pieces == 0, w.request, w.err
	w.mu.Unlock()
	if !last {
		return
	}
	writes.Put(w)
	if err == nil {
		h.stats.written.Add(int64(r.length))
	}
	h.reply(r, err)
}

func (h *handler) reply(r request, err error) {
	h.stats.requests.Add(1)
	text := ""
	if err != nil {
		h.stats.errors.Add(1)
		text = err.Error()
	}
	h.out.status(r, h.structured, errnoOf(err), text)
}
