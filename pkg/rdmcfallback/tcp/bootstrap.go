package tcp

import (
	"fmt"
	"net"
	"strings"
	"sync"
)

// A bootstrap is a member's progress in meeting the others.
type bootstrap struct {
	opt    *Options
	peers  []*peer
	mu     sync.Mutex
	ended  bool
	err    error // why it failed
	done   chan struct{}
	allMet chan struct{}

	met, completed int
	tried          []error // last error of each call to a member that has not been met yet
	strangers      []string
	showing        sync.Mutex // held during Options.Progress
}

func newBootstrap(o *Options, peers []*peer) *bootstrap {
	return &bootstrap{opt: o, peers: peers, done: make(chan struct{}), allMet: make(chan struct{}), tried: make([]error, len(peers))}
}

// meet records that a peer has been met.
func (b *bootstrap) meet(p *peer) {
	if f := b.opt.Progress; f != nil {
		b.showing.Lock()
		f(p.id)
		b.showing.Unlock()
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.met++
	all := b.met == len(b.peers)-1
	if b.err != nil {
		p.tell(frameAbort, abortMessage(b.err))
	} else if all {
		for _, p := range b.peers {
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

// complete records that a peer has met all members.
func (b *bootstrap) complete() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.completed++
	b.finish()
}

// finish ends the bootstrap if it is complete. The lock must be held.
func (b *bootstrap) finish() {
	n := len(b.peers) - 1
	if !b.ended && b.met == n && b.completed == n {
		b.ended = true
		close(b.done)
	}
}

// fail ends the bootstrap unless it has already ended, and tells all members met so far.
func (b *bootstrap) fail(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ended {
		return
	}
	b.ended, b.err = true, err
	msg := abortMessage(err)
	for _, p := range b.peers {
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

// try records why a call failed.
func (b *bootstrap) try(p *peer, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.tried[p.id] = err
}

// stranger records a call from a caller that is not a member.
func (b *bootstrap) stranger(c net.Conn, err error) {
	if f := b.opt.Stranger; f != nil {
		f(c.RemoteAddr(), err)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.ended && len(b.strangers) < 3 {
		b.strangers = append(b.strangers, fmt.Sprintf("%s called: %v", c.RemoteAddr(), err))
	}
}

// missing returns an error with the missing members, and the reasons if known.
func (b *bootstrap) missing(cause error) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	var who []string
	count := 0
	for i, p := range b.peers {
		if p == nil || p.isMet() {
			continue
		}
		if count++; count > 8 {
			continue
		}
		why := "has not called"
		if err := b.tried[i]; err != nil {
			why = err.Error()
		} else if i < b.opt.Self {
			why = "does not answer"
		}
		who = append(who, fmt.Sprintf("member %d (%s) %s", i, b.opt.Members[i], why))
	}
	if count > len(who) {
		who = append(who, fmt.Sprintf("and %d more", count-len(who)))
	}
	if count == 0 {
		who = append(who, "all have come, but not all have met each other")
	}
	who = append(who, b.strangers...)
	return fmt.Errorf("%w: %d of %d: %s: %w", ErrMissing, count, len(b.peers), strings.Join(who, "; "), cause)
}
