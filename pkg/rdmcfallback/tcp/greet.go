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

// call calls a peer until it has been met or further calls are pointless.
func (t *Transport) call(p *peer) {
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
		case <-t.ctx.Done():
			return
		case <-time.After(pause):
		}
	}
}

func (t *Transport) greeting(p *peer) *greeting {
	return &greeting{Kind: greetControl, Group: t.opt.Group, Epoch: t.opt.Epoch, From: t.opt.Self, To: p.id, Run: t.run,
		Members: t.opt.Members, Hello: t.opt.Hello}
}

// join admits a peer that has answered or called with this greeting.
func (t *Transport) join(p *peer, conn stream, g *greeting) error {
	if err := t.judge(g); err != nil {
		closeConns(conn)
		return err
	}
	if g.Kind != greetControl || g.From != p.id {
		closeConns(conn)
		return fmt.Errorf("%w: it says that it is member %d", ErrMismatch, g.From)
	}
	if !p.take(g) {
		closeConns(conn)
		return fmt.Errorf("%w: two are member %d", ErrDuplicate, p.id)
	}
	return t.begin(p, conn)
}

func (t *Transport) begin(p *peer, conn stream) error {
	if err := p.meet(conn); err != nil {
		closeConns(conn)
		return err
	}
	t.boot.meet(p)
	return nil
}

// take makes the sender of a greeting the peer, unless another process already is.
func (p *peer) take(g *greeting) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.taken {
		return false
	}
	p.taken, p.run, p.hello = true, g.Run, g.Hello
	return true
}

func (p *peer) release() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.taken = false
}

// judge checks that a greeting is from a member of this group and epoch, and addressed to this
// member.
func (t *Transport) judge(g *greeting) error {
	o := &t.opt
	switch {
	case g.Group != o.Group:
		return fmt.Errorf("%w: group %d here, %d there", ErrMismatch, o.Group, g.Group)
	case g.Epoch < o.Epoch:
		return fmt.Errorf("%w: epoch %d here, %d there", errNotYet, o.Epoch, g.Epoch)
	case g.Epoch > o.Epoch:
		return fmt.Errorf("%w: epoch %d here, %d there", ErrStale, o.Epoch, g.Epoch)
	}
	if g.Kind == greetControl {
		if diff := sameMembers(o.Members, g.Members); diff != "" {
			return fmt.Errorf("%w: %s", ErrMismatch, diff)
		}
	}
	switch {
	case g.From == o.Self:
		return fmt.Errorf("%w: two are member %d", ErrDuplicate, g.From)
	case g.To != o.Self || g.From < 0 || g.From >= len(t.peers):
		return fmt.Errorf("%w: member %d looked for member %d and found member %d of %d", ErrMismatch,
			g.From, g.To, o.Self, len(t.peers))
	}
	return nil
}

// accept accepts connections until the listener is closed.
func (t *Transport) accept() {
	for {
		c, err := t.listen.Accept()
		if err != nil {
			if errors.Is(err, net.ErrClosed) || t.ctx.Err() != nil {
				return
			}
			wait(t.ctx.Done(), 50*time.Millisecond) // for example, too many open files
			continue
		}
		conn, ok := c.(stream)
		if !ok {
			_ = c.Close()
			t.boot.fail(fmt.Errorf("%w: the listener's connections cannot be closed for writing alone: %T", ErrOptions, c))
			continue
		}
		done, ok := t.callers.enter(conn.RemoteAddr())
		if !ok {
			closeConns(conn) // a member calls again
			t.boot.stranger(conn, errCrowd)
			continue
		}
		t.greetings <- struct{}{}
		t.wg.Go(func() {
			defer done()
			defer func() { <-t.greetings }()
			t.answer(conn)
		})
	}
}

// callers counts the greetings being read, by address.
type callers struct {
	mu     sync.Mutex
	counts map[string]int
}

// enter adds a caller, unless there are too many from that address.
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
func (t *Transport) answer(conn stream) {
	end := context.AfterFunc(t.ctx, func() { closeConns(conn) })
	_ = conn.SetDeadline(time.Now().Add(greetingTime))
	g, err := readGreeting(conn)
	var p *peer
	if err == nil {
		p, err = t.admit(g)
	}
	if err == nil {
		err = t.welcome(p, conn, g)
	} else {
		t.boot.stranger(conn, err)
		if g != nil || errors.Is(err, ErrVersion) {
			_, _ = conn.Write(reject(err).encode())
		}
	}
	if !end() || err != nil {
		closeConns(conn)
	}
}

// welcome answers the greeting of an admitted caller.
func (t *Transport) welcome(p *peer, conn stream, g *greeting) error {
	reply := t.greeting(p)
	reply.Kind = g.Kind
	_, err := conn.Write(reply.encode())
	if err == nil {
		err = conn.SetDeadline(time.Time{})
	}
	if g.Kind != greetControl {
		if err == nil && g.Kind == greetBlocks {
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

// admit decides about a caller. A caller of this group, according to the number or the members,
// with a wrong greeting ends the bootstrap.
func (t *Transport) admit(g *greeting) (*peer, error) {
	if g.Kind == greetReject {
		return nil, fmt.Errorf("%w: it called to reject", ErrMismatch)
	}
	if t.ctx.Err() != nil {
		return nil, ErrClosed
	}
	if err := t.judge(g); err != nil {
		ours := g.Group == t.opt.Group || sameMembers(t.opt.Members, g.Members) == ""
		if ours && g.Epoch >= t.opt.Epoch {
			t.boot.fail(fmt.Errorf("a caller who says to be member %d: %w", g.From, err))
		}
		return nil, err
	}
	p := t.peers[g.From]
	if g.Kind != greetControl {
		p.mu.Lock()
		defer p.mu.Unlock()
		switch {
		case !p.taken || p.run != g.Run || g.ToRun != t.run,
			g.Kind == greetBlocks && p.out.conn != nil, g.Kind == greetRing && p.ring.conn != nil:
			return nil, fmt.Errorf("%w: not the member %d that was met", ErrDuplicate, g.From)
		case g.Kind == greetRing && (g.From != 0 || p.ring.slots == 0):
			return nil, fmt.Errorf("%w: member %d called member %d for a ring that isn't there", ErrMismatch, g.From, t.opt.Self)
		}
		return p, nil
	}
	if g.From < t.opt.Self {
		return nil, fmt.Errorf("%w: member %d called member %d, which calls it", ErrMismatch, g.From, t.opt.Self)
	}
	if err := t.boot.result(); err != nil {
		return nil, &failedError{err}
	}
	if !p.take(g) {
		return nil, fmt.Errorf("%w: two are member %d", ErrDuplicate, g.From)
	}
	return p, nil
}
