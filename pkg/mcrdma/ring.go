package mcrdma

import (
	"context"
	"sync"
)

// A ring is a queue that grows as needed and never shrinks: in the steady state it does not
// allocate. The zero value is empty.
type ring[T any] struct {
	slots   []T
	head, n int
}

// An inbox is a ring whose reader waits for news.
type inbox[T any] struct {
	ring[T]
	news chan struct{} // has a token if there may be something
}

func newInbox[T any]() inbox[T] { return inbox[T]{news: make(chan struct{}, 1)} }

func (b *inbox[T]) put(v T) {
	b.push(v)
	poke(b.news)
}

// wait returns the oldest when there is one. ok is false if there is none, and over is closed or ctx
// has ended, which is the error. mu guards the inbox.
func (b *inbox[T]) wait(ctx context.Context, mu sync.Locker, over <-chan struct{}) (v T, ok bool, err error) {
	for last := false; ; {
		mu.Lock()
		if ok = b.len() > 0; ok {
			v = b.pop()
		}
		if b.len() > 0 { // another reader may have the next
			poke(b.news)
		}
		mu.Unlock()
		if ok || last {
			return v, ok, nil
		}
		select {
		case <-b.news:
		case <-over:
			last = true // what came just before counts
		case <-ctx.Done():
			return v, false, ctx.Err()
		}
	}
}

// poke leaves a token.
func poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

func (r *ring[T]) len() int { return r.n }

// at returns the i-th oldest.
func (r *ring[T]) at(i int) *T {
	return &r.slots[(r.head+i)%len(r.slots)]
}

func (r *ring[T]) push(v T) {
	if r.n == len(r.slots) {
		grown := make([]T, max(8, 2*r.n))
		for i := range r.n {
			grown[i] = *r.at(i)
		}
		r.slots, r.head = grown, 0
	}
	r.n++
	*r.at(r.n - 1) = v
}

// pop removes the oldest. There must be one.
func (r *ring[T]) pop() T {
	var none T
	p := r.at(0)
	v := *p
	*p = none
	r.head = (r.head + 1) % len(r.slots)
	r.n--
	return v
}
