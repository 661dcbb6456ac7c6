package tcp

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"net"

	"github.com/mcrdma/mcrdma/pkg/rdmcfallback"
)

// MaxSlots is how many slots a ring may have.
const MaxSlots = 1024

var _ rdmcfallback.Ring = (*Transport)(nil)

// A ring is one end of the path of small messages from the root to a receiver. The peer's
// lock guards it.
type ring struct {
	slots, size int // 0 slots: there is none
	conn        *net.TCPConn
	dialled     bool
	nPut        uint32 // messages put, or received
	nFreed      uint32 // slots freed
	out         outbox // of messages, or of nFreed
	frame       []byte // root: a message with its header
	memory      []byte // receiver: the slots
	count       [countBytes]byte
}

// OpenRing implements rdmcfallback.Ring. A ring takes no memory and no connection
// until its first message.
func (t *Transport) OpenRing(slots, size int) error {
	if t.closing.Load() {
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
func (t *Transport) PutSmall(peer int, imm uint32, msg []byte) error {
	p, err := t.peer(peer)
	if err != nil {
		return err
	}
	if t.opt.Self != 0 {
		return fmt.Errorf("tcp: member %d is not the root, which alone puts small messages", t.opt.Self)
	}
	return p.putSmall(imm, msg)
}

// FreeSmall implements rdmcfallback.Ring.
func (t *Transport) FreeSmall(n int) error {
	p, err := t.peer(0)
	if err != nil {
		return err
	}
	return p.freeSmall(n)
}

// putSmall writes a message, or keeps it until there is a connection.
func (p *peer) putSmall(imm uint32, msg []byte) error {
	p.mu.Lock()
	r := &p.ring
	if p.failing {
		p.mu.Unlock()
		return nil
	}
	if taken := r.nPut - r.nFreed; taken >= uint32(r.slots) || len(msg) > r.size {
		p.mu.Unlock()
		return fmt.Errorf("%w: a small message of %d bytes for member %d, %d of %d slots of %d bytes are in use", ErrNotReady,
			len(msg), p.id, taken, r.slots, r.size)
	}
	if !r.dialled {
		r.dialled = true
		r.frame, r.out.limit = make([]byte, blockHeader+r.size), r.slots*(blockHeader+r.size)
		p.wg.Add(1)
		go p.fill()
	}
	putBlockHeader(r.frame, smallMagic, imm, len(msg), r.nPut)
	n := copy(r.frame[blockHeader:], msg)
	r.nPut++
	err := r.out.send(r.frame[:blockHeader+n])
	p.mu.Unlock()
	if err != nil {
		p.fail(err, true)
	}
	return nil
}

// fill makes the connection for small messages to the peer, and reads from it which
// slots are free, until it ends.
func (p *peer) fill() {
	defer p.wg.Done()
	conn, err := p.dial(greetRing, func(conn *net.TCPConn) error {
		p.ring.conn = conn
		return p.ring.out.open(p, conn, p.ring.out.limit)
	})
	if err == nil {
		err = p.readFreed(conn)
	}
	p.fail(err, true)
}

func (p *peer) readFreed(conn io.Reader) error {
	r := &p.ring
	return readCounts(conn, func(b []byte) error {
		p.mu.Lock()
		more, err := parseFreed(b, r.nFreed, r.nPut)
		r.nFreed += more
		p.mu.Unlock()
		if err == nil {
			p.t.events.push(rdmcfallback.Event{Kind: rdmcfallback.Freed, Peer: p.id, N: int(more)})
		}
		return err
	})
}

// drain begins to use the connection for small messages from the root, which made
// it.
func (p *peer) drain(conn *net.TCPConn) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	r := &p.ring
	if p.failing || r.conn != nil {
		return net.ErrClosed
	}
	if err := setDeadAfter(conn, p.t.opt.deadAfter()); err != nil {
		return err
	}
	if err := r.out.open(p, conn, countBytes*r.slots); err != nil {
		return err
	}
	r.conn, r.memory = conn, make([]byte, r.slots*r.size)
	p.wg.Add(1)
	go func() {
		defer p.wg.Done()
		p.fail(p.readSmall(conn), true)
	}()
	return nil
}

// readSmall reads messages into the slots.
func (p *peer) readSmall(conn io.Reader) error {
	r := &p.ring
	in := bufio.NewReaderSize(conn, 32<<10)
	var header [blockHeader]byte
	for slot := 0; ; slot = (slot + 1) % r.slots {
		if _, err := io.ReadFull(in, header[:]); err != nil {
			return err
		}
		p.mu.Lock()
		number, taken := r.nPut, r.nPut-r.nFreed
		p.mu.Unlock()
		if taken == uint32(r.slots) {
			return fmt.Errorf("%w: a small message, but all %d slots are in use", ErrProtocol, r.slots)
		}
		imm, n, err := parseBlockHeader(header[:], smallMagic, number, r.size)
		if err != nil {
			return err
		}
		msg := r.memory[slot*r.size:][:n]
		if _, err := io.ReadFull(in, msg); err != nil {
			return err
		}
		p.mu.Lock()
		r.nPut++
		p.mu.Unlock()
		p.t.events.push(rdmcfallback.Event{Kind: rdmcfallback.Small, Peer: p.id, Imm: imm, Msg: msg})
	}
}

// freeSmall tells the root how many slots have been freed so far.
func (p *peer) freeSmall(n int) error {
	p.mu.Lock()
	r := &p.ring
	if p.failing {
		p.mu.Unlock()
		return nil
	}
	if taken := int(r.nPut - r.nFreed); n < 1 || n > taken {
		p.mu.Unlock()
		return fmt.Errorf("tcp: %d slots can't be freed, of %d in use", n, taken)
	}
	r.nFreed += uint32(n)
	binary.BigEndian.PutUint32(r.count[:], r.nFreed)
	err := r.out.send(r.count[:])
	p.mu.Unlock()
	if err != nil {
		p.fail(err, true)
	}
	return nil
}
