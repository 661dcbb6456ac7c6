package tcp

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"
)

// dial makes a connection to a member and exchanges greetings. A rejection comes
// as an error.
func (t *Transport) dial(ctx context.Context, to int, mine *greeting) (*net.TCPConn, *greeting, error) {
	d := net.Dialer{Timeout: dialTime}
	c, err := d.DialContext(ctx, "tcp", t.opt.Members[to])
	if err != nil {
		return nil, nil, err
	}
	conn := c.(*net.TCPConn)
	end := context.AfterFunc(ctx, func() { closeConns(conn) })
	defer end()
	g, err := t.exchange(conn, mine)
	if err == nil && !end() {
		err = context.Cause(ctx)
	}
	if err != nil {
		closeConns(conn)
		return nil, nil, err
	}
	return conn, g, nil
}

func (t *Transport) exchange(conn *net.TCPConn, mine *greeting) (*greeting, error) {
	_ = conn.SetDeadline(time.Now().Add(greetingTime))
	if _, err := conn.Write(mine.encode()); err != nil {
		return nil, err
	}
	g, err := readGreeting(conn)
	if err == nil && g.kind == greetReject {
		err = g.err()
	}
	if err != nil {
		return nil, err
	}
	return g, conn.SetDeadline(time.Time{})
}

// call calls a peer until it has been met or further calls are pointless.
func (t *Transport) call(p *peer) {
	defer t.wg.Done()
	mine := t.greeting(p)
	for pause := retryFirst; ; pause = min(2*pause, retryLast) {
		conn, g, err := t.dial(t.ctx, p.id, mine)
		if err == nil {
			err = t.join(p, conn, g)
		}
		var network net.Error
		switch {
		case err == nil:
			return
		case errors.Is(err, errNotYet), errors.Is(err, ErrClosed), errors.As(err, &network), errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
			t.boot.try(p, err)
		default:
			t.boot.fail(&memberError{p.id, t.opt.Members[p.id], err})
			return
		}
		select {
		case <-t.quit:
			return
		case <-time.After(pause):
		}
	}
}

func (t *Transport) greeting(p *peer) *greeting {
	return &greeting{kind: greetControl, group: t.opt.Group, epoch: t.opt.Epoch, from: t.opt.Self, to: p.id, run: t.run,
		members: t.opt.Members, hello: t.opt.Hello}
}

// join admits a peer that has answered, or called, with this greeting.
func (t *Transport) join(p *peer, conn *net.TCPConn, g *greeting) error {
	if _, err := t.judge(g); err != nil {
		closeConns(conn)
		return err
	}
	if g.kind != greetControl || g.from != p.id {
		closeConns(conn)
		return fmt.Errorf("%w: it says that it is member %d", ErrMismatch, g.from)
	}
	if !p.take(g) {
		closeConns(conn)
		return fmt.Errorf("%w: two are member %d", ErrDuplicate, p.id)
	}
	return t.begin(p, conn)
}

func (t *Transport) begin(p *peer, conn *net.TCPConn) error {
	if err := p.meet(conn); err != nil {
		closeConns(conn)
		return err
	}
	t.boot.meet(p)
	return nil
}

// take makes the sender of a greeting the peer, unless another process is the peer.
func (p *peer) take(g *greeting) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.taken {
		return false
	}
	p.taken, p.run, p.hello = true, g.run, g.hello
	return true
}

func (p *peer) release() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.taken = false
}

// judge checks that a greeting is from a member of this group and epoch to this member.
func (t *Transport) judge(g *greeting) (rejection, error) {
	o := &t.opt
	switch {
	case g.group != o.Group:
		return rejectMismatch, fmt.Errorf("%w: group %d here, %d there", ErrMismatch, o.Group, g.group)
	case g.epoch < o.Epoch:
		return rejectStale, fmt.Errorf("%w: epoch %d here, %d there", errNotYet, o.Epoch, g.epoch)
	case g.epoch > o.Epoch:
		return rejectNotYet, fmt.Errorf("%w: epoch %d here, %d there", ErrStale, o.Epoch, g.epoch)
	}
	if g.kind == greetControl {
		if diff := sameMembers(o.Members, g.members); diff != "" {
			return rejectMismatch, fmt.Errorf("%w: %s", ErrMismatch, diff)
		}
	}
	switch {
	case g.from == o.Self:
		return rejectDuplicate, fmt.Errorf("%w: two are member %d", ErrDuplicate, g.from)
	case g.to != o.Self || g.from < 0 || g.from >= len(t.peers):
		return rejectMismatch, fmt.Errorf("%w: member %d looked for member %d and found member %d of %d", ErrMismatch,
			g.from, g.to, o.Self, len(t.peers))
	}
	return 0, nil
}

