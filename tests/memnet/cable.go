package memnet

import (
	"net"
	"sync"
	"sync/atomic"

	"github.com/mcrdma/mcrdma/internal/softswitch/ports"
	"github.com/mcrdma/mcrdma/pkg/qp/softroce/framelink"
)

// cableQueue is how many frames wait at each end of a cable.
const cableQueue = 2048

// A Cable carries frames both ways, and loses them while it is cut.
type Cable struct {
	// Tap, if not nil, is called with each frame that a side sends into a cable that is not
	// cut. It must not keep the frame.
	Tap func(side int, frame []byte)
	// Disturb, if not nil, is called before each frame, and says whether it is lost, or late: behind the next one.
	Disturb func() (lost, late bool)

	ends [2]chan []byte // on the way to each end
	cut  [2]atomic.Bool // for what each end sends

	mu   sync.Mutex
	held [2][]byte // a late frame of each end
}

// NewCable makes a cable.
func NewCable() *Cable {
	return &Cable{ends: [2]chan []byte{make(chan []byte, cableQueue), make(chan []byte, cableQueue)}}
}

// A Plug is in one end of a cable, until it is closed.
type Plug struct {
	name    string
	c       *Cable
	side    int
	closed  chan struct{}
	once    sync.Once
	rx, tx  atomic.Uint64
	dropped atomic.Uint64
}

// Cut loses all frames, or ends that.
func (c *Cable) Cut(on bool) {
	c.CutFrom(0, on)
	c.CutFrom(1, on)
}

// CutFrom loses all frames that a side sends, or ends that.
func (c *Cable) CutFrom(side int, on bool) { c.cut[side].Store(on) }

// IsCut reports whether frames are lost, of one side or both.
func (c *Cable) IsCut() bool { return c.cut[0].Load() || c.cut[1].Load() }

// Plug returns a plug at an end, on which nothing waits.
func (c *Cable) Plug(side int, name string) *Plug {
	for {
		select {
		case <-c.ends[side]:
			continue
		default:
		}
		return &Plug{name: name, c: c, side: side, closed: make(chan struct{})}
	}
}

func (p *Plug) up() bool {
	select {
	case <-p.closed:
		return false
	default:
		return true
	}
}

// Close pulls the plug.
func (p *Plug) Close() error {
	p.once.Do(func() { close(p.closed) })
	return nil
}

func (p *Plug) send(frames [][]byte) int {
	if !p.up() {
		return 0
	}
	if p.c.cut[p.side].Load() {
		return len(frames) // silently
	}
	for _, f := range frames {
		if p.c.Tap != nil {
			p.c.Tap(p.side, f)
		}
		for _, f := range p.c.disturbed(p.side, append([]byte(nil), f...)) {
			select {
			case p.c.ends[1-p.side] <- f:
				p.tx.Add(1)
			default:
				p.dropped.Add(1)
			}
		}
	}
	return len(frames)
}

// disturbed returns the frames that come when a side has sent one.
func (c *Cable) disturbed(side int, f []byte) [][]byte {
	if c.Disturb == nil {
		return [][]byte{f}
	}
	lost, late := c.Disturb()
	c.mu.Lock()
	defer c.mu.Unlock()
	held := c.held[side]
	switch {
	case lost:
		return nil
	case late && held == nil:
		c.held[side] = f
		return nil
	case held == nil:
		return [][]byte{f}
	}
	c.held[side] = nil
	return [][]byte{f, held}
}

// recv calls take for the frames that are there, at least one and most at most.
func (p *Plug) recv(most int, take func(i int, frame []byte)) (int, error) {
	for n := 0; ; {
		select {
		case <-p.closed:
			return 0, net.ErrClosed
		case f := <-p.c.ends[p.side]:
			take(n, f)
			n++
			p.rx.Add(1)
		}
		if n == most || len(p.c.ends[p.side]) == 0 {
			return n, nil
		}
	}
}

// A Port is a plug at a switch.
type Port struct{ *Plug }

var _ ports.Port = Port{}

// Name is the name that the plug was given.
func (p Port) Name() string { return p.name }

// Send sends frames, and returns how many the cable took.
func (p Port) Send(frames [][]byte) int { return p.send(frames) }

// Up reports whether the plug is in.
func (p Port) Up() bool { return p.up() }

// Stats counts frames.
func (p Port) Stats() ports.Stats {
	return ports.Stats{RxPackets: p.rx.Load(), TxPackets: p.tx.Load()}
}

// Recv waits for frames.
func (p Port) Recv(bufs [][]byte) (int, error) {
	return p.recv(min(len(bufs), ports.MaxBatch), func(i int, f []byte) { bufs[i] = append(bufs[i][:0], f...) })
}

// A NIC is a plug at a host.
type NIC struct{ *Plug }

var _ framelink.Conn = NIC{}

// Send sends frames; those for which the cable has no room are lost.
func (n NIC) Send(frames [][]byte) error {
	if !n.up() {
		return net.ErrClosed
	}
	n.send(frames)
	return nil
}

// Recv waits for frames.
func (n NIC) Recv(frames [][]byte) (int, error) {
	return n.recv(len(frames), func(i int, f []byte) { frames[i] = f })
}

// Counters adds what was lost for want of room.
func (n NIC) Counters(m map[string]uint64) { m["tx_drop_overflow"] += n.dropped.Load() }

// A Hub connects cables without a switch: it passes frames on to the cable from which their
// destination has sent, or else to all. The zero value works.
type Hub struct {
	wg sync.WaitGroup

	mu    sync.Mutex
	plugs []*Plug
	at    map[[6]byte]*Plug // by MAC
}

// Attach plugs a cable's end 0 in.
func (h *Hub) Attach(c *Cable) {
	p := c.Plug(0, "hub")
	h.mu.Lock()
	defer h.mu.Unlock()
	h.plugs = append(h.plugs, p)
	h.wg.Go(func() {
		for {
			if _, err := p.recv(1, func(_ int, f []byte) { h.pass(p, f) }); err != nil {
				return
			}
		}
	})
}

func (h *Hub) pass(from *Plug, f []byte) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.at == nil {
		h.at = map[[6]byte]*Plug{}
	}
	h.at[[6]byte(f[6:12])] = from
	if to := h.at[[6]byte(f[:6])]; to != nil {
		to.send([][]byte{f})
		return
	}
	for _, p := range h.plugs {
		if p != from {
			p.send([][]byte{f})
		}
	}
}

// Close pulls all plugs, and waits.
func (h *Hub) Close() {
	h.mu.Lock()
	for _, p := range h.plugs {
		_ = p.Close()
	}
	h.mu.Unlock()
	h.wg.Wait()
}
