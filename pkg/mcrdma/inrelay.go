package mcrdma

import (
	"context"
	"fmt"
	"net"
	"slices"
	"time"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/pkg/rdmcfallback"
)

// inRelay receives messages where hosts relay.
type inRelay struct {
	m        *Member
	info     *mcrdmav1.FormationInfo
	listener net.Listener
	ctx      context.Context // of run
	news     chan struct{}   // a token: there are more receives
	asm      assembler       // package rdmcfallback's goroutine's
	count    tally
}

// run implements inbound.
func (p *inRelay) run(ctx context.Context) {
	p.ctx, p.asm.receive = ctx, p.receive
	self := -1
	if p.listener != nil {
		self = slices.Index(p.info.GetRelay().GetBootstrap(), p.listener.Addr().String())
	}
	join, cancel := context.WithTimeout(ctx, joinWithin)
	defer cancel()
	g, err := p.m.c.joinRelay(join, p.listener, p.info, self, rdmcfallback.Config{Incoming: p.begin, Complete: p.complete}, &p.count)
	if err != nil {
		p.m.c.opt.Logger.Info("not joined", "group", p.m.id, "formation", p.info.GetFormation(), "error", err)
		return
	}
	select {
	case <-g.Done(): // the sender or another member handles it
	case <-ctx.Done():
	}
	p.m.c.closeRelay(ended, g)
}

func (p *inRelay) more() { poke(p.news) }

// passLock makes the application's accesses to its memory, before it called a method of the Member,
// happen before later writes (Go memory model).
func (p *inRelay) passLock() {
	p.m.mu.Lock()
	defer p.m.mu.Unlock()
}

// begin returns where a message goes.
func (p *inRelay) begin(size int64) ([]byte, error) {
	p.passLock()
	buf, err := p.asm.begin(size)
	if err != nil && p.ctx.Err() == nil {
		p.m.end(err)
	}
	return buf, err
}

// receive waits for a receive, and leaves it in the queue. All other members wait, too; after the
// time that the daemon waits for a queue pair that is not ready, this member leaves.
func (p *inRelay) receive() ([]byte, error) {
	patience := p.m.c.patience()
	late := time.After(patience)
	for {
		p.m.mu.Lock()
		if p.m.recvs.len() > 0 {
			defer p.m.mu.Unlock()
			return p.m.recvs.at(0).Bytes(), nil
		}
		p.m.mu.Unlock()
		select {
		case <-p.news:
		case <-p.ctx.Done():
			return nil, p.ctx.Err()
		case <-late:
			return nil, fmt.Errorf("%w: a message came, and for %v no receive was posted", ErrRemoved, patience)
		}
	}
}

// complete handles a complete message. If it cannot be used, the sender must not count it: then the
// member reports nothing more.
func (p *inRelay) complete(msg []byte) {
	p.passLock()
	d, ok, err := p.asm.complete(msg)
	if err == nil && ok {
		err = p.deliver(d)
	}
	if err != nil {
		p.count.mute.Store(true)
		if p.ctx.Err() == nil {
			p.m.end(err)
		}
	}
}

// deliver hands a message to the application, after waiting for a receive.
func (p *inRelay) deliver(d delivery) error {
	buf, err := p.receive()
	if err == nil && d.kind.send() {
		err = fits(d.length, buf)
	}
	if err != nil {
		return err
	}
	copy(buf, d.payload)
	p.m.mu.Lock()
	defer p.m.mu.Unlock()
	p.m.deliver(Received{N: int(d.length), Imm: d.imm, HasImm: d.kind.hasImm(), Kind: d.kind})
	return nil
}
