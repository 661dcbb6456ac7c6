package tcp

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"net"

	"github.com/mcrdma/mcrdma/pkg/rdmcfallback"
)

// MaxSlots is the maximum number of slots of a ring.
const MaxSlots = 1024

var _ rdmcfallback.Ring = (*Transport)(nil)

// A ring is one end of the path of small messages from the root to a receiver. The peer's lock
// guards it.
type ring struct {
	slots, size int // 0 slots: there is no ring
	conn        stream
	dialed      bool
	nPut        uint32 // messages put, or received
	nFreed      uint32 // slots freed
	out         outbox // of messages, or of nFreed
	frame       []byte // root: a message with its header
	memory      []byte // receiver: the slots
	count       [countBytes]byte
}

// OpenRing implements rdmcfallback.Ring. A ring uses no memory and no connection before its first
// message.
func (t *Transport) OpenRing(slots, size int) error {
	if t.ctx.Err() != nil {
		return ErrClosed
	}
	if slots < 1 || slots > MaxSlots || size < 0 || size > 1<<30 {
		return fmt.Errorf("tcp: a ring of %d slots of %d bytes; possible are %d slots of up to 1 GiB", slots, size, MaxSlots)
	}
	for i, p := range t.peers {
		if p == nil || t.opt.Self != 0 && i != 0 {
			continue
		}
		p.mu.Lock()
		opened := p.ring.slots > 0
		p.ring.slots, p.ring.size = slots, size
		p.mu.Unlock()
		if opened {
			return fmt.Errorf("tcp: the ring is open already")
		}
	}
	return nil
}

// PutSmall implements rdmcfallback.Ring.
func (t *Transport) PutSmall(to int, imm uint32, msg []byte) error {
	return t.use(to, func(p *peer) (lost, err error) {
		if t.opt.Self != 0 {
			return nil, fmt.Errorf("tcp: member %d is not the root, which alone puts small messages", t.opt.Self)
		}
		return p.putSmall(imm, msg)
	})
}

// FreeSmall implements rdmcfallback.Ring. It sends the root the total number of freed slots.
func (t *Transport) FreeSmall(n int) error {
	return t.use(0, func(p *peer) (lost, err error) {
		r := &p.ring
		if taken := int(r.nPut - r.nFreed); n < 1 || n > taken {
			return nil, fmt.Errorf("tcp: %d slots can't be freed, of %d in use", n, taken)
		}
		r.nFreed += uint32(n)
		binary.BigEndian.PutUint32(r.count[:], r.nFreed)
		return r.out.send(r.count[:]), nil
	})
}

// putSmall writes a message, or keeps it until there is a connection. The lock must be held.
func (p *peer) putSmall(imm uint32, msg []byte) (lost, err error) {
	r := &p.ring
	if taken := r.nPut - r.nFreed; taken >= uint32(r.slots) || len(msg) > r.size {
		return nil, fmt.Errorf("%w: a small message of %d bytes for member %d, %d of %d slots of %d bytes are in use", ErrNotReady,
			len(msg), p.id, taken, r.slots, r.size)
	}
	if !r.dialed {
		r.dialed = true
		r.frame, r.out.limit = make([]byte, blockHeader+r.size), r.slots*(blockHeader+r.size)
		p.wg.Go(p.fill)
	}
	putBlockHeader(r.frame, smallMagic, imm, len(msg), r.nPut)
	n := copy(r.frame[blockHeader:], msg)
	r.nPut++
	return r.out.send(r.frame[:blockHeader+n]), nil
}

// fill opens the connection for small messages to the peer, and reads the number of freed slots
// from it until it ends.
func (p *peer) fill() {
	conn, err := p.dial(greetRing, func(conn stream) error {
		p.ring.conn = conn
		return p.ring.out.open(conn, p.ring.out.limit)
	})
	if err == nil {
		err = p.readFreed(conn)
	}
	p.fail(err, true)
}

func (p *peer) readFreed(conn io.Reader) error {
	r := &p.ring
	return readCounts(conn, "slots freed", func() (uint32, uint32) {
		p.mu.Lock()
		defer p.mu.Unlock()
		return r.nFreed, r.nPut - r.nFreed
	}, func(more uint32) {
		p.mu.Lock()
		r.nFreed += more
		p.mu.Unlock()
		p.self.events.push(rdmcfallback.Event{Kind: rdmcfallback.EventFreed, Peer: p.id, N: int(more)})
	})
}

// drain starts to use the connection for small messages from the root, which opened it.
func (p *peer) drain(conn stream) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	r := &p.ring
	if p.failing || r.conn != nil {
		return net.ErrClosed
	}
	if err := setDeadAfter(conn, p.self.opt.DeadAfter); err != nil {
		return err
	}
	if err := r.out.open(conn, countBytes*r.slots); err != nil {
		return err
	}
	r.conn, r.memory = conn, make([]byte, r.slots*r.size)
	p.wg.Go(func() { p.fail(p.readSmall(conn), true) })
	return nil
}

// readSmall reads messages into the slots.
func (p *peer) readSmall(conn io.Reader) error {
	r, slot := &p.ring, 0
	return p.readMessages(bufio.NewReaderSize(conn, 32<<10), smallMagic, func() ([]byte, error) {
		if r.nPut-r.nFreed == uint32(r.slots) {
			return nil, fmt.Errorf("%w: a small message, but all %d slots are in use", ErrProtocol, r.slots)
		}
		return r.memory[slot*r.size:][:r.size], nil
	}, func(imm uint32, msg []byte) rdmcfallback.Event {
		r.nPut++
		slot = (slot + 1) % r.slots
		return rdmcfallback.Event{Kind: rdmcfallback.EventSmall, Peer: p.id, Imm: imm, Msg: msg}
	})
}
