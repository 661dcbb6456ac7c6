package tcp

import (
	"context"
	"fmt"
	"net"
	"slices"
	"time"
)

const (
	greetingTime = 5 * time.Second // for a greeting and its answer
	dialTime     = 3 * time.Second // for one attempt
	retryFirst   = 10 * time.Millisecond
	retryLast    = 500 * time.Millisecond
	maxGreetings = 256 // read at a time
	maxFromOne   = 192 // of these from one address, so that silent callers leave room for others
	// linger is how long a member whose bootstrap has failed waits for members that it has not met
	// yet, to tell them the reason.
	linger = 700 * time.Millisecond
)

// Connect creates the transport of one member. All members call it, in any order. It returns when
// each has met every other, or fails at every member: because ctx ended before all joined
// (ErrMissing), because members disagree (ErrMismatch, ErrVersion, ErrStale, ErrDuplicate), because
// something else answers at a member's address (ErrProtocol), or because another member failed. In
// the last case, the error wraps ErrFailed and what that member's error wraps.
func Connect(ctx context.Context, o Options) (*Transport, error) {
	if err := o.check(); err != nil {
		if o.Listener != nil {
			_ = o.Listener.Close()
		}
		return nil, err
	}
	o.Members, o.Hello = slices.Clone(o.Members), slices.Clone(o.Hello)
	if o.Listener == nil {
		l, err := net.Listen("tcp", o.Members[o.Self])
		if err != nil {
			return nil, fmt.Errorf("tcp: member %d can't listen: %w", o.Self, err)
		}
		o.Listener = l
	}
	t := newTransport(o)
	t.wg.Go(t.accept)
	t.wg.Go(t.beat)
	for _, p := range t.peers[:o.Self] {
		t.wg.Go(func() { t.call(p) })
	}
	b := t.boot
	select {
	case <-b.done:
	case <-ctx.Done():
		b.fail(b.missing(context.Cause(ctx)))
	}
	err := b.result()
	if err == nil {
		return t, nil
	}
	if ctx.Err() == nil {
		wait(b.allMet, linger)
	}
	_ = t.Close()
	return nil, err
}
