package unicast

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"
)

// patience is how long making a connection may take.
const patience = 5 * time.Second

var errReplaced = errors.New("another connection took its place")

// Dial carries the sender's end over a new connection, to the member with that address and secret. It
// returns why it ended, or could not be made.
func (e *End) Dial(ctx context.Context, conn net.Conn, addr netip.Addr, secret Secret) error {
	return e.carry(ctx, conn, func(mine Hello, q *rdma) (link, error) {
		mine.Secret, mine.Timeout = secret, e.cfg.Timeout
		if err := writeHello(conn, mine, nil); err != nil {
			return nil, err
		}
		h, err := ReadHello(conn)
		if err != nil {
			return nil, fmt.Errorf("the member has ended, or is another one: %w", err)
		}
		if int(h.Regions) != len(e.cfg.Lengths) {
			return nil, fmt.Errorf("%w: it has %d regions, and granted %d", ErrPeer, h.Regions, len(e.cfg.Lengths))
		}
		regions, err := readRegions(conn, h.Regions)
		if err != nil {
			return nil, err
		}
		for i, r := range regions {
			if r.Length < e.cfg.Lengths[i] {
				return nil, fmt.Errorf("%w: region %d has %d bytes, and %d were granted", ErrPeer, i, r.Length, e.cfg.Lengths[i])
			}
		}
		l := e.choose(conn, q, h)
		if q, ok := l.(*rdma); ok {
			q.remote = regions
			err = q.connect(mine, h, addr, e.cfg.Timeout)
		}
		if err == nil {
			_, err = conn.Write([]byte{0})
		}
		return l, err
	})
}

// Serve carries the member's end over a connection that a sender with that address has made. h is what
// ReadHello has read from it. It returns why it ended.
func (e *End) Serve(ctx context.Context, conn net.Conn, h Hello, addr netip.Addr) error {
	return e.carry(ctx, conn, func(mine Hello, q *rdma) (link, error) {
		var regions []Remote
		for _, r := range e.cfg.Regions {
			at := Remote{Length: uint64(len(r.Bytes))}
			if r.MR != nil {
				at.VA, at.RKey = r.MR.Addr(), r.MR.RKey()
			}
			regions = append(regions, at)
		}
		l := e.choose(conn, q, h)
		if q, ok := l.(*rdma); ok {
			if err := q.connect(mine, h, addr, h.Timeout); err != nil {
				return nil, err
			}
		}
		if err := writeHello(conn, mine, regions); err != nil {
			return nil, err
		}
		_, err := conn.Read(make([]byte, 1))
		return l, err
	})
}

// choose returns the queue pair, if both have one, and else a link over TCP.
func (e *End) choose(conn net.Conn, q *rdma, peer Hello) link {
	if q != nil && peer.QPN != 0 {
		return q
	}
	return newStream(e, conn)
}

// carry makes a connection and carries it, in place of the one before, and of those that wait for its end.
func (e *End) carry(ctx context.Context, conn net.Conn, meet func(mine Hello, q *rdma) (link, error)) (err error) {
	defer conn.Close()
	e.mu.Lock()
	e.calls++
	call := e.calls
	if e.cut != nil {
		e.cut(errReplaced)
	}
	e.mu.Unlock()
	select {
	case e.turn <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	case <-e.closed:
		return e.Err()
	}
	ctx, cut := context.WithCancelCause(ctx)
	defer cut(nil)
	e.mu.Lock()
	if e.cut, err = cut, e.err; e.calls != call {
		err = errReplaced
	}
	e.mu.Unlock()
	if err != nil {
		<-e.turn
		return err
	}
	defer func() {
		e.fail(fmt.Errorf("%w: %w", ErrLost, err))
		<-e.turn
	}()
	_ = conn.SetDeadline(time.Now().Add(patience))
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	var q *rdma
	var mine Hello
	if e.cfg.PD != nil {
		if q, err = newRDMA(e, conn); err != nil {
			return err
		}
		defer q.close()
		mine = q.hello()
	}
	l, err := meet(mine, q)
	if err == nil {
		_ = conn.SetDeadline(time.Time{})
		err = e.run(ctx, l)
	}
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	}
	return err
}

func (e *End) run(ctx context.Context, l link) error {
	e.mu.Lock()
	e.core.Begin()
	e.link = l
	e.push()
	e.mu.Unlock()
	err := l.run(ctx)
	e.mu.Lock()
	e.link, e.cut = nil, nil
	e.mu.Unlock()
	return err
}
