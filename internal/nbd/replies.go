package nbd

import "sync"

// A batch is the replies that are written together, and the budget to return after that.
type batch struct {
	small           []byte // replies without data, concatenated
	data            []*readBuffer
	requests, bytes int
}

// Replies are the replies to be sent to a client. A goroutine that adds one while no other writes
// becomes the writer, and also writes what others add meanwhile. The goroutine that adds a status
// must not block, so it writes only what the socket accepts at once.
type replies struct {
	write  func([]byte) error // all of it
	now    func([]byte) int   // writes what fits without waiting; nil: not supported
	failed func(error)        // called with the first error of write; nothing is written after it
	budget *budget

	mu          sync.Mutex
	next, spare batch
	writing     bool
	broken      bool
}

// status queues the reply to a request that returns no data; text is the error's text.
func (o *replies) status(r request, structured bool, e Errno, text string) {
	o.mu.Lock()
	o.next.small = appendStatus(o.next.small, structured, r, e, text)
	o.send(r, false)
}

// extents queues the reply to a BLOCK_STATUS. It returns false if there are no extents to send.
func (o *replies) extents(r request, extents []Extent) bool {
	o.mu.Lock()
	before := len(o.next.small)
	o.next.small = appendExtents(o.next.small, r, extents)
	if len(o.next.small) == before {
		o.mu.Unlock()
		return false
	}
	o.send(r, true)
	return true
}

// data queues the reply to a READ and takes ownership of the buffer.
func (o *replies) data(r request, structured bool, b *readBuffer) {
	b.head(structured, r)
	o.mu.Lock()
	o.next.data = append(o.next.data, b)
	o.send(r, true)
}

// send unlocks o.mu. This goroutine writes the queue if it may block, or else another does.
func (o *replies) send(r request, waits bool) {
	o.next.requests++
	o.next.bytes += r.weight()
	if o.writing {
		o.mu.Unlock()
		return
	}
	if o.now != nil && !o.broken && len(o.next.data) == 0 && o.budget.alone() {
		if n := o.now(o.next.small); n < len(o.next.small) {
			o.next.small = append(o.next.small[:0], o.next.small[n:]...)
		} else {
			o.next.small = o.next.small[:0]
			o.budget.give(o.next.requests, o.next.bytes)
			o.next.requests, o.next.bytes = 0, 0
			o.mu.Unlock()
			return
		}
	}
	o.writing = true
	o.mu.Unlock()
	if waits {
		o.run()
	} else {
		go o.run()
	}
}

// run writes until the queue is empty.
func (o *replies) run() {
	o.mu.Lock()
	for o.next.requests > 0 {
		now, broken := o.next, o.broken
		o.next, o.spare = o.spare, batch{}
		o.mu.Unlock()

		var err error
		if !broken && len(now.small) > 0 {
			err = o.write(now.small)
		}
		for i, b := range now.data {
			if !broken && err == nil {
				err = o.write(b.mem[b.from:b.to])
			}
			b.release()
			now.data[i] = nil
		}
		if err != nil {
			o.failed(err)
		}

		o.mu.Lock()
		o.broken = broken || err != nil
		o.spare = batch{small: now.small[:0], data: now.data[:0]}
		o.budget.give(now.requests, now.bytes)
	}
	o.writing = false
	o.mu.Unlock()
}
