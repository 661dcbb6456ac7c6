//go:build ibverbs && cgo && linux

package ibverbs

/*
#cgo noescape mc_poll_cq
#cgo nocallback mc_poll_cq
#include "shim.h"
*/
import "C"

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/mcrdma/mcrdma/pkg/qp"
	"github.com/mcrdma/mcrdma/pkg/rocev2"
)

// pollBatch is how many completions are taken from libibverbs at once.
const pollBatch = 32

// A completionQueue is an ibv_cq with a completion channel of its own.
type completionQueue struct {
	dev     *device
	cq      *C.struct_ibv_cq
	channel *C.struct_ibv_comp_channel
	file    *os.File // a duplicate of the channel's file, for waiting
	// waiting is held by the one goroutine that waits on file; others queue for
	// it. Close takes it and never returns it.
	waiting chan struct{}
	closing chan struct{}

	mu     sync.Mutex // protects what follows, and libibverbs' polling
	closed bool
	lost   bool // an overrun to be reported
	users  int  // queue pairs, each counted once per direction
	// buf[off:n] has been taken from libibverbs, but not by Poll yet.
	buf    [pollBatch]C.struct_mc_wc
	off, n int
}

func (d *device) CreateCQ(depth int) (qp.CQ, error) {
	if depth < 1 || depth > d.attr.MaxCQE {
		return nil, fmt.Errorf("%w: completion queue depth %d is not 1..%d", qp.ErrLimit, depth, d.attr.MaxCQE)
	}
	c, err := create(d, d.cqs, func() (*completionQueue, error) {
		c := &completionQueue{dev: d, waiting: make(chan struct{}, 1), closing: make(chan struct{})}
		err := check("ibv_create_cq", C.mc_create_cq(d.ctx, C.int(depth), &c.channel, &c.cq))
		if err != nil {
			return nil, err
		}
		if c.file, err = dupFile(c.channel.fd, "ibverbs completions"); err != nil {
			return nil, errors.Join(err, c.destroy())
		}
		return c, nil
	})
	if err != nil {
		return nil, err
	}
	return c, nil
}

func (c *completionQueue) destroy() error {
	if err := check("ibv_destroy_cq", C.ibv_destroy_cq(c.cq)); err != nil {
		return err
	}
	return check("ibv_destroy_comp_channel", C.ibv_destroy_comp_channel(c.channel))
}

// use counts a new user, unless the queue is closed.
func (c *completionQueue) use() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return fmt.Errorf("%w: completion queue", qp.ErrClosed)
	}
	c.users++
	return nil
}

func (c *completionQueue) release() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.users--
}

// overrun makes the next Poll report lost completions, and wakes Wait.
func (c *completionQueue) overrun() {
	c.mu.Lock()
	c.lost = true
	c.mu.Unlock()
	c.wake()
}

// wake makes the waiting goroutine check its conditions. Closing the file, the
// only way for the deadline to fail, does the same.
func (c *completionQueue) wake() { _ = c.file.SetReadDeadline(time.Unix(1, 0)) }

// fill makes sure that buf is not empty if there are completions. The caller
// holds mu.
func (c *completionQueue) fill() error {
	if c.closed {
		return qp.ErrClosed
	}
	if c.off < c.n {
		return nil
	}
	got := C.mc_poll_cq(c.cq, pollBatch, &c.buf[0])
	c.off, c.n = 0, max(0, int(got))
	if got < 0 {
		return check("ibv_poll_cq", -got)
	}
	return nil
}

func (c *completionQueue) Poll(wc []qp.WC) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.lost && !c.closed {
		c.lost = false
		return 0, qp.ErrOverrun
	}
	n := 0
	for n < len(wc) {
		if err := c.fill(); err != nil {
			return n, err
		}
		if c.off == c.n {
			break
		}
		for ; c.off < c.n && n < len(wc); n, c.off = n+1, c.off+1 {
			convertWC(&wc[n], &c.buf[c.off])
		}
	}
	if n == 0 && c.closed {
		return 0, qp.ErrClosed
	}
	return n, nil
}

func convertWC(to *qp.WC, from *C.struct_mc_wc) {
	*to = qp.WC{
		ID:        uint64(from.id),
		Status:    wcStatus(uint32(from.status)),
		Opcode:    wcOpcode(int(from.opcode)),
		QPN:       rocev2.QPN(from.qpn),
		ByteLen:   uint32(from.byte_len),
		VendorErr: uint32(from.vendor_err),
	}
	if from.status == 0 && from.flags&vWCWithImm != 0 {
		to.HasImm, to.Imm = true, uint32(from.imm)
	}
}

// ready reports whether Poll has something to return.
func (c *completionQueue) ready() (bool, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.lost && !c.closed {
		return true, nil
	}
	err := c.fill()
	return c.off < c.n, err
}

// arm asks for an event and reports whether that is too late, because there
// are completions already.
func (c *completionQueue) arm() (bool, error) {
	if ok, err := c.ready(); ok || err != nil {
		return ok, err
	}
	if err := check("ibv_req_notify_cq", C.mc_req_notify(c.cq)); err != nil {
		return false, err
	}
	return c.ready()
}

func (c *completionQueue) Wait(ctx context.Context) error {
	select {
	case c.waiting <- struct{}{}:
		defer func() { <-c.waiting }()
	case <-c.closing:
		return qp.ErrClosed
	case <-ctx.Done():
		return ctx.Err()
	}
	raw, err := c.file.SyscallConn()
	if err != nil {
		return qp.ErrClosed
	}
	stop := context.AfterFunc(ctx, c.wake)
	defer stop()
	for {
		// An ended context (also that of an earlier Wait) and an overrun wake
		// this goroutine by a deadline in the past. The deadline is removed
		// first and its causes are checked afterward, so that none is missed.
		if c.file.SetReadDeadline(time.Time{}) != nil {
			return qp.ErrClosed
		}
		if ok, err := c.arm(); ok || err != nil {
			return err
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		var errno C.int
		err := raw.Read(func(uintptr) bool {
			errno = C.mc_get_cq_event(c.channel)
			return syscall.Errno(errno) != syscall.EAGAIN
		})
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
		case err != nil:
			return qp.ErrClosed
		case errno != 0:
			return check("ibv_get_cq_event", errno)
		}
	}
}

func (c *completionQueue) Close() error {
	c.mu.Lock()
	switch {
	case c.closed:
		c.mu.Unlock()
		return qp.ErrClosed
	case c.users > 0:
		n := c.users
		c.mu.Unlock()
		return fmt.Errorf("%w: queue pairs use the completion queue (%d times)", qp.ErrBusy, n)
	}
	c.closed = true
	c.mu.Unlock()
	close(c.closing)
	c.file.Close()
	c.waiting <- struct{}{} // until the waiting goroutine is out of libibverbs
	forget(c.dev, c.dev.cqs, c)
	return c.destroy()
}
