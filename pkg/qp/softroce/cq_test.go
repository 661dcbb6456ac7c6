package softroce

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcrdma/mcrdma/pkg/qp"
	"github.com/mcrdma/mcrdma/pkg/rocev2"
)

func newCQ(t *testing.T, depth int) *CQ {
	t.Helper()
	return must(onLink(t, newWire(), Options{}).CreateCQ(depth))(t).(*CQ)
}

// pushN pushes completions with ids from first on.
func (c *CQ) pushN(t *testing.T, first uint64, n int) {
	t.Helper()
	for i := range n {
		if _, ok := c.push(&qp.WC{ID: first + uint64(i)}); !ok {
			t.Fatalf("overrun by completion %d", i)
		}
	}
}

// Completions come out once and in the order in which they went in, whatever
// the pieces, around the end of the ring many times.
func TestPollOrder(t *testing.T) {
	const depth = 7
	c := newCQ(t, depth)
	in, out := uint64(0), uint64(0)
	var wc [depth + 1]qp.WC
	for round := range 100 {
		n := min(round%5+1, depth-int(in-out))
		c.pushN(t, in, n)
		in += uint64(n)
		k := must(c.Poll(wc[:round%len(wc)]))(t)
		if want := min(round%len(wc), int(in-out)); k != want {
			t.Fatalf("%d completions, want %d", k, want)
		}
		for _, w := range wc[:k] {
			if w.ID != out {
				t.Fatalf("completion %d, want %d", w.ID, out)
			}
			out++
		}
	}
}

// So they do when the ring grows, wherever it begins.
func TestPollOrderGrows(t *testing.T) {
	const depth = 4*firstCQEs + 1
	for begin := range 2 * firstCQEs {
		c := newCQ(t, depth)
		var wc [depth]qp.WC
		c.pushN(t, 0, firstCQEs/2)
		for range begin {
			c.pushN(t, 0, 1)
			must(c.Poll(wc[:1]))(t)
		}
		must(c.Poll(wc[:]))(t)
		c.pushN(t, 0, depth)
		if k := must(c.Poll(wc[:]))(t); k != depth {
			t.Errorf("%d completions, want %d", k, depth)
		}
		for i, w := range wc {
			if w.ID != uint64(i) {
				t.Fatalf("begun at %d: completion %d, want %d", begin, w.ID, i)
			}
		}
	}
}

func TestWaitContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCQ(t, 4)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		start := time.Now()
		if err := c.Wait(ctx); !errors.Is(err, context.DeadlineExceeded) || time.Since(start) != time.Second {
			t.Errorf("Wait returned %v after %v", err, time.Since(start))
		}
		ctx, cancel = context.WithCancel(t.Context())
		got := make(chan error)
		go func() { got <- c.Wait(ctx) }()
		synctest.Wait()
		cancel()
		if err := <-got; !errors.Is(err, context.Canceled) {
			t.Errorf("Wait returned %v", err)
		}
		c.pushN(t, 1, 1)
		if err := c.Wait(t.Context()); err != nil { // no other goroutine is waiting for it
			t.Error(err)
		}
		if c.waiters != 0 {
			t.Errorf("%d waiters are left", c.waiters)
		}
	})
}

// waiters starts n goroutines that wait and returns their results, once all are
// waiting.
func waiters(ctx context.Context, c *CQ, n int) <-chan error {
	ch := make(chan error, n)
	for range n {
		go func() { ch <- c.Wait(ctx) }()
	}
	synctest.Wait()
	return ch
}

// One completion is enough for every waiter as long as it is not polled; none
// is lost because of a waiter that has given up.
func TestManyWaiters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCQ(t, 8)
		const n = 10
		ch := waiters(t.Context(), c, n)
		c.pushN(t, 1, 1)
		synctest.Wait()
		if len(ch) != n {
			t.Fatalf("one completion woke %d of %d waiters", len(ch), n)
		}
		for range n {
			if err := <-ch; err != nil {
				t.Error(err)
			}
		}
		must(c.Poll(make([]qp.WC, 8)))(t)

		ctx, cancel := context.WithCancel(t.Context())
		left := waiters(ctx, c, n)
		ch = waiters(t.Context(), c, n)
		cancel()
		c.pushN(t, 2, 1)
		synctest.Wait()
		if len(left) != n || len(ch) != n {
			t.Errorf("%d and %d of %d waiters are back", len(left), len(ch), n)
		}
	})
}

func TestWaitEndsWithClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCQ(t, 8)
		ch := waiters(t.Context(), c, 5)
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
		for range 5 {
			if err := <-ch; !errors.Is(err, qp.ErrClosed) {
				t.Errorf("Wait returned %v", err)
			}
		}
	})
}

