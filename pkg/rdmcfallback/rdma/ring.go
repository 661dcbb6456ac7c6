package rdma

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/mcrdma/mcrdma/pkg/qp"
	"github.com/mcrdma/mcrdma/pkg/rdmcfallback"
)

const (
	// MaxSlots is the maximum number of slots of a ring, if the device's queues are as long.
	MaxSlots = 1024

	slotHeader = 4 + 4 + 4 // of a slot: the message's number, imm, and length
	slotAlign  = 64
	slotsBytes = addressBytes + 8 + 4 + 4
)

var _ rdmcfallback.Ring = (*Transport)(nil)

// A ring is one end of the path of small messages from the root to a receiver.
type ring struct {
	conn            // count is the number of slots that the receiver has freed
	slots, size int // 0 slots: there is no ring
	stride      int
	memory      []byte // root: messages in flight; receiver: the slots
	mr          qp.MR

	nPut uint64 // messages put, or received

	// At the root. A slot is free when the receiver has freed it, and the device has completed the
	// root's copy.
	remote  remote
	nPosted uint64 // messages passed to the device
	nDone   uint64 // messages completed by it
	freed   uint64 // slots that the receiver has freed
	free    uint64 // free slots already reported
}

// A remote is the receiver's memory as known by the root.
type remote struct {
	Addr uint64
	RKey uint32
	Size uint32
}

// OpenRing implements rdmcfallback.Ring. Before its first message, a ring uses no queue pair, and
// no memory except in the completion queue.
func (t *Transport) OpenRing(slots, size int) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return ErrClosed
	}
	if t.opened {
		return errors.New("rdma: the ring is open already")
	}
	stride := (slotHeader + size + slotAlign - 1) &^ (slotAlign - 1)
	most := MaxSlots
	if a := t.device.Attr(); a.MaxQPWR > 0 {
		most = min(most, a.MaxQPWR)
	}
	if slots < 1 || slots > most || size < 0 || size > 1<<30 || slots*stride > qp.MaxMessage {
		return fmt.Errorf("rdma: a ring of %d slots of %d bytes; possible are %d slots of up to 1 GiB, and 2 GiB in all", slots, size, most)
	}
	if err := t.cq.Close(); err != nil {
		return fmt.Errorf("rdma: a ring can't be opened any more: %w", err)
	}
	t.opened = true
	rings := 0
	for i, p := range t.peers {
		if p != nil && (t.self == 0 || i == 0) {
			p.ring.slots, p.ring.size, p.ring.stride = slots, size, stride
			rings++
		}
	}
	return t.createCQ(t.depth + rings*entriesOf(slots))
}

// PutSmall implements rdmcfallback.Ring.
func (t *Transport) PutSmall(to int, imm uint32, msg []byte) error {
	return t.use(to, func(p *peer) error {
		if t.self != 0 {
			return fmt.Errorf("rdma: member %d is not the root, which alone puts small messages", t.self)
		}
		return t.putSmall(p, imm, msg)
	})
}

// FreeSmall implements rdmcfallback.Ring.
func (t *Transport) FreeSmall(n int) error {
	return t.use(0, func(p *peer) error {
		r := &p.ring
		if taken := int(uint32(r.nPut) - r.count); n < 1 || n > taken {
			return fmt.Errorf("rdma: %d slots can't be freed, of %d in use", n, taken)
		}
		// Post receives for the next messages before the root learns that it may send them.
		if err := t.postEmpty(p, &r.conn, recvSmall, n); err != nil {
			return err
		}
		r.count += uint32(n)
		return t.tellCount(p, &r.conn, sendFreed, r.slots)
	})
}

// putSmall copies a message to registered memory, and posts its WRITE when the receiver's memory is
// known.
func (t *Transport) putSmall(p *peer, imm uint32, msg []byte) error {
	r := &p.ring
	if taken := r.nPut - r.free; taken >= uint64(r.slots) || len(msg) > r.size {
		return fmt.Errorf("%w: a small message of %d bytes for member %d, %d of %d slots of %d bytes are in use", ErrNotReady,
			len(msg), p.id, taken, r.slots, r.size)
	}
	if r.qp == nil {
		if err := t.offerRing(p); err != nil {
			return err
		}
	}
	slot := r.slot(r.nPut)
	binary.BigEndian.PutUint32(slot, uint32(r.nPut))
	binary.BigEndian.PutUint32(slot[4:], imm)
	binary.BigEndian.PutUint32(slot[8:], uint32(len(msg)))
	copy(slot[slotHeader:], msg)
	r.nPut++
	if !r.up {
		return nil
	}
	return t.postPuts(p)
}

// offset returns the position of a message's slot, and slot its memory.
func (r *ring) offset(number uint64) int { return int(number%uint64(r.slots)) * r.stride }

func (r *ring) slot(number uint64) []byte { return r.memory[r.offset(number):][:r.stride] }