// accept accepts connections until the listener is closed.
func (t *Transport) accept() {
	defer t.wg.Done()
	for {
		c, err := t.listen.Accept()
		if err != nil {
			if errors.Is(err, net.ErrClosed) || t.closing.Load() {
				return
			}
			wait(t.quit, 50*time.Millisecond) // too many open files, for example
			continue
		}
		conn, ok := c.(*net.TCPConn)
		if !ok {
			_ = c.Close()
			t.boot.fail(fmt.Errorf("%w: the listener's connections are not TCP but %T", ErrOptions, c))
			continue
		}
		done, ok := t.callers.enter(conn.RemoteAddr())
		if !ok {
			closeConns(conn) // a member calls again
			t.boot.stranger(conn, errCrowd)
			continue
		}
		t.greetings <- struct{}{}
		t.wg.Add(1)
		go func() {
			defer t.wg.Done()
			defer done()
			defer func() { <-t.greetings }()
			t.answer(conn)
		}()
	}
}

// callers counts those whose greetings are being read, by address.
type callers struct {
	mu     sync.Mutex
	counts map[string]int
}

// enter makes room for one more, if there are not too many of that address.
func (c *callers) enter(from net.Addr) (done func(), ok bool) {
	host, _, err := net.SplitHostPort(from.String())
	if err != nil {
		host = from.String()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.counts == nil {
		c.counts = map[string]int{}
	}
	if c.counts[host] >= maxFromOne {
		return nil, false
	}
	c.counts[host]++
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.counts[host]--; c.counts[host] == 0 {
			delete(c.counts, host)
		}
	}, true
}

// answer reads a caller's greeting and accepts or rejects the connection.
func (t *Transport) answer(conn *net.TCPConn) {
	end := context.AfterFunc(t.ctx, func() { closeConns(conn) })
	_ = conn.SetDeadline(time.Now().Add(greetingTime))
	g, err := readGreeting(conn)
	code := rejectVersion
	var p *peer
	if err == nil {
		code, p, err = t.admit(g)
	}
	if err == nil {
		err = t.welcome(p, conn, g)
	} else {
		t.boot.stranger(conn, err)
		if g != nil || errors.Is(err, ErrVersion) {
			reason := err.Error()
			if code == rejectFailed {
				reason = string(abortMessage(err))
			}
			_, _ = conn.Write((&greeting{kind: greetReject, code: code, reason: reason}).encode())
		}
	}
	if !end() || err != nil {
		closeConns(conn)
	}
}

// welcome answers the greeting of a caller that was admitted.
func (t *Transport) welcome(p *peer, conn *net.TCPConn, g *greeting) error {
	reply := t.greeting(p)
	reply.kind = g.kind
	_, err := conn.Write(reply.encode())
	if err == nil {
		err = conn.SetDeadline(time.Time{})
	}
	if g.kind != greetControl {
		if err == nil && g.kind == greetBlocks {
			err = p.supply(conn)
		} else if err == nil {
			err = p.drain(conn)
		}
		return err
	}
	if err != nil {
		p.release() // it will call again
		return err
	}
	return t.begin(p, conn)
}

// admit decides about a caller. A caller of this very group, by its number or by its
// members, whose greeting is wrong ends the bootstrap.
func (t *Transport) admit(g *greeting) (rejection, *peer, error) {
	if g.kind == greetReject {
		return rejectMismatch, nil, fmt.Errorf("%w: it called to reject", ErrProtocol)
	}
	if t.closing.Load() {
		return rejectStopped, nil, ErrClosed
	}
	code, err := t.judge(g)
	if err != nil {
		ours := g.group == t.opt.Group || sameMembers(t.opt.Members, g.members) == ""
		if ours && g.epoch >= t.opt.Epoch {
			t.boot.fail(fmt.Errorf("a caller who says to be member %d: %w", g.from, err))
		}
		return code, nil, err
	}
	p := t.peers[g.from]
	if g.kind != greetControl {
		p.mu.Lock()
		defer p.mu.Unlock()
		switch {
		case !p.taken || p.run != g.run || g.toRun != t.run,
			g.kind == greetBlocks && p.out != nil, g.kind == greetRing && p.ring.conn != nil:
			return rejectUnknown, nil, fmt.Errorf("%w: not the member %d that was met", ErrDuplicate, g.from)
		case g.kind == greetRing && (g.from != 0 || p.ring.slots == 0):
			return rejectMismatch, nil, fmt.Errorf("%w: member %d called member %d for a ring that isn't there", ErrProtocol, g.from, t.opt.Self)
		}
		return 0, p, nil
	}
	if g.from < t.opt.Self {
		return rejectMismatch, nil, fmt.Errorf("%w: member %d called member %d, which calls it", ErrProtocol, g.from, t.opt.Self)
	}
	if err := t.boot.result(); err != nil {
		return rejectFailed, nil, err
	}
	if !p.take(g) {
		return rejectDuplicate, nil, fmt.Errorf("%w: two are member %d", ErrDuplicate, g.from)
	}
	return 0, p, nil
}
