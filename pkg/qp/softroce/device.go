package softroce

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mcrdma/mcrdma/pkg/qp"
	"github.com/mcrdma/mcrdma/pkg/qp/rc"
	"github.com/mcrdma/mcrdma/pkg/qp/softroce/link"
	"github.com/mcrdma/mcrdma/pkg/rocev2"
)

const driverName = "softroce"

// Limits of a device.
const (
	MaxSGE  = 32
	MaxQPWR = 1 << 15
	MaxCQE  = 1 << 20
	MaxMR   = mrChunks*mrChunk - 1
)

// Options of a Device. The zero value is right for most.
type Options struct {
	// Name is what Device.Name returns; "" means "softroce:" and the address.
	Name string
	// Window is the largest number of packets that a queue pair has
	// unacknowledged; 0 means a default that depends on the path MTU.
	Window int
	// CC holds the congestion control parameters. Unless it is disabled,
	// packets with data are sent as ECN-capable, ECT(0).
	CC rc.CCParams
}

// A Device is a RoCEv2 device in user space; it implements qp.Device.
type Device struct {
	name  string
	link  link.Link
	addr  netip.Addr
	mtu   int // largest path MTU
	opt   Options
	epoch time.Time

	heldUp atomic.Int64 // see now; nanoseconds

	mu     sync.Mutex // guards what follows, and the life of PDs, CQs and QPs
	closed bool
	pds    map[*PD]struct{}
	cqs    map[*CQ]struct{}

	qps      qpTable
	mrs      mrTable
	timers   timers
	limiter  limiter
	events   chan qp.Event
	done     chan struct{} // closed by Close
	stopped  sync.WaitGroup
	counters counters
	batches  sync.Pool // of *txBatch
}

var _ qp.Device = (*Device)(nil)

// New makes a device on l and starts it. The device owns l from then on and
// closes it with itself, also if New fails.
func New(l link.Link, opt Options) (*Device, error) {
	d := &Device{
		name: cmp.Or(opt.Name, driverName+":"+l.Addr().String()), link: l, addr: l.Addr(), mtu: qp.MTUFor(l.MTU()), opt: opt, epoch: time.Now(),
		pds: map[*PD]struct{}{}, cqs: map[*CQ]struct{}{},
		events: make(chan qp.Event, eventDepth), done: make(chan struct{}),
	}
	if d.mtu == 0 {
		l.Close()
		return nil, fmt.Errorf("softroce: %w: %s: MTU %d is too small for any path MTU; 320 is the least",
			qp.ErrDevice, d.name, l.MTU())
	}
	d.qps.init(rand.Uint32())
	d.mrs.init(rand.Uint32())
	d.timers.init()
	d.batches.New = func() any { return newTxBatch() }
	d.stopped.Go(d.receive)
	d.stopped.Go(d.serveTimers)
	return d, nil
}

// now returns the device's own time: the time since it was made, without that in which it was
// held up. When it has been, that steps back.
func (d *Device) now() time.Duration {
	return time.Since(d.epoch) - time.Duration(d.heldUp.Load())
}

// Name implements qp.Device.
func (d *Device) Name() string { return d.name }

// Attr implements qp.Device.
func (d *Device) Attr() qp.DeviceAttr {
	return qp.DeviceAttr{Driver: driverName, Addr: d.addr, ActiveMTU: d.mtu,
		MaxSGE: MaxSGE, MaxQPWR: MaxQPWR, MaxCQE: MaxCQE}
}

// AllocPD implements qp.Device.
func (d *Device) AllocPD() (qp.PD, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil, errClosed("device")
	}
	p := &PD{dev: d, mrs: map[*MR]struct{}{}, qps: map[*QP]struct{}{}}
	d.pds[p] = struct{}{}
	return p, nil
}

// Close implements qp.Device. Peers are not told; their queue pairs run into
// time-outs.
func (d *Device) Close() error {
	d.mu.Lock()
	if d.closed {
		d.mu.Unlock()
		return errClosed("device")
	}
	d.closed = true
	d.mu.Unlock()

	close(d.done)
	err := d.link.Close()
	d.stopped.Wait()

	for _, q := range d.qps.all() {
		q.destroy()
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for c := range d.cqs {
		c.destroy()
	}
	for p := range d.pds {
		for m := range p.mrs {
			d.mrs.remove(m)
		}
		p.closed = true
	}
	clear(d.pds)
	clear(d.cqs)
	return err
}

// eventDepth is how many events wait to be read; more are counted as lost.
const eventDepth = 256

// Event implements qp.Device.
func (d *Device) Event(ctx context.Context) (qp.Event, error) {
	select {
	case e := <-d.events:
		return e, nil
	default:
	}
	select {
	case e := <-d.events:
		return e, nil
	case <-d.done:
		return qp.Event{}, errClosed("device")
	case <-ctx.Done():
		return qp.Event{}, ctx.Err()
	}
}

func (d *Device) event(t qp.EventType, qpn rocev2.QPN, err error) {
	select {
	case d.events <- qp.Event{Type: t, QPN: qpn, Err: err}:
	default:
		d.counters.eventsLost.Add(1)
	}
}

func errClosed(what string) error { return fmt.Errorf("softroce: %w: %s", qp.ErrClosed, what) }

// closing reports whether err only says that the link was closed by Close.
func (d *Device) closing() bool {
	select {
	case <-d.done:
		return true
	default:
		return false
	}
}
