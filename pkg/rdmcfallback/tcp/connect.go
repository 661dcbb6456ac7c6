package tcp

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"time"
)

const (
	greetingTime = 5 * time.Second // for a greeting and its answer
	dialTime     = 3 * time.Second // for one attempt
	retryFirst   = 10 * time.Millisecond
	retryLast    = 500 * time.Millisecond
	maxGreetings = 256 // read at a time
	maxFromOne   = 192 // of them, from one address: others have room if one is silent
	// linger is how long a member whose bootstrap has failed waits for members
	// that it hasn't met yet, to tell them why.
	linger = 700 * time.Millisecond
)

// Connect makes the transport of one member. All members call it, in any order; it returns
// when each has met every other, or fails at every member: because ctx ended before all
// came (ErrMissing), because members don't agree (ErrMismatch, ErrVersion, ErrStale,
// ErrDuplicate), because something else answers at a member's address (ErrProtocol), or
// because another member failed. In the last case, the error wraps ErrFailed and what that
// member's error wraps.
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
	b := &t.boot
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

// newRun draws a number that no other process has.
func newRun() uint64 {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails
	return binary.BigEndian.Uint64(b[:])
}

// A memberError is an error that one member has caused or met.
type memberError struct {
	id   int
	addr string
	err  error
}

func (e *memberError) Error() string {
	return fmt.Sprintf("member %d (%s): %v", e.id, e.addr, e.err)
}

func (e *memberError) Unwrap() error { return e.err }

// A bootstrap is a member's progress in meeting the others.
type bootstrap struct {
	t      *Transport
	mu     sync.Mutex
	ended  bool
	err    error // why it failed
	done   chan struct{}
	allMet chan struct{}

	met, completed int
	tried          []error // why a member that is called hasn't been met yet
	strangers      []string
	showing        sync.Mutex // held during Options.Progress
}

func (b *bootstrap) init(t *Transport) {
	b.t, b.done, b.allMet, b.tried = t, make(chan struct{}), make(chan struct{}), make([]error, len(t.peers))
}

// meet notes that a peer is there.
func (b *bootstrap) meet(p *peer) {
	if f := b.t.opt.Progress; f != nil {
		b.showing.Lock()
		f(p.id)
		b.showing.Unlock()
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.met++
	all := b.met == len(b.t.peers)-1
	if b.err != nil {
		p.tell(frameAbort, abortMessage(b.err))
	} else if all {
		for _, p := range b.t.peers {
			if p != nil {
				p.tell(frameMet, nil)
			}
		}
	}
	if all {
		close(b.allMet)
		b.finish()
	}
}

// complete notes that a peer has met all members.
func (b *bootstrap) complete() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.completed++
	b.finish()
}

// finish ends the bootstrap if it is complete. The lock is held.
func (b *bootstrap) finish() {
	n := len(b.t.peers) - 1
	if !b.ended && b.met == n && b.completed == n {
		b.ended = true
		close(b.done)
	}
}

// fail ends the bootstrap, unless it has ended, and tells all members that were met.
func (b *bootstrap) fail(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ended {
		return
	}
	b.ended, b.err = true, err
	msg := abortMessage(err)
	for _, p := range b.t.peers {
		if p != nil {
			p.tell(frameAbort, msg)
		}
	}
	close(b.done)
}

func (b *bootstrap) result() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.err
}

// try notes why a call has failed.
func (b *bootstrap) try(p *peer, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.tried[p.id] = err
}

// stranger notes that a caller that is no member has called.
func (b *bootstrap) stranger(c net.Conn, err error) {
	if f := b.t.opt.Stranger; f != nil {
		f(c.RemoteAddr(), err)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.ended && len(b.strangers) < 3 {
		b.strangers = append(b.strangers, fmt.Sprintf("%s called: %v", c.RemoteAddr(), err))
	}
}

// missing says which members haven't come, and why as far as it is known.
func (b *bootstrap) missing(cause error) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	var who []string
	count := 0
	for i, p := range b.t.peers {
		if p == nil || p.isMet() {
			continue
		}
		if count++; count > 8 {
			continue
		}
		why := "has not called"
		if err := b.tried[i]; err != nil {
			why = err.Error()
		} else if i < b.t.opt.Self {
			why = "does not answer"
		}
		who = append(who, fmt.Sprintf("member %d (%s) %s", i, b.t.opt.Members[i], why))
	}
	if count > len(who) {
		who = append(who, fmt.Sprintf("and %d more", count-len(who)))
	}
	if count == 0 {
		who = append(who, "all have come, but not all have met each other")
	}
	who = append(who, b.strangers...)
	return fmt.Errorf("%w: %d of %d: %s: %w", ErrMissing, count, len(b.t.peers), strings.Join(who, "; "), cause)
}

func (p *peer) isMet() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.met
}

// causes are the errors whose kind an abort or a rejection carries.
var causes = []error{ErrMissing, ErrMismatch, ErrVersion, ErrDuplicate, ErrStale, ErrProtocol, ErrClosed, errNotYet}

// codeOf returns the code of the cause that err wraps, 0 if it wraps none, and causeOf the
// cause of a code, nil if there is none.
func codeOf(err error) int {
	return 1 + slices.IndexFunc(causes, func(c error) bool { return errors.Is(err, c) })
}

func causeOf(code int) error {
	if code > 0 && code <= len(causes) {
		return causes[code-1]
	}
	return nil
}

// An abortError is another member's reason to give up.
type abortError struct {
	cause  error // one of causes, or nil
	reason string
}

func (e *abortError) Error() string { return fmt.Sprintf("%v: %s", ErrFailed, e.reason) }

func (e *abortError) Unwrap() []error {
	if e.cause == nil {
		return []error{ErrFailed}
	}
	return []error{ErrFailed, e.cause}
}

// abortMessage encodes why this member gives up; a reason that came from another member is
// passed on unchanged.
func abortMessage(err error) []byte {
	reason := err.Error()
	if other, ok := errors.AsType[*abortError](err); ok {
		reason = other.reason
	}
	return append([]byte{byte(codeOf(err))}, cutReason(reason)...)
}

func cutReason(s string) string { return s[:min(len(s), maxReason)] }

// parseAbort reads what abortMessage wrote; the text is made safe to print.
func parseAbort(b []byte) error {
	return &abortError{causeOf(int(b[0])), printable(string(b[abortMinimum:]))}
}

// printable replaces characters that don't belong in a line of text.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || r > 0x7e && r < 0xa0 {
			return '?'
		}
		return r
	}, strings.ToValidUTF8(s, "?"))
}
