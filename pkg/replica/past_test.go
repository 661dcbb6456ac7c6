package replica

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
)

// TestPast compares the intervals with a set.
func TestPast(t *testing.T) {
	rnd := rand.New(rand.NewPCG(5, 6))
	for range 300 {
		var p past
		set := map[requestID]bool{}
		for range rnd.IntN(100) {
			id := requestID{uint64(1 + rnd.IntN(2)), uint64(rnd.IntN(40))}
			if !p.add(id) {
				t.Fatal("it is full")
			}
			set[id] = true
		}
		n := 0
		for session := range uint64(4) {
			for seq := range uint64(42) {
				if id := (requestID{session, seq}); p.has(id) != set[id] {
					t.Fatalf("%v: %v, want %v: %v", id, p.has(id), set[id], p.sessions)
				}
				if set[requestID{session, seq}] && !set[requestID{session, seq - 1}] {
					n++
				}
			}
		}
		if p.n != n {
			t.Fatalf("%d intervals, want %d: %v", p.n, n, p.sessions)
		}
	}
}

// TestPastBounded: the memory for trimmed requests is bounded; of those that were given up, nothing is claimed.
func TestPastBounded(t *testing.T) {
	c := newContent(0)
	const n = maxPast + 10
	for i := uint64(1); i <= n; i++ {
		x := dataItem(i, 0, make([]byte, 1))
		x.Seq = 2 * i // no two are neighbors
		c.arrive(x)
		c.take(x.Version, i)
		c.trim(i)
	}
	if c.past.n > maxPast || c.known != maxPast+1 {
		t.Errorf("%d intervals, and all after %d are known", c.past.n, c.known)
	}
	if _, ok, known := c.made(requestID{9, 2}, 0); ok || known {
		t.Error("a request that was given up is known")
	}
	if _, ok, _ := c.made(requestID{9, 2 * n}, 0); !ok {
		t.Error("the last request is not known")
	}
}

// TestRepeatedLate: a host that was frozen repeats its writes, which are no longer in the log. What
// took effect is not written again, over what others wrote meanwhile, and what did not is written.
func TestRepeatedLate(t *testing.T) {
	r := newRig(t, 3, 2, 8<<20, Options{Keep: 16})
	old := r.primary()
	at := r.others(old)[0]
	v := r.volume(at)
	write := func(n, to int) *request {
		b, err := v.Buffer(r.ctx(), block)
		r.must(err)
		copy(b.Bytes(), fillBlock(n))
		return v.changing(opWrite, int64(to)*block, block, b, false)
	}
	made, lost := write(1, 0), write(2, 1)
	r.must(v.do(r.ctx(), made))
	for i := range 300 {
		r.must(v.WriteAt(r.ctx(), fillBlock(100+i), int64(i%10)*block, false))
	}
	r.must(v.Flush(r.ctx()))
	r.wait("the log is trimmed at all hosts", func() error {
		for i := 1; i <= 3; i++ {
			var tail uint64
			l := r.volume(i).loop
			<-l.await(func() { tail = l.content.tail })
			if tail <= max(made.floor, lost.floor)+1 {
				return fmt.Errorf("h%d has the log from %d on", i, tail)
			}
		}
		return v.Flush(r.ctx())
	})
	r.kill(old)
	for _, q := range []*request{made, lost} {
		q.tries = 1 // it was sent, and not answered
		if err := v.do(r.ctx(), q); err != nil {
			t.Error(err)
		}
		q.buf.Release()
	}
	p := make([]byte, 2*block)
	r.must(v.ReadAt(r.ctx(), p, 0))
	if want := append(fillBlock(390), fillBlock(2)...); !bytes.Equal(p, want) {
		t.Errorf("it reads %.8q and %.8q", p, p[block:])
	}

	// A primary that has started since does not know.
	r.start(old)
	r.acting(3)
	for _, i := range r.others(old) {
		r.kill(i)
		r.start(i)
		r.acting(3)
	}
	v = r.volume(at)
	q := write(3, 2)
	q.floor, q.tries = 1, 1
	if err := v.do(r.ctx(), q); !errors.Is(err, ErrUnknown) {
		t.Error(err)
	}
	q.buf.Release()
}
