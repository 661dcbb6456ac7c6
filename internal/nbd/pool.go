package nbd

import (
	"context"
	"time"
)

const (
	// memoryUnit is in what units the memory for replies to READ is counted, in bytes.
	memoryUnit = 64 << 10
	// shortStall is StallTime while little memory is left: then a client that takes its replies slowly keeps it from
	// others.
	shortStall = 5 * time.Second
)

// A pool is the memory for replies to READ, of all connections of a server: a client that reads and does not
// take the replies must not cost the host its memory. Who comes first gets it first, so that a long READ is not passed for ever.
type pool struct {
	turn, used chan struct{}
}

func newPool(bytes int) *pool {
	return &pool{turn: make(chan struct{}, 1), used: make(chan struct{}, bytes/memoryUnit)}
}

func units(n int) int { return (n + memoryUnit - 1) / memoryUnit }

// buffer waits for memory for n bytes of data.
func (p *pool) buffer(ctx context.Context, n int) (*readBuffer, error) {
	select {
	case p.turn <- struct{}{}:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	defer func() { <-p.turn }()
	for i := range units(n) {
		select {
		case p.used <- struct{}{}:
		case <-ctx.Done():
			p.give(i)
			return nil, context.Cause(ctx)
		}
	}
	b := newReadBuffer(n)
	b.of = p
	return b, nil
}

func (p *pool) give(units int) {
	for range units {
		<-p.used
	}
}

// stall is for how long a client may take no replies.
func (p *pool) stall(longest time.Duration) time.Duration {
	if cap(p.used)-len(p.used) < units(MaxPayload) {
		return min(longest, shortStall)
	}
	return longest
}
