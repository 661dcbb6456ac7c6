package replica

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"testing"

	"github.com/mcrdma/mcrdma/pkg/replica/core"
	"github.com/mcrdma/mcrdma/pkg/replica/store"
	"github.com/mcrdma/mcrdma/pkg/replica/wal"
)

// TestRing: an entry never lies where one does that a member has not consumed.
func TestRing(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	const size = 4096
	r := newRing(size, 10)
	r.consumed["a"], r.consumed["b"] = 9, 9
	type place struct {
		index    uint64
		off, end int64
	}
	var live []place
	next, consumed, full := uint64(10), map[string]uint64{"a": 9, "b": 9}, 0
	for range 20000 {
		switch m := []string{"a", "b"}[rnd.IntN(2)]; rnd.IntN(3) {
		case 0:
			n := int64(1 + rnd.IntN(900))
			off, ok := r.place(n)
			if !ok {
				full++
				continue
			}
			if off%align != 0 || off+n > size {
				t.Fatalf("%d bytes at %d", n, off)
			}
			for _, p := range live {
				if p.index > min(consumed["a"], consumed["b"]) && off < p.end && p.off < off+n {
					t.Fatalf("entry %d at %d lies over entry %d, which %v has not consumed", next, off, p.index, consumed)
				}
			}
			live = append(live, place{next, off, off + n})
			next++
		default:
			consumed[m] = min(next-1, consumed[m]+uint64(rnd.IntN(4)))
			r.consume(m, consumed[m])
			r.free(next - 1)
		}
	}
	if next < 2000 || full == 0 {
		t.Errorf("%d entries, %d times full", next, full)
	}
	r.consume("a", next+7) // it boasts
	if r.consumed["a"] > next {
		t.Error("what was not placed is consumed")
	}
	delete(r.consumed, "a")
	delete(r.consumed, "b") // members that have left do not count
	if r.free(next - 1); r.tail != r.head {
		t.Error("the ring is not empty")
	}
}

// TestRingLow: what clients write slowly uses the same few bytes of the ring again, and not all of it.
func TestRingLow(t *testing.T) {
	r := newRing(1<<20, 1)
	r.consumed["a"] = 0
	for i := range uint64(1000) {
		if off, ok := r.place(4000); !ok || off >= 5*4032 {
			t.Fatalf("entry %d is at %d, %v", i+1, off, ok)
		}
		if i%5 == 4 { // the member says it rarely
			r.consume("a", i+1)
			r.free(i + 1)
		}
	}
}

func dataItem(index uint64, off int64, data []byte) item {
	return item{Entry: wal.Entry{Version: core.Version{Epoch: 1, Index: index}, Kind: wal.Data, Offset: off, Length: int64(len(data)), Data: data, Session: 9, Seq: index}}
}

// TestContent: a read sees the newest of the entries in its range, from memory or by the parts that are on disk.
func TestContent(t *testing.T) {
	rnd := rand.New(rand.NewPCG(3, 4))
	const size = 64
	for range 2000 {
		c := newContent(5)
		var states [][]byte
		model, seen := make([]byte, size), map[uint64][]byte{}
		states = append(states, bytes.Clone(model))
		for i := uint64(6); i < 26; i++ {
			off, n := rnd.IntN(size-1), 0
			n = 1 + rnd.IntN(size-off)
			data := bytes.Repeat([]byte{byte(i)}, n)
			x := dataItem(i, int64(off), data)
			if rnd.IntN(4) == 0 {
				x.Kind, x.Data = wal.Trim, nil
				clear(model[off : off+n])
			} else {
				copy(model[off:], data)
			}
			seen[i] = data
			states = append(states, bytes.Clone(model))
			if !c.arrive(x) || c.take(x.Version, i) == nil {
				t.Fatal("an entry is not taken")
			}
		}
		c.durable = 15
		c.release(uint64(rnd.IntN(26)))
		applied, index := uint64(5+rnd.IntN(10)), uint64(15+rnd.IntN(11))
		off := rnd.IntN(size)
		p := bytes.Clone(states[applied-5][off:])
		rest, ok := c.read(p, int64(off), applied, index)
		for _, q := range rest {
			copy(p[q.off-int64(off):q.end-int64(off)], seen[q.index])
		}
		if !ok || !bytes.Equal(p, states[index-5][off:]) {
			t.Fatalf("entries %d to %d from %d: %v %v, want %v", applied+1, index, off, ok, p, states[index-5][off:])
		}
		if c.trim(applied + 1); c.at(applied+1) != nil {
			t.Fatal("an entry that was trimmed is there")
		}
		if _, ok := c.read(p, int64(off), applied, index); ok {
			t.Fatal("a read that lacks an entry succeeds")
		}
		if c.truncate(20); c.head() != 20 || c.requests[requestID{9, 21}] != 0 || c.requests[requestID{9, 20}] != 20 {
			t.Fatalf("after truncation: %d, %v", c.head(), c.requests)
		}
	}
}

