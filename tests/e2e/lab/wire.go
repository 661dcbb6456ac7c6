package lab

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mcrdma/mcrdma/internal/softswitch/ports"
)

// An Impairment is what a link does to frames, in each direction, at random. The
// zero Impairment does nothing.
type Impairment struct {
	Loss    float64 // share of frames that are lost
	Reorder float64 // share of frames that are overtaken by others, for up to a millisecond
	Double  float64 // share of frames that arrive twice
	Seed    uint64
}

func (i Impairment) none() bool { return i.Loss == 0 && i.Reorder == 0 && i.Double == 0 }

// late is how long a frame may be held for others to overtake it.
const late = time.Millisecond

// A wire joins two interfaces by hand, and impairs what passes. It does what
// netem does, which not every kernel has, and from a seed.
type wire struct {
	ends [2]ports.Port
	imp  Impairment
	done sync.WaitGroup

	passed, lost, held, doubled atomic.Uint64
}

func newWire(a, b ports.Port, imp Impairment) *wire {
	w := &wire{ends: [2]ports.Port{a, b}, imp: imp}
	for i := range 2 {
		d := &direction{wire: w, from: w.ends[i], to: w.ends[1-i], rng: rand.New(rand.NewPCG(imp.Seed, uint64(i)))}
		w.done.Go(d.run)
	}
	return w
}

func (w *wire) close() {
	for _, p := range w.ends {
		_ = p.Close()
	}
	w.done.Wait()
}

type direction struct {
	*wire
	from, to ports.Port
	rng      *rand.Rand

	mu    sync.Mutex // one sends at a time
	held  [][]byte
	out   [][]byte
	timer *time.Timer
}

const maxFrame = 9100

func (d *direction) run() {
	bufs := make([][]byte, ports.MaxBatch)
	for i := range bufs {
		bufs[i] = make([]byte, 0, maxFrame)
	}
	d.timer = time.AfterFunc(time.Hour, d.flush)
	defer d.timer.Stop()
	for {
		n, err := d.from.Recv(bufs)
		if err != nil {
			return
		}
		d.mu.Lock()
		d.pass(bufs[:n])
		d.mu.Unlock()
	}
}

// pass sends what is to be sent of some frames.
func (d *direction) pass(frames [][]byte) {
	d.out = d.out[:0]
	for _, f := range frames {
		switch x := d.rng.Float64(); {
		case x < d.imp.Loss:
			d.wire.lost.Add(1)
		case x < d.imp.Loss+d.imp.Reorder:
			d.wire.held.Add(1)
			d.held = append(d.held, append([]byte(nil), f...))
			d.timer.Reset(late)
		case x < d.imp.Loss+d.imp.Reorder+d.imp.Double:
			d.doubled.Add(1)
			d.out = append(d.out, f, f)
		default:
			d.out = append(d.out, f)
			if len(d.held) > 0 && d.rng.IntN(4) == 0 { // what was held follows those that came later
				d.out = append(d.out, d.held...)
				d.held = nil
			}
		}
	}
	for rest := d.out; len(rest) > 0; {
		n := min(len(rest), ports.MaxBatch)
		d.wire.passed.Add(uint64(d.to.Send(rest[:n])))
		rest = rest[n:]
	}
}

// flush sends what nothing came to overtake.
func (d *direction) flush() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.wire.passed.Add(uint64(d.to.Send(d.held)))
	d.held = nil
}
