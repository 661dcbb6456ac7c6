package nbd

import (
	"context"
	"sync"
)

// A budget bounds the requests in flight on a connection, and their bytes, from when a header has
// been read until the reply has been written. The connection's reader waits for it, so that a fast
// client is slowed down instead of filling the server's memory.
type budget struct {
	mu              sync.Mutex
	freed           sync.Cond
	requests, bytes int // left
	underway        int // requests
}

func newBudget(requests, bytes int) *budget {
	b := &budget{requests: requests, bytes: bytes}
	b.freed.L = &b.mu
	return b
}

// take waits until one request of that many bytes is within the budget.
func (b *budget) take(bytes int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for b.requests == 0 || b.bytes < bytes {
		b.freed.Wait()
	}
	b.requests--
	b.underway++
	b.bytes -= bytes
}

// alone reports whether exactly one request is in flight.
func (b *budget) alone() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.underway == 1
}

// wait waits until no request is in flight, or ctx ends.
func (b *budget) wait(ctx context.Context) {
	defer context.AfterFunc(ctx, func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.freed.Broadcast()
	})()
	b.mu.Lock()
	defer b.mu.Unlock()
	for b.underway > 0 && ctx.Err() == nil {
		b.freed.Wait()
	}
}

func (b *budget) give(requests, bytes int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.requests += requests
	b.underway -= requests
	b.bytes += bytes
	b.freed.Signal()
}