func TestExtents(t *testing.T) {
	list := []store.Extent{{Offset: 0, Length: 100, Hole: true}, {Offset: 100, Length: 100}}
	kinds := map[uint64]wal.Kind{1: wal.Data, 2: wal.Trim, 3: wal.Zero}
	parts := []part{{span{150, 160}, 2}, {span{50, 120}, 1}, {span{160, 200}, 3}}
	want := []Extent{{50, true, true}, {100, false, false}, {10, true, true}, {40, false, true}}
	for limit := 1; limit <= 5; limit++ {
		x := extents{limit: limit}
		x.merge(list, parts, func(i uint64) wal.Kind { return kinds[i] })
		if got, most := x.out, want[:min(limit, len(want))]; len(got) != len(most) {
			t.Errorf("limit %d: %v", limit, got)
		} else {
			for i := range got {
				if got[i] != most[i] {
					t.Errorf("limit %d: %v, want %v", limit, got, most)
				}
			}
		}
	}
}

// TestCalls: writes end with the acknowledgement that covers them, and all end with the primary.
func TestCalls(t *testing.T) {
	c := newCalls()
	x, done := map[uint64]*call{}, map[*call][]error{}
	newCall := func() *call {
		y := &call{}
		y.finish = func(err error) { done[y] = append(done[y], err) }
		return y
	}
	for _, i := range []uint64{3, 5, 4, 6} {
		x[i] = newCall()
		c.written(x[i], i)
	}
	c.ack(4)
	for i, want := range map[uint64]int{3: 1, 4: 1, 5: 0, 6: 0} {
		if len(done[x[i]]) != want {
			t.Errorf("write %d after the acknowledgement of 4: %d", i, len(done[x[i]]))
		}
	}
	flush, open := newCall(), false
	flush.try = func() bool { return c.flushing(flush, func(uint64) bool { return open }) }
	c.take(flush)
	if c.retry() || len(c.waiting) != 1 {
		t.Error("a flush that the volume does not take does not wait")
	}
	if open = true; !c.retry() || len(c.flushes) != 1 {
		t.Error("a flush still waits")
	}
	gone := newCall()
	ctx, cancel := context.WithCancel(t.Context())
	gone.try, gone.ctx = func() bool { return false }, ctx
	c.take(gone)
	cancel()
	if c.retry(); len(done[gone]) != 1 || !errors.Is(done[gone][0], context.Canceled) || len(c.waiting) != 0 {
		t.Errorf("whose caller has gone: %v, %d wait", done[gone], len(c.waiting))
	}
	c.end()
	for _, y := range []*call{x[5], x[6], flush} {
		if len(done[y]) != 1 || !errors.Is(done[y][0], errAgain) {
			t.Errorf("ended with %v", done[y])
		}
	}
}

// TestArrivedBeforeReset: entries that a copy of the store has occupy no memory.
func TestArrivedBeforeReset(t *testing.T) {
	c := newContent(5)
	arrive := func(index uint64) bool {
		return c.arrive(item{Entry: wal.Entry{Version: core.Version{Epoch: 1, Index: index}}})
	}
	if !arrive(8) || !arrive(11) {
		t.Fatal("they have not arrived")
	}
	c.reset(10)
	if arrive(9) || !arrive(12) {
		t.Error("an entry arrives that the store has, or one does not that it lacks")
	}
	if len(c.arrived) != 2 {
		t.Errorf("%v have arrived", c.arrived)
	}
}
