package lab

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mcrdma/mcrdma/internal/softswitch/ports"
)

// An Impairment is what a link does to frames, in each direction, at random. The zero Impairment
// does nothing.
type Impairment struct {
	Loss    float64 // share of frames that are lost
	Reorder float64 // share of frames that are overtaken by others, for up to a millisecond
	Double  float64 // share of frames that arrive twice
	Corrupt float64 // share of frames with a wrong bit
	// Rate is in bits per second; frames that find the interface's buffer full are lost. 0:
	// unlimited.
	Rate uint64
	Seed uint64
}

func (i Impairment) none() bool { return i == (Impairment{Seed: i.Seed}) }

// Cut is a pulled cable.
var Cut = Impairment{Loss: 1}

// Impair sets the impairment of the wire between two nodes from now on. The lab must be Wired.
func (l *Lab) Impair(a, b string, imp Impairment) error {
	for _, w := range l.wires {
		if w.nodes == [2]string{a, b} || w.nodes == [2]string{b, a} {
			w.imp.Store(&imp)
			return nil
		}
	}
	return fmt.Errorf("there is no wire between %s and %s", a, b)
}

// Tamper calls f for each frame that a node sends to another on the wire. The frames that f returns
// go back to the node, as if from the other. The lab must be Wired.
func (l *Lab) Tamper(from, to string, f func(frame []byte) [][]byte) error {
	for _, w := range l.wires {
		for i, d := range w.ways {
			if w.nodes[i] == from && w.nodes[1-i] == to {
				d.tamper.Store(&f)
				return nil
			}
		}
	}
	return fmt.Errorf("there is no wire from %s to %s", from, to)
}

// ToR returns the switch of a host's rack.
func (h *HostNode) ToR() *SwitchNode { return h.lab.Switch(torOf(h.lab.Spec.seats()[h.index].rack)) }

// late is how long a frame may be held until others overtake it.
const late = time.Millisecond

// A wire joins two interfaces in user space, and impairs the frames. It does what netem does, which
// not every kernel has, and from a seed.
type wire struct {
	nodes [2]string
	ends  [2]ports.Port
	ways  [2]*direction
	imp   atomic.Pointer[Impairment]
	done  sync.WaitGroup

	passed, lost, held, doubled, corrupted atomic.Uint64
}

func newWire(nodes [2]string, ends [2]ports.Port, imp Impairment) *wire {
	w := &wire{nodes: nodes, ends: ends}
	w.imp.Store(&imp)
	for i := range 2 {
		w.ways[i] = &direction{wire: w, from: w.ends[i], to: w.ends[1-i], rng: rand.New(rand.NewPCG(imp.Seed, uint64(i)))}
	}
	for i, d := range w.ways {
		w.done.Go(func() { d.run(w.ways[1-i]) })
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
	free  time.Time // when a slow wire has sent all frames so far

	tamper atomic.Pointer[func([]byte) [][]byte]
}

const maxFrame = 9100

func (d *direction) run(back *direction) {
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
		if f := d.tamper.Load(); f != nil {
			for _, b := range bufs[:n] {
				back.add((*f)(b))
			}
		}
	}
}

// pass sends those of some frames that are not lost or held.
func (d *direction) pass(frames [][]byte) {
	d.out = d.out[:0]
	imp := d.imp.Load()
	for _, f := range frames {
		if imp.Rate > 0 {
			d.pace(len(f), imp.Rate)
		}
		switch x := d.rng.Float64(); {
		case x < imp.Loss:
			d.wire.lost.Add(1)
		case x < imp.Loss+imp.Reorder:
			d.wire.held.Add(1)
			d.held = append(d.held, append([]byte(nil), f...))
			d.timer.Reset(late)
		case x < imp.Loss+imp.Reorder+imp.Double:
			d.doubled.Add(1)
			d.out = append(d.out, f, f)
		case x < imp.Loss+imp.Reorder+imp.Double+imp.Corrupt:
			d.corrupted.Add(1)
			f[d.rng.IntN(len(f))] ^= 1 << d.rng.IntN(8)
			d.out = append(d.out, f)
		default:
			d.out = append(d.out, f)
			if len(d.held) > 0 && d.rng.IntN(4) == 0 { // held frames follow later ones
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

// add sends more frames.
func (d *direction) add(frames [][]byte) {
	if len(frames) > 0 {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.pass(frames)
	}
}

// pace waits for a slow wire.
func (d *direction) pace(bytes int, rate uint64) {
	if now := time.Now(); d.free.Before(now) {
		d.free = now
	}
	d.free = d.free.Add(time.Duration(uint64(bytes) * 8 * uint64(time.Second) / rate))
	if wait := time.Until(d.free); wait > time.Millisecond { // frames come in bursts of a millisecond
		time.Sleep(wait)
	}
}

// flush sends held frames that none has overtaken.
func (d *direction) flush() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.wire.passed.Add(uint64(d.to.Send(d.held)))
	d.held = nil
}