// Several consumers share the completions of a queue, and none sleeps while
// there are some.
func TestConsumers(t *testing.T) {
	c := newCQ(t, 64)
	const total, consumers = 20000, 8
	var mu sync.Mutex
	seen := make([]bool, total)
	n := 0
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	var wg sync.WaitGroup
	for range consumers {
		wg.Go(func() {
			var wc [3]qp.WC
			for c.Wait(ctx) == nil {
				k, err := c.Poll(wc[:])
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				for _, w := range wc[:k] {
					if seen[w.ID] {
						t.Errorf("completion %d twice", w.ID)
					}
					seen[w.ID] = true
					if n++; n == total {
						cancel()
					}
				}
				mu.Unlock()
			}
		})
	}
	for id := 0; id < total && ctx.Err() == nil; {
		c.mu.Lock()
		room := c.depth - c.n
		c.mu.Unlock()
		if room > 0 {
			c.pushN(t, uint64(id), 1)
			id++
		}
	}
	wg.Wait()
	if n != total {
		t.Errorf("%d completions of %d", n, total)
	}
}

// An overrun is reported once by Poll, after the completions that were there,
// by an event, and by the state of every queue pair of the queue.
func TestOverrun(t *testing.T) {
	w := newWire()
	d := onLink(t, w, Options{})
	small, roomy := must(d.CreateCQ(2))(t), must(d.CreateCQ(16))(t)
	sends := newStationOn(t, w, d, qp.Init{SendCQ: roomy, RecvCQ: small})
	other := newStationOn(t, w, d, qp.Init{SendCQ: small, RecvCQ: roomy})
	apart := newStationOn(t, w, d, qp.Init{})
	for _, s := range []*station{sends, other, apart} {
		s.up(peerAddr, peerQPN)
	}
	for id := range uint64(5) {
		sends.recv(id, sends.mr.SGE(0, 10))
	}
	sends.send(qp.SendWR{ID: 9, Opcode: qp.OpSend})
	for range 2 {
		sends.request(rocev2.SendOnly, []byte("data"))
	}
	if st := sends.qp.State(); st != qp.StateRTS {
		t.Fatalf("state %v before the overrun", st)
	}
	sends.request(rocev2.SendOnly, []byte("data"))
	until(t, "the queue pairs fail", func() bool {
		return sends.qp.State() == qp.StateError && other.qp.State() == qp.StateError
	})
	types := map[qp.EventType]int{}
	for range 3 {
		e := sends.event()
		types[e.Type]++
		if !errors.Is(e.Err, qp.ErrOverrun) {
			t.Errorf("event %+v", e)
		}
	}
	if types[qp.EventCQError] != 1 || types[qp.EventQPFatal] != 2 {
		t.Errorf("events %v", types)
	}
	sends.noEvent()
	sends.want(9, qp.StatusWRFlushErr) // in the other queue

	var wc [8]qp.WC
	if err := small.Wait(t.Context()); err != nil {
		t.Error(err)
	}
	if n := must(small.Poll(wc[:]))(t); n != 2 || wc[0].ID != 0 || wc[1].ID != 1 {
		t.Errorf("%d completions: %+v", n, wc[:n])
	}
	if err := small.Wait(t.Context()); err != nil { // there is something to be polled: the error
		t.Error(err)
	}
	if n, err := small.Poll(wc[:]); n != 0 || !errors.Is(err, qp.ErrOverrun) {
		t.Errorf("Poll: %d, %v", n, err)
	}
	if n, err := small.Poll(wc[:]); n != 0 || err != nil {
		t.Errorf("Poll after the error: %d, %v", n, err)
	}
	if err := small.Wait(t.Context()); !errors.Is(err, qp.ErrOverrun) {
		t.Errorf("Wait after the error: %v", err)
	}
	apart.works()
}

// Every waiter on a queue that overruns gets the error, whichever polled first.
func TestOverrunWakesAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCQ(t, 1)
		const n = 5
		ch := waiters(t.Context(), c, n)
		c.mu.Lock() // the waiters that are woken look only when all of this has happened
		c.n, c.overrun = 0, overrunTold
		c.signal()
		c.mu.Unlock()
		synctest.Wait()
		if len(ch) != n {
			t.Fatalf("%d of %d waiters are back", len(ch), n)
		}
		for range n {
			if err := <-ch; !errors.Is(err, qp.ErrOverrun) {
				t.Errorf("Wait returned %v", err)
			}
		}
	})
}
