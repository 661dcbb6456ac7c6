package replica

import (
	"context"
	"encoding/binary"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
)

var (
	seed  = flag.Uint64("replica.seed", 1, "of TestLinearizable")
	lasts = flag.Duration("replica.time", 6*time.Second, "of TestLinearizable")
)

// A blockOp is a client's call on one block.
type blockOp struct {
	write bool
	block int
	value uint64
}

// blockModel is a block: it holds what was written last.
var blockModel = porcupine.Model{
	Partition: func(history []porcupine.Operation) (parts [][]porcupine.Operation) {
		blocks := map[int][]porcupine.Operation{}
		for _, o := range history {
			b := o.Input.(blockOp).block
			blocks[b] = append(blocks[b], o)
		}
		for _, p := range blocks {
			parts = append(parts, p)
		}
		return parts
	},
	Init: func() any { return uint64(0) },
	Step: func(state, input, output any) (bool, any) {
		if in := input.(blockOp); in.write {
			return true, in.value
		}
		return output.(uint64) == state.(uint64), state
	},
}

// A history is what clients saw.
type history struct {
	begun time.Time
	mu    sync.Mutex
	ops   []porcupine.Operation
	value atomic.Uint64
	torn  atomic.Int64
}

// client calls until ctx ends, at all hosts in turn.
func (h *history) client(ctx context.Context, r *rig, id int, rnd *rand.Rand, blocks int) {
	for ctx.Err() == nil {
		v := r.any(rnd)
		if v == nil {
			continue
		}
		op := blockOp{write: rnd.IntN(2) == 0, block: rnd.IntN(blocks)}
		p := make([]byte, block)
		x := porcupine.Operation{ClientId: id, Call: time.Since(h.begun).Nanoseconds()}
		call, cancel := context.WithTimeout(ctx, 5*time.Second)
		var err error
		off := int64(op.block) * block
		if op.write {
			op.value = h.value.Add(1)
			for i := 0; i < block; i += 8 {
				binary.LittleEndian.PutUint64(p[i:], op.value)
			}
			err = v.WriteAt(call, p, off, rnd.IntN(8) == 0)
		} else {
			err = v.ReadAt(call, p, off)
			value := binary.LittleEndian.Uint64(p)
			x.Output = value
			for i := 0; i < block; i += 8 {
				if binary.LittleEndian.Uint64(p[i:]) != value && err == nil {
					h.torn.Add(1)
				}
			}
		}
		cancel()
		x.Input, x.Return = op, time.Since(h.begun).Nanoseconds()
		if err != nil && !op.write {
			continue
		}
		if err != nil { // it may take effect at any time
			x.Return = math.MaxInt64
		}
		h.mu.Lock()
		h.ops = append(h.ops, x)
		h.mu.Unlock()
	}
}

// wait waits until clients have made that many calls: a busy machine needs longer for them.
func (h *history) wait(r *rig, calls int) {
	r.wait(fmt.Sprint(calls, " calls"), func() error {
		h.mu.Lock()
		defer h.mu.Unlock()
		if len(h.ops) < calls {
			return fmt.Errorf("%d", len(h.ops))
		}
		return nil
	})
}

// any returns the volume at one of the hosts that run.
func (r *rig) any(rnd *rand.Rand) *Volume {
	r.mu.Lock()
	m := r.hosts[1+rnd.IntN(len(r.hosts)-1)]
	r.mu.Unlock()
	if m == nil {
		return nil
	}
	v, _ := m.Volume(volumeName)
	return v
}

// TestLinearizable: clients at all hosts, while hosts are killed and started again, one or two at a time: each
// block is a register.
func TestLinearizable(t *testing.T) {
	const blocks, clients = 6, 5
	o := Fast()
	o.Keep, o.Limit = 64, 1024 // some members are backfilled
	r := newRig(t, 3, 2, 8<<20, o)
	r.acting(3)
	rnd := rand.New(rand.NewPCG(*seed, 0))
	h := &history{begun: time.Now()}
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for id := range clients {
		wg.Go(func() { h.client(ctx, r, id, rand.New(rand.NewPCG(*seed, uint64(id)+1)), blocks) })
	}
	kills := 0
	for end := time.Now().Add(*lasts); time.Now().Before(end); {
		time.Sleep(time.Duration(rnd.IntN(300)) * time.Millisecond)
		hosts := rnd.Perm(3)[:1+rnd.IntN(2)]
		for _, i := range hosts {
			r.kill(i + 1)
			kills++
			time.Sleep(time.Duration(rnd.IntN(100)) * time.Millisecond)
		}
		if rnd.IntN(2) == 0 {
			time.Sleep(time.Duration(rnd.IntN(900)) * time.Millisecond)
		}
		for _, i := range hosts {
			r.start(i + 1)
		}
		r.acting(3)
	}
	cancel()
	wg.Wait()
	writes := 0
	for _, o := range h.ops {
		if o.Return != math.MaxInt64 {
			writes++
		}
	}
	t.Logf("seed %d: %d calls, %d of them done, %d kills", *seed, len(h.ops), writes, kills)
	if n := h.torn.Load(); n > 0 {
		t.Errorf("%d reads saw parts of two writes", n)
	}
	if res := porcupine.CheckOperationsTimeout(blockModel, h.ops, time.Minute); res != porcupine.Ok {
		t.Errorf("the history of blocks is not linearizable: %v (-replica.seed=%d)", res, *seed)
	}
}