// prepare creates one end: memory, and a queue pair with receives for everything that may arrive:
// messages at a receiver, counts of freed slots at the root.
func (t *Transport) prepare(p *peer, memory, remote qp.Access, recv int) (err error) {
	r := &p.ring
	r.memory = make([]byte, r.slots*r.stride)
	if r.mr, err = t.pd.RegMR(r.memory, memory); err != nil {
		return fmt.Errorf("rdma: register a ring of %d bytes: %w", len(r.memory), err)
	}
	if err := t.createQP(&r.conn, r.slots, remote); err != nil {
		return err
	}
	return t.postEmpty(p, &r.conn, recv, r.slots)
}

// offerRing creates the root's end and tells the receiver.
func (t *Transport) offerRing(p *peer) error {
	if err := t.prepare(p, 0, 0, recvFreed); err != nil {
		return err
	}
	return t.mesh.Tell(p.id, p.ring.address().encode(kindRing))
}

// offeredRing creates the receiver's end.
func (t *Transport) offeredRing(p *peer, a *address) error {
	r := &p.ring
	if p.id != 0 || r.slots == 0 || r.qp != nil {
		return fmt.Errorf("%w: it offered a ring", ErrProtocol)
	}
	if err := t.prepare(p, qp.AccessLocalWrite|qp.AccessRemoteWrite, qp.AccessRemoteWrite, recvSmall); err != nil {
		return err
	}
	if err := t.connectQP(p, &r.conn, a); err != nil {
		return err
	}
	here := remote{r.mr.Addr(), r.mr.RKey(), uint32(len(r.memory))}
	msg, _ := binary.Append(r.address().encode(kindSlots), binary.BigEndian, &here) // never fails
	return t.mesh.Tell(p.id, msg)
}

// answeredRing connects the root's end, and posts the waiting messages.
func (t *Transport) answeredRing(p *peer, a *address, there remote) error {
	r := &p.ring
	if r.qp == nil || r.up {
		return fmt.Errorf("%w: it answered to no ring", ErrProtocol)
	}
	if int(there.Size) != len(r.memory) {
		return fmt.Errorf("%w: its ring has %d bytes, not %d", ErrProtocol, there.Size, len(r.memory))
	}
	if err := t.connectQP(p, &r.conn, a); err != nil {
		return err
	}
	r.remote = there
	return t.postPuts(p)
}

// postPuts posts the WRITEs of messages that have not been posted yet, with their numbers as
// immediate values.
func (t *Transport) postPuts(p *peer) error {
	r := &p.ring
	for r.nPosted != r.nPut {
		off := r.offset(r.nPosted)
		n := slotHeader + int(binary.BigEndian.Uint32(r.memory[off+8:]))
		t.sge[0] = r.mr.SGE(off, n)
		t.send = qp.SendWR{ID: requestID(p.id, putSmall), Opcode: qp.OpWriteImm, Imm: uint32(r.nPosted), SGEs: t.sge[:],
			RemoteAddr: r.remote.Addr + uint64(off), RKey: r.remote.RKey}
		if err := r.qp.PostSend(&t.send); err != nil {
			return err
		}
		r.nPosted++
	}
	return nil
}

// completeRing converts a completion on the ring's queue pair to an event.
func (t *Transport) completeRing(p *peer, kind int, wc *qp.WC) (err error) {
	r := &p.ring
	switch kind {
	case putSmall:
		r.nDone++
		t.freed(p)
	case recvFreed:
		more, ok := t.grown(p, wc, uint32(r.freed), uint32(r.nPosted-r.freed), "slots freed")
		if !ok {
			return nil
		}
		r.freed += uint64(more)
		t.freed(p)
		err = t.postEmpty(p, &r.conn, recvFreed, 1)
	case sendFreed:
		r.telling--
		err = t.tellCount(p, &r.conn, sendFreed, r.slots)
	case recvSmall:
		slot := r.slot(r.nPut)
		n := binary.BigEndian.Uint32(slot[8:])
		if wc.Opcode != qp.WCRecvWriteImm || wc.Imm != uint32(r.nPut) || binary.BigEndian.Uint32(slot) != wc.Imm ||
			n > uint32(r.size) || wc.ByteLen != slotHeader+n {
			t.fail(p, fmt.Errorf("%w: small message %d came as %v of %d bytes with immediate value %d, and %d bytes in its slot", ErrProtocol,
				r.nPut, wc.Opcode, wc.ByteLen, wc.Imm, n))
			return nil
		}
		r.nPut++
		t.push(rdmcfallback.Event{Kind: rdmcfallback.EventSmall, Peer: p.id, Imm: binary.BigEndian.Uint32(slot[4:]), Msg: slot[slotHeader:][:n]})
	}
	return err
}

// freed reports newly freed slots.
func (t *Transport) freed(p *peer) {
	r := &p.ring
	if n := min(r.freed-r.free, r.nDone-r.free); n > 0 {
		r.free += n
		t.push(rdmcfallback.Event{Kind: rdmcfallback.EventFreed, Peer: p.id, N: int(n)})
	}
}

func parseSlots(b []byte) (a address, r remote, err error) {
	if len(b) != slotsBytes {
		return a, r, fmt.Errorf("%w: a ring's address has %d bytes", ErrProtocol, len(b))
	}
	if a, err = parseAddress(b[:addressBytes]); err != nil {
		return a, r, err
	}
	_, err = binary.Decode(b[addressBytes:], binary.BigEndian, &r)
	return a, r, err
}
