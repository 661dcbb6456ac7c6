package rdma

import (
	"context"
	"errors"
	"fmt"
	"reflect"

	"github.com/mcrdma/mcrdma/pkg/qp"
	"github.com/mcrdma/mcrdma/pkg/rdmcfallback"
)

// A waiter holds the context for waiting on the completion queue. The context ends with the
// caller's, and when the mesh has events. It is created again only after it has ended, or when the
// caller passes another context.
type waiter struct {
	parent, ctx context.Context
	cancel      context.CancelFunc
}

func (w *waiter) within(parent context.Context) context.Context {
	if w.ctx == nil || w.ctx.Err() != nil || !same(w.parent, parent) {
		w.end()
		w.parent = parent
		w.ctx, w.cancel = context.WithCancel(parent)
	}
	return w.ctx
}

// same reports whether a and b are the same context. Contexts of types that are not comparable are
// considered different.
func same(a, b context.Context) bool {
	t := reflect.TypeOf(a)
	return (t.Kind() == reflect.Pointer || t.Size() == 0) && a == b
}

func (w *waiter) end() {
	if w.cancel != nil {
		w.cancel()
	}
	*w = waiter{}
}

// Events implements rdmcfallback.Transport.
func (t *Transport) Events(ctx context.Context, events []rdmcfallback.Event) (int, error) {
	if len(events) == 0 {
		return 0, errors.New("rdma: no room for events")
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for {
		if t.closed {
			return 0, ErrClosed
		}
		if t.head < len(t.events) {
			n := copy(events, t.events[t.head:])
			clear(t.events[t.head : t.head+n])
			if t.head += n; t.head == len(t.events) {
				t.events, t.head = t.events[:0], 0
			}
			return n, nil
		}
		// The messages were fetched by an earlier call.
		if t.taken {
			t.batch, t.taken = nil, false
			t.next <- struct{}{} // has room
		}
		found, err := t.collect()
		if err != nil {
			return 0, err
		}
		if found {
			continue
		}
		if err := ctx.Err(); err != nil {
			return 0, context.Cause(ctx)
		}
		wait := t.wait.within(ctx)
		t.mu.Unlock()
		err = t.cq.Wait(wait)
		t.mu.Lock()
		if err != nil && wait.Err() == nil && !t.closed {
			return 0, fmt.Errorf("rdma: the device ended: %w", err)
		}
	}
}

// collect converts the events of the mesh and the device, and reports whether there were any.
func (t *Transport) collect() (found bool, err error) {
	if t.batch != nil && !t.taken {
		t.taken = true
		for i := range t.batch {
			t.news(&t.batch[i])
		}
		found = true
	}
	n, err := t.cq.Poll(t.wcs[:])
	if err != nil {
		return found, fmt.Errorf("rdma: %w", err)
	}
	// All of a failed queue pair's requests but one are only flushed, and that one need not be the
	// first.
	for i := range t.wcs[:n] {
		if s := t.wcs[i].Status; s != qp.StatusSuccess && s != qp.StatusWRFlushErr {
			if err := t.complete(&t.wcs[i]); err != nil {
				return true, err
			}
		}
	}
	for i := range t.wcs[:n] {
		if err := t.complete(&t.wcs[i]); err != nil {
			return true, err
		}
	}
	return found || n > 0, nil
}

// news converts an event of the mesh, or handles a message between transports.
func (t *Transport) news(e *rdmcfallback.Event) {
	p := t.peers[e.Peer]
	if p.down {
		return
	}
	if e.Kind == rdmcfallback.EventDown {
		t.fail(p, e.Err)
		return
	}
	if e.Kind != rdmcfallback.EventTold {
		t.fail(p, fmt.Errorf("%w: blocks on the control connection", ErrProtocol))
		return
	}
	if err := t.told(p, e.Msg); err != nil {
		t.fail(p, err)
	}
}

// told handles a message of the mesh.
func (t *Transport) told(p *peer, msg []byte) error {
	switch kind, rest := msg[0], msg[1:]; kind {
	case kindTold:
		if len(rest) == 0 || len(p.part) > 0 && len(rest) > rdmcfallback.MaxTell-partBytes {
			return fmt.Errorf("%w: it told %d bytes after %d", ErrProtocol, len(rest), len(p.part))
		}
		if len(p.part) > 0 {
			rest, p.part = append(p.part, rest...), nil
		}
		t.push(rdmcfallback.Event{Kind: rdmcfallback.EventTold, Peer: p.id, Msg: rest})
		return nil
	case kindPart:
		if len(rest) != partBytes || len(p.part) > 0 {
			return fmt.Errorf("%w: it told the beginning of a message with %d bytes", ErrProtocol, len(rest))
		}
		p.part = append(make([]byte, 0, rdmcfallback.MaxTell), rest...)
		return nil
	case kindSlots:
		a, there, err := parseSlots(msg)
		if err != nil {
			return err
		}
		return t.answeredRing(p, &a, there)
	case kindOffer, kindAnswer, kindRing:
		a, err := parseAddress(msg)
		switch {
		case err != nil:
			return err
		case kind == kindOffer:
			return t.offered(p, &a)
		case kind == kindAnswer:
			return t.answered(p, &a)
		}
		return t.offeredRing(p, &a)
	default:
		return fmt.Errorf("%w: a message of kind %d", ErrProtocol, kind)
	}
}

// complete converts a completion to an event.
func (t *Transport) complete(wc *qp.WC) error {
	p := t.at(wc.ID >> kindBits)
	if p == nil || p.down {
		return nil // of a closed queue pair
	}
	kind := int(wc.ID & (1<<kindBits - 1))
	if wc.Status != qp.StatusSuccess {
		t.fail(p, explain(kind, wc.Status))
		return nil
	}
	var err error
	switch kind {
	case recvBlock:
		if !wc.HasImm || wc.Opcode != qp.WCRecv {
			t.fail(p, fmt.Errorf("%w: a block came as %v without immediate value", ErrProtocol, wc.Opcode))
			return nil
		}
		p.in.regions.pop()
		t.push(rdmcfallback.Event{Kind: rdmcfallback.EventReceived, Peer: p.id, Imm: wc.Imm, N: int(wc.ByteLen)})
	case sendReady:
		p.in.telling--
		err = t.tellCount(p, &p.in.conn, sendReady, MaxPosted)
	case sendBlock:
		p.out.regions.pop()
		t.push(rdmcfallback.Event{Kind: rdmcfallback.EventSent, Peer: p.id})
	case recvReady:
		out := &p.out
		more, ok := t.grown(p, wc, out.ready, MaxPosted-(out.ready-out.nSent), "buffers posted")
		if !ok {
			return nil
		}
		out.ready += more
		for range more {
			t.push(rdmcfallback.Event{Kind: rdmcfallback.EventReady, Peer: p.id})
		}
		err = t.postEmpty(p, &out.conn, recvReady, 1)
	default:
		err = t.completeRing(p, kind, wc)
	}
	return err
}

// at returns the peer encoded in the upper bits of a work request's ID.
func (t *Transport) at(id uint64) *peer {
	if id < uint64(len(t.peers)) {
		return t.peers[id]
	}
	return nil
}

// explain returns the error of a failed queue pair.
func explain(kind int, s qp.Status) error {
	what := requestNames[kind]
	switch {
	case kind == recvBlock && s == qp.StatusLocLenErr:
		return fmt.Errorf("%w: a block longer than its buffer: %w", ErrProtocol, s.Err())
	case kind == recvSmall && (s == qp.StatusLocLenErr || s == qp.StatusLocAccessErr):
		return fmt.Errorf("%w: a small message that isn't for the ring: %w", ErrProtocol, s.Err())
	case kind == recvSmall && s == qp.StatusWRFlushErr:
		return fmt.Errorf("%w: %s: the device has ended it, perhaps because the root wrote elsewhere: %w", ErrQueuePair, what, s.Err())
	case s == qp.StatusRetryExcErr:
		return fmt.Errorf("%w: %s: the peer's device does not answer: %w", ErrQueuePair, what, s.Err())
	case s == qp.StatusWRFlushErr:
		return fmt.Errorf("%w: %s: the device has ended it: %w", ErrQueuePair, what, s.Err())
	}
	return fmt.Errorf("%w: %s: %w", ErrQueuePair, what, s.Err())
}

// readMesh fetches the mesh's events, a batch at a time, until it is closed.
func (t *Transport) readMesh() {
	defer close(t.ended)
	var buf [32]rdmcfallback.Event
	for {
		n, err := t.mesh.Events(context.Background(), buf[:])
		if err != nil {
			return
		}
		t.mu.Lock()
		t.batch = buf[:n]
		t.wait.interrupt()
		t.mu.Unlock()
		select {
		case <-t.next:
		case <-t.quit:
			return
		}
	}
}

// interrupt ends a wait.
func (w *waiter) interrupt() {
	if w.cancel != nil {
		w.cancel()
	}
}
