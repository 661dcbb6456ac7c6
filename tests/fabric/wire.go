package fabric

import (
	"fmt"
	"net"
	"sync"
	"sync/atomic"

	"github.com/mcrdma/mcrdma/internal/softswitch/ports"
)

// wireQueue is how many frames wait at each end of a wire.
const wireQueue = 2048

// A Wire joins two ports. Frames go through it at once, or get lost: when it is
// cut, or when too many wait at its end.
type Wire struct {
	A, B End
	tap  *atomic.Pointer[tap] // the fabric's

	sockets [2]socket // at A, at B
	cut     [2]atomic.Bool
	full    atomic.Uint64 // frames lost
}

// A tap sees the frames that come through wires. It must not keep them.
type tap func(w *Wire, from int, frame []byte)

// An End is where a wire is plugged in: at a switch's port, or at a host.
type End struct {
	Node string
	Port uint16 // 0 at hosts
}

func (e End) String() string {
	if e.Port == 0 {
		return e.Node
	}
	return fmt.Sprintf("%s/%d", e.Node, e.Port)
}

func (w *Wire) String() string { return fmt.Sprintf("%v–%v", w.A, w.B) }

// from is the end that frames of a direction come from.
func (w *Wire) from(side int) End {
	if side == 0 {
		return w.A
	}
	return w.B
}

// up says that frames get through in both directions.
func (w *Wire) up() bool { return !w.cut[0].Load() && !w.cut[1].Load() }

func newWire(a, b End, t *atomic.Pointer[tap]) *Wire {
	w := &Wire{A: a, B: b, tap: t}
	for i := range w.sockets {
		w.sockets[i] = socket{wire: w, side: i, in: make(chan *frame, wireQueue)}
	}
	return w
}

// A frame on its way. Its room is used again.
type frame struct{ b []byte }

var frames = sync.Pool{New: func() any { return new(frame) }}

// send puts a frame in at one end.
func (w *Wire) send(side int, b []byte) {
	if w.cut[side].Load() {
		return
	}
	if t := w.tap.Load(); t != nil {
		(*t)(w, side, b)
	}
	f := frames.Get().(*frame)
	f.b = append(f.b[:0], b...)
	select {
	case w.sockets[1-side].in <- f:
	default:
		w.full.Add(1)
		frames.Put(f)
	}
}

// A socket is one end of a wire. One plug at a time is in it.
type socket struct {
	wire *Wire
	side int
	in   chan *frame
}

// plug returns a port at this end of the wire, on which nothing waits.
func (s *socket) plug() *plug {
	for {
		select {
		case f := <-s.in:
			frames.Put(f)
			continue
		default:
		}
		return &plug{socket: s, closed: make(chan struct{})}
	}
}

// A plug is a ports.Port. It is up as long as it is not closed, whatever is the
// matter with the wire.
type plug struct {
	*socket
	once   sync.Once
	closed chan struct{}

	rxPackets, rxBytes, txPackets, txBytes atomic.Uint64
}

var _ ports.Port = (*plug)(nil)

func (p *plug) Name() string { return p.wire.from(p.side).String() }

// next waits for a frame; nil: the plug is closed.
func (p *plug) next() *frame {
	select {
	case f := <-p.in:
		p.rxPackets.Add(1)
		p.rxBytes.Add(uint64(len(f.b)))
		return f
	case <-p.closed:
		return nil
	}
}

// more returns a frame that is there, or nil.
func (p *plug) more() *frame {
	select {
	case f := <-p.in:
		p.rxPackets.Add(1)
		p.rxBytes.Add(uint64(len(f.b)))
		return f
	default:
		return nil
	}
}

func (p *plug) Recv(bufs [][]byte) (int, error) {
	for n := 0; ; {
		f := p.more()
		if f == nil && n > 0 {
			return n, nil
		}
		if f == nil {
			f = p.next()
		}
		if f == nil {
			return 0, fmt.Errorf("fabric: %s: %w", p.Name(), net.ErrClosed)
		}
		if len(f.b) <= cap(bufs[n]) {
			bufs[n] = append(bufs[n][:0], f.b...)
			n++
		}
		frames.Put(f)
		if n == min(len(bufs), ports.MaxBatch) {
			return n, nil
		}
	}
}

func (p *plug) Send(list [][]byte) int {
	if !p.Up() {
		return 0
	}
	for _, b := range list {
		p.txPackets.Add(1)
		p.txBytes.Add(uint64(len(b)))
		p.wire.send(p.side, b)
	}
	return len(list)
}

func (p *plug) Up() bool {
	select {
	case <-p.closed:
		return false
	default:
		return true
	}
}

func (p *plug) Stats() ports.Stats {
	return ports.Stats{RxPackets: p.rxPackets.Load(), RxBytes: p.rxBytes.Load(), TxPackets: p.txPackets.Load(), TxBytes: p.txBytes.Load()}
}

func (p *plug) Close() error {
	p.once.Do(func() { close(p.closed) })
	return nil
}
