package mcrdma

import (
	"context"
	"fmt"

	"github.com/mcrdma/mcrdma/pkg/qp"
)

// inSwitch receives messages that switches copy, into receives posted at a queue pair of
// the formation.
type inSwitch struct {
	queuePair
	m   *Member
	wcs [64]qp.WC

	// Under m.mu:
	again  int   // messages that will arrive although the member has them already
	fillup int   // receives to post for them
	spare  qp.MR // for them
	out    int   // receives at the queue pair
	posted int   // of m.recvs
	room   int   // receives that the queue pair can take
	dead   bool
	wr     qp.RecvWR
	sge    [1]qp.SGE
}

// more posts as many receives as there is room for. m.mu is held.
func (p *inSwitch) more() {
	for p.out < p.room && !p.dead {
		p.wr = qp.RecvWR{SGEs: p.sge[:0]}
		switch {
		case p.fillup > 0:
			p.sge[0] = p.spare.SGE(0, len(p.spare.Bytes()))
			p.wr.SGEs = p.sge[:1]
		case p.posted < p.m.recvs.len():
			if r := *p.m.recvs.at(p.posted); r.n > 0 {
				p.sge[0] = r.sge()
				p.wr.SGEs = p.sge[:1]
			}
		default:
			return
		}
		if err := p.qp.PostRecv(&p.wr); err != nil {
			p.dead = true
			p.m.endLocked(fmt.Errorf("%w: post a receive: %w", ErrFailed, err))
			return
		}
		p.out++
		if p.fillup > 0 {
			p.fillup--
		} else {
			p.posted++
		}
	}
}

// run implements inbound.
func (p *inSwitch) run(ctx context.Context) {
	for p.poll() == nil && p.cq.Wait(ctx) == nil {
	}
	p.flush(func() bool { return !p.empty() }, p.poll)
	<-ctx.Done()
	p.m.mu.Lock()
	p.dead = true
	p.m.mu.Unlock()
	p.close()
	if p.spare != nil {
		_ = p.spare.Close()
	}
}

func (p *inSwitch) empty() bool {
	p.m.mu.Lock()
	defer p.m.mu.Unlock()
	return p.out == 0
}

// poll takes a batch of completions.
func (p *inSwitch) poll() error {
	n, err := p.cq.Poll(p.wcs[:])
	if n == 0 {
		return err
	}
	m := p.m
	m.mu.Lock()
	defer m.mu.Unlock()
	for i := range p.wcs[:n] {
		wc := &p.wcs[i]
		p.out--
		switch {
		case wc.Status == qp.StatusWRFlushErr:
			p.dead = true
		case wc.Status == qp.StatusLocLenErr:
			p.dead = true
			m.endLocked(fmt.Errorf("%w: a message is longer than the receive", ErrInvalid))
		case wc.Status != qp.StatusSuccess:
			// Any error would recur: soft-RoCE, for example, reports a message that is too long as
			// an operation error of the queue pair.
			p.dead = true
			m.endLocked(fmt.Errorf("%w: receive: %w", ErrFailed, wc.Status.Err()))
		case p.again > 0:
			p.again--
		case !p.dead:
			p.posted--
			m.deliver(received(wc))
		}
	}
	p.more()
	return nil
}

func received(wc *qp.WC) Received {
	r := Received{N: int(wc.ByteLen), Kind: OpSend}
	if wc.HasImm {
		r.Imm, r.HasImm = wc.Imm, true
	}
	switch {
	case wc.Opcode == qp.WCRecvWriteImm:
		r.Kind = OpWriteImm
	case wc.HasImm:
		r.Kind = OpSendImm
	}
	return r
}
