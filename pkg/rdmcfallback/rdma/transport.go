package rdma

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/mcrdma/mcrdma/pkg/qp"
	"github.com/mcrdma/mcrdma/pkg/rdmcfallback"
	"github.com/mcrdma/mcrdma/pkg/rdmcfallback/schedule"
	"github.com/mcrdma/mcrdma/pkg/rdmcfallback/tcp"
)

// A Transport is an rdmcfallback.Transport over a device. Use Connect.
type Transport struct {
	mesh   *tcp.Transport
	self   int
	device qp.Device
	pd     qp.PD
	cq     qp.CQ
	depth  int // of cq
	mtu    int
	quit   chan struct{} // closed when closing
	next   chan struct{} // has a token when more events may be requested from the mesh
	ended  chan struct{} // closed when the mesh's goroutine has ended

	closing func() error // Close, once

	mu       sync.Mutex // guards the following fields, and the use of those above
	closed   bool
	closeErr error   // of the device
	peers    []*peer // nil at this member's own number
	memory   memory
	entries  int  // reserved entries of cq
	opened   bool // the ring has been opened
	happened
	wait waiter
	scratch
}

// happened are events that the engine has not been given.
type happened struct {
	events []rdmcfallback.Event // from head on, not fetched yet
	head   int
	batch  []rdmcfallback.Event // from the mesh, nil if there is none
	taken  bool                 // batch has been converted to events
}

// scratch is kept to avoid allocations.
type scratch struct {
	tell [rdmcfallback.MaxTell]byte
	wcs  [64]qp.WC
	send qp.SendWR
	recv qp.RecvWR
	sge  [1]qp.SGE
}

var (
	_ rdmcfallback.Transport = (*Transport)(nil)
	_ rdmcfallback.Defaults  = (*Transport)(nil)
	_ rdmcfallback.Leaver    = (*Transport)(nil)
)

// Connect creates the transport of one member. All members call it, in any order. It returns when
// each has met every other, or fails at every member, as tcp.Connect does. Errors wrap those of
// package tcp, ErrOptions, ErrVersion or ErrProtocol, or come from the device.
func Connect(ctx context.Context, o Options) (*Transport, error) {
	if err := o.check(); err != nil {
		if o.Listener != nil {
			_ = o.Listener.Close()
		}
		return nil, err
	}
	attr := o.Device.Attr()
	mtu := attr.ActiveMTU
	if o.PathMTU != 0 {
		mtu = min(mtu, o.PathMTU)
	}
	mine := hello{mtu: mtu, addr: attr.Addr, user: o.Hello}
	o.Hello = mine.encode()
	mesh, err := tcp.Connect(ctx, o.Options)
	if err != nil {
		return nil, err
	}
	t := &Transport{mesh: mesh, self: o.Self, device: o.Device, mtu: mtu, quit: make(chan struct{}), next: make(chan struct{}, 1), ended: make(chan struct{}),
		peers: make([]*peer, len(o.Members))}
	t.closing = sync.OnceValue(t.close)
	if err := t.open(&o); err != nil {
		return nil, errors.Join(err, t.destroy(), mesh.Close())
	}
	go t.readMesh()
	return t, nil
}

// open parses the peers' hellos and creates what all queue pairs share.
func (t *Transport) open(o *Options) (err error) {
	for i := range t.peers {
		if i == o.Self {
			continue
		}
		p := &peer{id: i}
		if p.hello, err = parseHello(t.mesh.Hello(i)); err != nil {
			return fmt.Errorf("member %d (%s): %w", i, o.Members[i], err)
		}
		t.peers[i] = p
	}
	if t.pd, err = o.Device.AllocPD(); err != nil {
		return fmt.Errorf("rdma: %w", err)
	}
	t.memory.pd = t.pd
	return t.createCQ((len(t.peers) - 1) * 2 * entriesOf(MaxPosted)) // two queue pairs with each peer
}

// Defaults implements rdmcfallback.Defaults.
func (*Transport) Defaults() (blockSize, ahead int) { return schedule.BlockRDMA, 0 }

// Hello returns the peer's Options.Hello; nil for this member itself. The caller must not change
// it.
func (t *Transport) Hello(peer int) []byte {
	if peer < 0 || peer >= len(t.peers) || t.peers[peer] == nil {
		return nil
	}
	return t.peers[peer].hello.user
}

// Rank implements rdmcfallback.Transport.
func (t *Transport) Rank() (self, members int) { return t.mesh.Rank() }

// PostRecv implements rdmcfallback.Transport. At most MaxPosted buffers may be
// posted for one peer.
func (t *Transport) PostRecv(from int, buf []byte) error {
	return t.use(from, func(p *peer) error { return t.postRecv(p, buf) })
}

// Send implements rdmcfallback.Transport.
func (t *Transport) Send(to int, imm uint32, block []byte) error {
	return t.use(to, func(p *peer) error { return t.sendBlock(p, imm, block) })
}

// Tell implements rdmcfallback.Transport.
func (t *Transport) Tell(to int, msg []byte) error {
	return t.use(to, func(*peer) error {
		if len(msg) < 1 || len(msg) > rdmcfallback.MaxTell {
			return fmt.Errorf("rdma: a message of %d bytes, must be 1 to %d", len(msg), rdmcfallback.MaxTell)
		}
		if len(msg) > partBytes {
			t.tell[0] = kindPart
			copy(t.tell[1:], msg[:partBytes])
			if err := t.mesh.Tell(to, t.tell[:]); err != nil {
				return err
			}
			msg = msg[partBytes:]
		}
		t.tell[0] = kindTold
		n := copy(t.tell[1:], msg)
		return t.mesh.Tell(to, t.tell[:1+n])
	})
}

// Forget deregisters memory that is about to be unmapped. It is for memory outside the Go runtime,
// such as a mapped file, and may be called from rdmcfallback.Config.Complete. The error wraps
// qp.ErrBusy if blocks in the memory are in flight.
func (t *Transport) Forget(buf []byte) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return nil
	}
	return t.memory.forget(buf)
}

// Close implements rdmcfallback.Transport. It waits up to 2 s for peers that do not read their
// messages. The device stays open.
func (t *Transport) Close() error { return t.closing() }

func (t *Transport) close() error {
	left := t.end(func() {})
	err := t.mesh.Close()
	<-t.ended
	t.mu.Lock()
	defer t.mu.Unlock()
	if !left {
		t.closeErr = t.destroy()
	}
	return errors.Join(err, t.closeErr)
}

// Leave implements rdmcfallback.Leaver.
func (t *Transport) Leave() {
	t.end(func() {
		t.closeErr = t.destroy()
		t.mesh.Leave()
	})
}

// end makes the transport closed, unless it is, which it reports. Then it calls f, under the lock.
func (t *Transport) end(f func()) (closed bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.closed {
		t.closed = true
		t.wait.end()
		close(t.quit)
		f()
		return false
	}
	return true
}

// destroy closes the objects created from the device.
func (t *Transport) destroy() error {
	for _, p := range t.peers {
		if p != nil {
			t.release(p)
		}
	}
	t.memory.close()
	var errs []error
	if t.cq != nil {
		errs = append(errs, t.cq.Close())
	}
	if t.pd != nil {
		errs = append(errs, t.pd.Close())
	}
	// If the device was closed before, it has closed all of these.
	errs = slices.DeleteFunc(errs, func(err error) bool { return errors.Is(err, qp.ErrClosed) })
	return errors.Join(errs...)
}
