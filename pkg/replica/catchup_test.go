package replica

import (
	"bytes"
	"fmt"
	"math"
	"path/filepath"
	"testing"

	"github.com/mcrdma/mcrdma/pkg/replica/core"
	"github.com/mcrdma/mcrdma/pkg/replica/wal"
)

// TestCatchUpBytes: a replica that comes back gets what it missed by the log, and at most a tenth of that twice, with
// and without clients that write meanwhile.
func TestCatchUpBytes(t *testing.T) {
	for _, busy := range []bool{false, true} {
		t.Run(fmt.Sprint("busy ", busy), func(t *testing.T) {
			r := newRig(t, 3, 2, 64<<20, Options{Keep: 64 << 10}) // clients write thousands of entries meanwhile
			r.acting(3)
			p := r.primary()
			back := r.others(p)[0]
			r.kill(back)
			r.acting(2)
			v := r.volume(p)
			const writes, size = 200, 64 << 10
			for i := range writes {
				r.must(v.WriteAt(r.ctx(), bytes.Repeat(fillBlock(i), size/block), int64(i)*size, false))
			}
			missed := uint64(writes * (size + wal.HeaderSize))
			sent := &r.hosts[p].peers.sentLog
			before := sent.Load()
			stop := func() (int, int) { return 0, 0 }
			if busy {
				end := r.pauses(p)
				stop = func() (int, int) {
					_, n := end()
					return n, n * (block + wal.HeaderSize)
				}
			}
			r.start(back)
			r.acting(3)
			n, more := stop() // those that it has missed, and those since
			got := sent.Load() - before
			t.Logf("%d bytes missed, %d sent, beside %d writes: %.3f", missed, got, n, float64(got)/float64(missed))
			if s := r.volume(back).Status(); got < missed || got > (missed+uint64(more))*11/10 || s.Backfilling || r.hosts[p].peers.sentStore.Load() > 0 { //nolint:gosec // not negative
				t.Errorf("%d bytes were missed, and at most %d more written meanwhile; %d were sent; %+v", missed, more, got, s)
			}
		})
	}
}

// TestSize: the size of the log counts what was trimmed, and what a client has just written.
func TestSize(t *testing.T) {
	c := newContent(10)
	entry := func(index uint64, kind wal.Kind) item {
		return item{Entry: wal.Entry{Version: core.Version{Epoch: 1, Index: index}, Kind: kind, Length: block}}
	}
	const data, trim = wal.HeaderSize + block, wal.HeaderSize
	for i, kind := range []wal.Kind{wal.Data, wal.Trim, wal.Data} {
		c.push(entry(11+uint64(i), kind)) //nolint:gosec // small
	}
	c.trim(11)
	c.arrive(entry(14, wal.Data))
	for index, want := range map[uint64]uint64{5: data, 11: data, 12: data + trim, 13: 2*data + trim, 14: 3*data + trim} {
		if got := c.size(index); got != want {
			t.Errorf("up to %d: %d bytes, want %d", index, got, want)
		}
	}
}

// TestPushFits: the memory that a host has for entries by messages takes all of one message, whatever their size: it
// waits for it.
func TestPushFits(t *testing.T) {
	p := newMemory(4*MaxEntry, nil, nil, nil).pushed // as little as Config allows
	for _, c := range p {
		if n := cap(c.free) * c.size; n < maxPush {
			t.Errorf("%d buffers of %d bytes for messages of %d", cap(c.free), c.size, maxPush)
		}
	}
}

// TestResetWhileApplying: entries that wait for the store when this host's copy is reset, and whose data is in the log only, are
// gone with the log. The copy goes on.
func TestResetWhileApplying(t *testing.T) {
	d, err := openDisk(filepath.Join(t.TempDir(), "vol"), 1, 8<<20, 1<<20, 0, func(uint64, error) {})
	if err != nil {
		t.Fatal(err)
	}
	posted := make(chan func(), 8)
	d.start(func(f func()) { posted <- f }, func(err error) { t.Errorf("the copy has ended: %v", err) })
	defer d.close()
	e := wal.Entry{Version: core.Version{Epoch: 1, Index: 1}, Kind: wal.Data, Length: block, Data: fillBlock(1)}
	evicted := item{Entry: e}
	evicted.Data = nil
	busy := make(chan struct{})
	d.persist(change{core.Persist{Seq: 1, Change: core.Append{Version: e.Version}}, &e})
	d.job(func() error { <-busy; return nil }, nil)
	counts := true
	d.apply([]item{evicted}, 1, math.MaxInt64, func(ok bool) { counts = ok })
	tail := core.Version{Epoch: 1, Index: 2}
	d.reset(tail.Index)
	d.persist(change{core.Persist{Seq: 2, Change: core.Reset{Tail: tail}}, nil})
	close(busy)
	(<-posted)()
	if counts {
		t.Error("what was applied before the reset counts")
	}
}
