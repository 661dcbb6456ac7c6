package osdmap

import (
	"context"
	"sync"
	"time"
)

// behind is how long calls wait for the read that is under way, which a member of etcd that is frozen may not
// answer.
const behind = 50 * time.Millisecond

// reads are the reads of volumes' records. A call that comes while one is under way shares the next with others:
// after a power failure all volumes of a host ask several times a second, and a store that reads each of them
// alone falls behind.
type reads struct {
	get func(ctx context.Context, prefix string) (pairs []Pair, revision int64, err error)

	mu       sync.Mutex
	next     *read // that calls join
	underway int
}

// A read answers the calls that came before it began.
type read struct {
	prefix string // of one volume, or of all
	calls  int    // that wait
	begun  bool
	ctx    context.Context
	cancel context.CancelFunc // when no call waits
	done   chan struct{}
	pairs  []Pair
	err    error
}

// join makes a call one of those that the next read answers. It has to leave.
func (s *reads) join(id uint64) *read {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.next
	if r == nil {
		r = &read{prefix: volumeKey(id), done: make(chan struct{})}
		r.ctx, r.cancel = context.WithCancel(context.Background())
		s.next = r
		if s.underway == 0 {
			go s.begin(r)
		} else {
			time.AfterFunc(behind, func() { s.begin(r) })
		}
	}
	if r.prefix != volumeKey(id) {
		r.prefix = volumePrefix
	}
	r.calls++
	return r
}

// leave ends a read that no call waits for.
func (s *reads) leave(r *read) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.calls--; r.calls > 0 {
		return
	}
	if r.cancel(); s.next == r {
		s.next, r.begun = nil, true // no call is left to answer
	}
}

// begin makes a read, unless it was made, and then those that calls have joined meanwhile.
func (s *reads) begin(r *read) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for ; r != nil && !r.begun; r = s.next {
		r.begun, s.next = true, nil
		s.underway++
		s.mu.Unlock()
		r.pairs, _, r.err = s.get(r.ctx, r.prefix)
		close(r.done)
		s.mu.Lock()
		s.underway--
	}
}
