package tcp

import (
	"context"
	"fmt"
	"net"
	"time"
)

// dial opens one more connection to the peer, and calls use with it, with the lock held, if it is
// still wanted.
func (p *peer) dial(kind uint8, use func(conn stream) error) (stream, error) {
	ctx, cancel := context.WithTimeout(p.ctx, p.self.opt.DeadAfter)
	defer cancel()
	conn, g, err := p.self.dial(ctx, p.id, &greeting{Kind: kind, Group: p.self.opt.Group, Epoch: p.self.opt.Epoch,
		From: p.self.opt.Self, To: p.id, Run: p.self.run, ToRun: p.run})
	if err != nil {
		return nil, err
	}
	if g.Kind != kind || g.From != p.id || g.Run != p.run {
		closeConns(conn)
		return nil, fmt.Errorf("%w: another process answers at %s", ErrProtocol, p.self.opt.Members[p.id])
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	err = net.ErrClosed
	if !p.failing {
		err = setDeadAfter(conn, p.self.opt.DeadAfter)
	}
	if err == nil {
		err = use(conn)
	}
	if err != nil {
		closeConns(conn)
	}
	return conn, err
}

// dial opens a connection to a member and exchanges greetings. A rejection is returned as an error.
func (l *local) dial(ctx context.Context, to int, mine *greeting) (stream, *greeting, error) {
	c, err := l.connect(ctx, l.opt.Members[to])
	if err != nil {
		return nil, nil, err
	}
	conn, ok := c.(stream)
	if !ok {
		_ = c.Close()
		return nil, nil, fmt.Errorf("%w: Dial's connections cannot be closed for writing alone: %T", ErrOptions, c)
	}
	end := context.AfterFunc(ctx, func() { closeConns(conn) })
	defer end()
	g, err := l.exchange(conn, mine)
	if err == nil && !end() {
		err = context.Cause(ctx)
	}
	if err != nil {
		closeConns(conn)
		return nil, nil, err
	}
	return conn, g, nil
}

// connect opens a connection.
func (l *local) connect(ctx context.Context, addr string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTime)
	defer cancel()
	if l.opt.Dial != nil {
		return l.opt.Dial(ctx, "tcp", addr)
	}
	return new(net.Dialer).DialContext(ctx, "tcp", addr)
}

func (l *local) exchange(conn stream, mine *greeting) (*greeting, error) {
	_ = conn.SetDeadline(time.Now().Add(greetingTime))
	if _, err := conn.Write(mine.encode()); err != nil {
		return nil, err
	}
	g, err := readGreeting(conn)
	if err == nil && g.Kind == greetReject {
		err = g.err()
	}
	if err != nil {
		return nil, err
	}
	return g, conn.SetDeadline(time.Time{})
}
