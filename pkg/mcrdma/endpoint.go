package mcrdma

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"
	"time"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/pkg/qp"
	"github.com/mcrdma/mcrdma/pkg/rocev2"
)

// The attributes of queue pairs.
const (
	ackTimeout  = 16 // 268 ms, if the daemon gives none: with the retries, longer than detecting and removing a dead receiver takes
	retries     = 7
	rnrRetries  = 7  // unlimited: a receiver may post receives at any time
	minRNRTimer = 12 // 0.64 ms
	flushWithin = time.Second
)

// A queuePair is a queue pair and its completion queue.
type queuePair struct {
	cq qp.CQ
	qp qp.QP // nil: none
}

// newQueuePair makes a queue pair in INIT.
func (c *Client) newQueuePair(depth int, init qp.Init, access qp.Access) (p queuePair, err error) {
	if p.cq, err = c.dev.CreateCQ(depth); err != nil {
		return queuePair{}, err
	}
	init.SendCQ, init.RecvCQ = p.cq, p.cq
	if p.qp, err = c.pd.CreateQP(init); err == nil {
		err = p.qp.Modify(&qp.Attr{State: qp.StateInit, Access: access}, qp.MaskInit)
	}
	if err != nil {
		p.close()
		return queuePair{}, err
	}
	return p, nil
}

// flush ends the queue pair. Acknowledged requests complete, the others are flushed; flush calls
// poll until all completions have been taken.
func (p queuePair) flush(left func() bool, poll func() error) {
	_ = p.qp.Modify(&qp.Attr{State: qp.StateError}, qp.MaskState)
	ctx, cancel := context.WithTimeout(context.Background(), flushWithin)
	defer cancel()
	for left() && p.cq.Wait(ctx) == nil && poll() == nil {
	}
}

func (p queuePair) close() {
	if p.qp != nil {
		_ = p.qp.Close()
	}
	if p.cq != nil {
		_ = p.cq.Close()
	}
}

// An endpoint has a host's queue pair and listener for a formation.
type endpoint struct {
	queuePair              // none: no device
	listener  net.Listener // nil: no relaying
}

func (e *endpoint) qpn() uint32 {
	if e.qp == nil {
		return 0
	}
	return uint32(e.qp.QPN())
}

func (e *endpoint) bootstrap() string {
	if e.listener == nil {
		return ""
	}
	return e.listener.Addr().String()
}

// listen listens for the other members of a group in which hosts relay.
func (e *endpoint) listen(c *Client) (err error) {
	e.listener, err = c.opt.Listen("tcp", net.JoinHostPort(cmp.Or(c.hello.GetBootstrap(), c.hello.GetAddress()), "0"))
	if err == nil {
		return nil
	}
	reason := mcrdmav1.Reason_LIMIT
	if errors.Is(err, syscall.EADDRNOTAVAIL) {
		reason = mcrdmav1.Reason_INVALID
	}
	failed := newError(reason, "host %s cannot listen for relaying (see bootstrap in its daemon's configuration): %v", c.Host(), err)
	failed.under = err
	return failed
}

// close closes what no path has taken over.
func (e *endpoint) close() {
	e.queuePair.close()
	if e.listener != nil {
		_ = e.listener.Close()
	}
	*e = endpoint{}
}

// timeoutOf is the local ACK timeout, as its exponent.
func timeoutOf(c *mcrdmav1.Connection) uint8 {
	if t := c.GetTimeout(); t > 0 && t < 32 {
		return uint8(t)
	}
	return ackTimeout
}

// ready takes a queue pair from INIT to RTS.
func ready(q qp.QP, c *mcrdmav1.Connection) error {
	addr, err := netip.ParseAddr(c.GetAddress())
	if err != nil {
		return fmt.Errorf("%w: %w", ErrDaemon, err)
	}
	psn := rocev2.PSN(c.GetPsn())
	err = q.Modify(&qp.Attr{State: qp.StateRTR, DestAddr: addr, DestQPN: rocev2.QPN(c.GetQpn()), PathMTU: int(c.GetMtu()),
		RQPSN: psn, MinRNRTimer: minRNRTimer, DSCP: uint8(c.GetDscp())}, qp.MaskRTR|qp.MaskDSCP)
	if err != nil {
		return err
	}
	return q.Modify(&qp.Attr{State: qp.StateRTS, SQPSN: psn, Timeout: timeoutOf(c), RetryCnt: retries, RNRRetry: rnrRetries}, qp.MaskRTS)
}
