package nbd

import (
	"context"
	"sync/atomic"

	"golang.org/x/sync/semaphore"
)

// A budget bounds the requests in flight on a connection, and their bytes, from when a header has
// been read until the reply has been written. The connection's reader waits for it, so that a fast
// client is slowed down instead of filling the server's memory.
type budget struct {
	most            int64 // requests
	requests, bytes *semaphore.Weighted
	underway        atomic.Int64 // requests
}

func newBudget(requests, bytes int) *budget {
	return &budget{most: int64(requests), requests: semaphore.NewWeighted(int64(requests)), bytes: semaphore.NewWeighted(int64(bytes))}
}

// take waits until one request of that many bytes is within the budget.
func (b *budget) take(bytes int) {
	_ = b.requests.Acquire(context.Background(), 1) // without a deadline it does not fail
	_ = b.bytes.Acquire(context.Background(), int64(bytes))
	b.underway.Add(1)
}

// alone reports whether exactly one request is in flight.
func (b *budget) alone() bool { return b.underway.Load() == 1 }

// wait waits until no request is in flight, or ctx ends. No more can be taken then.
func (b *budget) wait(ctx context.Context) { _ = b.requests.Acquire(ctx, b.most) }

func (b *budget) give(requests, bytes int) {
	b.underway.Add(int64(-requests))
	b.requests.Release(int64(requests))
	b.bytes.Release(int64(bytes))
}
