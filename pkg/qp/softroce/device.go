package softroce

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mcrdma/mcrdma/pkg/qp"
	"github.com/mcrdma/mcrdma/pkg/qp/rc"
	"github.com/mcrdma/mcrdma/pkg/qp/softroce/link"
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
	// CC has the congestion control parameters. Unless it is disabled, packets with data are sent
	// as ECN-capable, ECT(0).
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

var (
	_ qp.Device = (*Device)(nil)
	_ qp.Poller = (*Device)(nil)
)

// New makes a device on l and starts it. The device owns l from then on, and closes it when it is
// closed, or if New fails.
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
	d.qps.init(d.addr.As4(), rand.Uint32())
	d.mrs.init(rand.Uint32())
	d.timers.init()
	d.batches.New = func() any { return newTxBatch() }
	d.stopped.Go(d.receive)
	d.stopped.Go(d.serveTimers)
	return d, nil
}

// Name implements qp.Device.
func (d *Device) Name() string { return d.name }

// Attr implements qp.Device.
func (d *Device) Attr() qp.DeviceAttr {
	l, seeing := d.link.(link.Seeing)
	return qp.DeviceAttr{Driver: driverName, Addr: d.addr, ActiveMTU: d.mtu,
		MaxSGE: MaxSGE, MaxQPWR: MaxQPWR, MaxCQE: MaxCQE, SeesIdentification: seeing && l.SeesIdentification()}
}

// PollFor implements qp.Poller, if the link can.
func (d *Device) PollFor(t time.Duration) {
	if l, ok := d.link.(link.Polling); ok {
		l.PollFor(t)
	}
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

// Close implements qp.Device. Peers are not notified; their queue pairs time out.
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

// heldUp is how late the timer goroutine may wake before the device counts as held up.
const heldUp = 2 * time.Millisecond

// serveTimers is the timer goroutine. If it wakes late, the process or this goroutine was not
// scheduled, and answers may be waiting in the socket: that time does not count as a peer's failure
// to answer.
func (d *Device) serveTimers() {
	clock := time.NewTimer(time.Hour)
	defer clock.Stop()
	for {
		now := d.now()
		q, c, until := d.timers.due(now)
		switch {
		case q != nil:
			q.expire(now)
		case c != nil:
			c.failUsers()
		default:
			clock.Reset(min(until-now, time.Hour))
			select {
			case <-clock.C:
				if late := d.now() - until; late > heldUp {
					d.heldUp.Add(int64(late))
				}
			case <-d.timers.wake:
			case <-d.done:
			}
		}
		if d.closing() {
			return
		}
	}
}

// failUsers brings the queue pairs that feed a broken queue to the error
// state.
func (c *CQ) failUsers() {
	for _, q := range c.dev.qps.all() {
		if q.sendCQ == c || q.recvCQ == c {
			q.cqFailed()
		}
	}
}
