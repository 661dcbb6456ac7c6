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

// BlockSize is the recommended rdmcfallback.Config.BlockSize for TCP, in bytes.
const BlockSize = schedule.BlockTCP

// aheadHere is the rdmcfallback.Config.Ahead if all members are on one machine.
const aheadHere = 2

// maxUnsent is how much of a block the kernel may hold before it is sent. With less, the sender
// waits needlessly; with more, blocks for different peers mix on the wire and arrive later than the
// schedule expects.
const maxUnsent = 64 << 10

// postRecv posts a buffer. The first one opens the connection. The lock must be held.
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
		p.useBuffers(p.receive)
	}
	return nil, nil
}

// tellReady sends the peer the total number of posted buffers. The lock must be held.
func (p *peer) tellReady() error {
	binary.BigEndian.PutUint32(p.in.ready[:], p.in.nPosted)
	return p.in.readies.send(p.in.ready[:])
}

// receive opens the connection for blocks from the peer, and reads it until it ends.
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

// readMessages reads blocks or small messages until the connection ends. room returns the memory
// for each, and done converts it to an event. Both are called with the lock held.
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

// supply starts to use the connection for blocks to the peer, which the peer opened.
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
	p.useBuffers(func() { p.writeBlocks(conn) })
	return nil
}

// readReadies converts the peer's readiness to events.
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

// sendBlock passes a block to the writer.
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

// writeBlocks writes blocks as they arrive in the channel.
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
		// Count first, because readiness for more may arrive before Write returns.
		p.out.nSent.Add(1)
		if _, err := vector.WriteTo(conn); err != nil {
			p.fail(err, true)
			return
		}
		array[1] = nil
		p.self.events.push(rdmcfallback.Event{Kind: rdmcfallback.EventSent, Peer: p.id})
	}
}
