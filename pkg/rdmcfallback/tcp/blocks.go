package tcp

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"

	"github.com/mcrdma/mcrdma/pkg/rdmcfallback"
	"github.com/mcrdma/mcrdma/pkg/rdmcfallback/schedule"
)

// BlockSize is the rdmcfallback.Config.BlockSize, in bytes, that suits TCP.
const BlockSize = schedule.BlockTCP

// aheadHere is the rdmcfallback.Config.Ahead of members that are all on one machine.
const aheadHere = 2

// maxUnsent is how much of a block the kernel may hold before the network has it. With less
// the sender waits needlessly; with more, blocks for different peers mix on the wire and
// arrive later than the schedule expects.
const maxUnsent = 64 << 10

// postRecv posts a buffer. The first one makes the connection. The lock is held.
func (p *peer) postRecv(buf []byte) (lost, err error) {
	if p.in.nPosted-p.in.nRecv == MaxPosted {
		return nil, fmt.Errorf("tcp: %d buffers are posted for blocks of member %d already", MaxPosted, p.id)
	}
	p.in.posted[p.in.nPosted%MaxPosted] = buf
	p.in.nPosted++
	if p.in.conn != nil {
		return p.tellReady(), nil
	}
	if !p.in.dialed {
		p.in.dialed = true
		p.wg.Go(p.receive)
	}
	return nil, nil
}

// tellReady tells the peer how many buffers are posted. The lock is held.
func (p *peer) tellReady() error {
	binary.BigEndian.PutUint32(p.in.ready[:], p.in.nPosted)
	return p.in.readies.send(p.in.ready[:])
}

// receive makes the connection for blocks from the peer, and reads it until it
// ends.
func (p *peer) receive() {
	conn, err := p.dial(greetBlocks, func(conn stream) error {
		p.in.conn = conn
		if err := p.in.readies.open(conn, 64<<10); err != nil {
			return err
		}
		return p.tellReady()
	})
	if err == nil {
		err = p.readBlocks(conn)
	}
	p.fail(err, true)
}

// readBlocks reads blocks into the posted buffers.
func (p *peer) readBlocks(conn io.Reader) error {
	return p.readMessages(conn, blockMagic, func() ([]byte, error) {
		if p.in.nPosted == p.in.nRecv {
			return nil, fmt.Errorf("%w: a block for which no buffer was posted", ErrProtocol)
		}
		return p.in.posted[p.in.nRecv%MaxPosted], nil
	}, func(imm uint32, block []byte) rdmcfallback.Event {
		p.in.posted[p.in.nRecv%MaxPosted] = nil
		p.in.nRecv++
		return rdmcfallback.Event{Kind: rdmcfallback.EventReceived, Peer: p.id, Imm: imm, N: len(block)}
	})
}

// readMessages reads blocks or small messages until the connection ends. Each goes where
// room says, and done makes an event of it. Both are called under the lock.
func (p *peer) readMessages(conn io.Reader, magic uint32, room func() ([]byte, error), done func(imm uint32, msg []byte) rdmcfallback.Event) error {
	header := make([]byte, blockHeader)
	for number := uint32(0); ; number++ {
		if _, err := io.ReadFull(conn, header); err != nil {
			return err
		}
		p.mu.Lock()
		buf, err := room()
		p.mu.Unlock()
		if err != nil {
			return err
		}
		imm, n, err := parseBlockHeader(header, magic, number, len(buf))
		if err != nil {
			return err
		}
		if _, err := io.ReadFull(conn, buf[:n]); err != nil {
			return err
		}
		p.mu.Lock()
		e := done(imm, buf[:n])
		p.mu.Unlock()
		p.self.events.push(e)
	}
}

// supply begins to use the connection for blocks to the peer, which it made.
func (p *peer) supply(conn stream) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.failing || p.out.conn != nil {
		return net.ErrClosed
	}
	if err := errors.Join(setUnsent(conn, maxUnsent), setDeadAfter(conn, p.self.opt.DeadAfter)); err != nil {
		return err
	}
	p.out.conn = conn
	p.wg.Go(func() { p.fail(p.readReadies(conn), true) })
	p.wg.Go(func() { p.writeBlocks(conn) })
	return nil
}

// readReadies turns the peer's readiness into events.
func (p *peer) readReadies(conn io.Reader) error {
	var known uint32
	return readCounts(conn, "buffers posted", func() (uint32, uint32) {
		return known, MaxPosted - (known - p.out.nSent.Load())
	}, func(more uint32) {
		known += more
		p.out.credits.Add(int32(more))
		for range more {
			p.self.events.push(rdmcfallback.Event{Kind: rdmcfallback.EventReady, Peer: p.id})
		}
	})
}

// sendBlock hands a block to the writer.
func (p *peer) sendBlock(imm uint32, block []byte) error {
	if p.ctx.Err() != nil {
		return nil
	}
	if p.out.credits.Add(-1) < 0 {
		p.out.credits.Add(1)
		return fmt.Errorf("%w: member %d", ErrNotReady, p.id)
	}
	p.out.sends <- send{imm, block} // has room for all credits
	return nil
}

// writeBlocks writes blocks as they come.
func (p *peer) writeBlocks(conn stream) {
	var (
		header [blockHeader]byte
		array  [2][]byte
		vector net.Buffers
	)
	for number := uint32(0); ; number++ {
		var s send
		select {
		case s = <-p.out.sends:
		case <-p.ctx.Done():
			return
		}
		putBlockHeader(header[:], blockMagic, s.imm, len(s.block), number)
		array[0], array[1] = header[:], s.block
		vector = array[:]
		// Counted before, because readiness for more may come before Write
		// returns.
		p.out.nSent.Add(1)
		if _, err := vector.WriteTo(conn); err != nil {
			p.fail(err, true)
			return
		}
		array[1] = nil
		p.self.events.push(rdmcfallback.Event{Kind: rdmcfallback.EventSent, Peer: p.id})
	}
}
