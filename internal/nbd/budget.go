package nbd

import "sync"

// A budget bounds the requests of a connection that are under way, and their bytes: from
// when a header has been read until the reply has been written. The connection's reader
// waits for it, so that the client waits for the server and not the server for memory.
type budget struct {
	mu              sync.Mutex
	freed           sync.Cond
	requests, bytes int // what is left
}

func newBudget(requests, bytes int) *budget {
	b := &budget{requests: requests, bytes: bytes}
	b.freed.L = &b.mu
	return b
}

// take waits until one request of so many bytes is within the budget.
func (b *budget) take(bytes int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for b.requests == 0 || b.bytes < bytes {
		b.freed.Wait()
	}
	b.requests--
	b.bytes -= bytes
}

func (b *budget) give(requests, bytes int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.requests += requests
	b.bytes += bytes
	b.freed.Signal()
}
