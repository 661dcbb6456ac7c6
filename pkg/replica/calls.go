package replica

import (
	"cmp"
	"context"
	"errors"
	"slices"
)

var (
	// errAgain: another host is the primary, or will be; the request may have taken effect.
	errAgain = errors.New("this host is not the primary")
	// errPast: what is known of requests starts after the request's floor.
	errPast = errors.New("it is not known whether the request was made before")
)

// A call is a request at the primary. Only the loop uses its fields.
type call struct {
	try    func() bool     // reports whether the call is accepted or done; false: it must wait. Called in the loop.
	finish func(err error) // ends it, once, without blocking
	gone   bool            // its caller has given it up
	ctx    context.Context // the call is not tried any more after ctx has ended; nil: after gone
}

// ended says that a call is not to be tried any more.
func (c *call) ended() bool {
	if c.ctx != nil && c.ctx.Err() != nil {
		c.finish(c.ctx.Err())
		return true
	}
	return c.gone
}

type pendingWrite struct {
	index uint64
	call  *call
}

// calls are the pending calls of a primary. Its methods are called in the loop.
type calls struct {
	waiting []*call        // waiting until the volume accepts them
	writes  []pendingWrite // that are in the log, by index
	flushes map[uint64]*call
	last    uint64 // flush
	acked   uint64 // entries up to this one are acknowledged, by this primary
}

func newCalls() *calls { return &calls{flushes: map[uint64]*call{}} }

// take tries a call.
func (c *calls) take(x *call) {
	if !x.try() {
		c.waiting = append(c.waiting, x)
	}
}

// retry tries the waiting calls again, and reports whether one no longer waits.
func (c *calls) retry() bool {
	list := c.waiting
	c.waiting = nil
	for _, x := range list {
		if !x.ended() {
			c.take(x)
		}
	}
	return len(c.waiting) < len(list)
}

// written makes a call wait until an entry is acknowledged.
func (c *calls) written(x *call, index uint64) {
	if index <= c.acked {
		x.finish(nil)
		return
	}
	at := len(c.writes) // most are the newest
	if at > 0 && c.writes[at-1].index > index {
		at, _ = slices.BinarySearchFunc(c.writes, index, func(w pendingWrite, i uint64) int { return cmp.Compare(w.index, i) })
	}
	c.writes = slices.Insert(c.writes, at, pendingWrite{index, x})
}

// ack ends the writes up to an index.
func (c *calls) ack(index uint64) {
	c.acked = max(c.acked, index)
	n := 0
	for ; n < len(c.writes) && c.writes[n].index <= index; n++ {
		c.writes[n].call.finish(nil)
	}
	c.writes = slices.Delete(c.writes, 0, n)
}

// flushing makes a call wait for a flush, if begin starts it.
func (c *calls) flushing(x *call, begin func(id uint64) bool) bool {
	c.last++
	c.flushes[c.last] = x
	if begin(c.last) {
		return true
	}
	delete(c.flushes, c.last)
	return false
}

func (c *calls) flushed(id uint64) {
	if x := c.flushes[id]; x != nil {
		delete(c.flushes, id)
		x.finish(nil)
	}
}

// end ends all calls: another host is the primary.
func (c *calls) end() {
	for _, x := range c.waiting {
		x.finish(errAgain)
	}
	for _, w := range c.writes {
		w.call.finish(errAgain)
	}
	for id, x := range c.flushes {
		delete(c.flushes, id)
		x.finish(errAgain)
	}
	c.waiting, c.writes, c.acked = nil, nil, 0
}
