package core

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
)

// Trailer is how many bytes follow a message's bytes in its slot: of which operation it is, its epoch, how many bytes were
// added to align it, the operation's kind, and, last, the round of the ring.
const Trailer = 8

// A Layout says where slots lie in the memory that a rank has for the messages of another one, or, by multicast, where it has its own.
type Layout struct {
	Lanes, Slots int
	Block        int // bytes of a message at most; a multiple of 8
	// Packet is how many bytes of data packets have, if not 0. A message of whole packets has no trailer, which
	// would take one more: immediate data say what counts.
	Packet int
}

func (l Layout) whole(n int) bool { return l.Packet > 0 && n > 0 && n%l.Packet == 0 }

// Slot returns the size of a slot.
func (l Layout) Slot() int { return l.Block + Trailer }

// Half returns the size of the slots of one path.
func (l Layout) Half() int { return l.Lanes * l.Slots * l.Slot() }

// At returns where the slot of a message begins.
func (l Layout) At(p Path, lane int, seq uint64) int {
	return int(p)*l.Half() + (lane*l.Slots+int(seq%uint64(l.Slots)))*l.Slot() //nolint:gosec // slots are few
}

// round is what the last byte of a slot is in a round of the ring; never 0, which memory begins with.
func (l Layout) round(seq uint64) byte { return byte(1 + seq/uint64(l.Slots)%255) } //nolint:gosec // not negative

// Span returns what is written of its slot for a message of so many bytes.
func (l Layout) Span(n int) (from, to int) {
	from, to = l.Block-(n+7)&^7, l.Slot()
	if l.whole(n) {
		to = l.Block
	}
	return from, to
}

// Fill puts a message at the end of its slot.
func (l Layout) Fill(slot []byte, m Message, seq uint64) {
	n := len(m.Data)
	from, to := l.Span(n)
	copy(slot[from:], m.Data)
	pad, end := -n&7, l.Block
	if to == end {
		return
	}
	clear(slot[from+n : end])
	binary.LittleEndian.PutUint32(slot[end:], m.Hash)
	slot[end+4], slot[end+5], slot[end+6], slot[end+7] = m.Epoch, byte(pad), byte(m.Kind), l.round(seq) //nolint:gosec // pad is at most 7
}

var errMessage = errors.New("it is no message of a collective operation")

// parse returns the message of which so many bytes were written to a slot, with immediate data.
func (l Layout) parse(slot []byte, n int, imm uint32, seq uint64) (m Message, err error) {
	if imm&wholeImm != 0 {
		if !l.whole(n) || n > l.Block {
			return m, fmt.Errorf("%d bytes, as whole packets: %w", n, errMessage)
		}
		return Message{Data: slot[l.Block-n : l.Block], Hash: imm & hashMask, Epoch: uint8(imm >> epochAt), Kind: Kind(imm >> kindAt & kindMask), whole: true}, nil //nolint:gosec // eight bits
	}
	if n < Trailer || n > len(slot) || n%8 != 0 {
		return m, fmt.Errorf("%d bytes: %w", n, errMessage)
	}
	b := slot[len(slot)-n:]
	t := b[n-Trailer:]
	pad := int(t[5])
	if pad > 7 || pad > n-Trailer {
		return m, fmt.Errorf("%d bytes of which %d align it: %w", n, pad, errMessage)
	}
	if t[7] != l.round(seq) {
		return m, fmt.Errorf("the slot was filled in round %d of the ring, and this is %d: %w", t[7], l.round(seq), errMessage)
	}
	return Message{Data: b[:n-Trailer-pad], Hash: binary.LittleEndian.Uint32(t), Epoch: t[4], Kind: Kind(t[6])}, nil
}

// A Message is on its way.
type Message struct {
	Data  []byte
	Hash  uint32 // of the operation
	Epoch uint8
	Kind  Kind
	call  *Call // of a message that is sent
	whole bool  // it has come without a trailer, and Hash has the lowest bits
}

// of says whether the message that has come is of the operation with that hash.
func (m *Message) of(hash uint32) bool {
	if m.whole {
		hash &= hashMask
	}
	return m.Hash == hash
}

// imm returns a message's immediate data.
func (l Layout) imm(m Message, lane int, seq uint64) uint32 {
	imm := messageImm(lane, seq)
	if l.whole(len(m.Data)) {
		imm |= wholeImm | uint32(m.Epoch)<<epochAt | uint32(m.Kind)<<kindAt | m.Hash&hashMask
	}
	return imm
}

// An epochCount counts the messages of a ring that are of operations of this epoch. Where some are of operations before the one under way,
// all messages before those have come, too, as a connection keeps their order.
type epochCount struct{ all, before uint64 }

// A tx is a ring that this rank fills, at one other rank or at all.
type tx struct {
	to      []int // ids of ranks
	acked   []uint64
	slots   []inSlot
	sent    uint64
	begun   uint64 // sent before the operation under way
	inEpoch epochCount
	done    uint64 // of which, from the first on, the device is done with the bytes
	flying  int    // messages that the device has
	failed  bool   // one of them has failed, and none is sent until the device has none: then all are sent again from that one on
	queue   []Message
}

// An inSlot is what is needed to write a message again.
type inSlot struct {
	size int
	imm  uint32
}

func newTx(slots int, to ...int) tx {
	return tx{to: to, acked: make([]uint64, len(to)), slots: make([]inSlot, slots)}
}

func (t *tx) begin() { t.begun, t.inEpoch.before = t.sent, t.inEpoch.all }

// next returns the next message for which there is a slot, and which its operation's window lets go.
func (t *tx) next() (m Message, seq uint64, ok bool) {
	free := t.done
	for _, a := range t.acked {
		free = min(free, a)
	}
	if len(t.queue) == 0 || t.failed || t.sent-free >= uint64(len(t.slots)) || t.sent-max(free, t.begun) >= t.queue[0].call.window {
		return m, 0, false
	}
	m, t.queue[0] = t.queue[0], Message{}
	t.queue = t.queue[1:]
	seq = t.sent
	t.sent++
	t.inEpoch.all++
	t.flying++
	return m, seq, true
}

func (t *tx) slot(seq uint64) *inSlot { return &t.slots[seq%uint64(len(t.slots))] }

// landed: the device is done with the oldest message that it has. It returns from which on up to which to send again.
func (t *tx) landed(ok bool) (from, to uint64) {
	t.flying--
	t.failed = t.failed || !ok
	if !t.failed {
		t.done++
	} else if t.flying == 0 {
		if len(t.acked) == 1 {
			t.done = max(t.done, t.acked[0])
		}
		t.failed = false
		t.flying = int(t.sent - t.done) //nolint:gosec // at most the slots
		return t.done, t.sent
	}
	return 0, 0
}

// ack: a rank has taken so many messages, of all that were sent.
func (t *tx) ack(id int, n uint64) error {
	i := slices.Index(t.to, id)
	switch {
	case i < 0:
		return nil
	case n > t.sent:
		return fmt.Errorf("it has taken %d messages of %d", n, t.sent)
	}
	t.acked[i] = max(t.acked[i], n)
	return nil
}

// ended: a rank has begun the operation under way, so it has ended those before, and taken what was sent to it for them.
func (t *tx) ended(id int) {
	if t.inEpoch.before > 0 {
		_ = t.ack(id, t.begun) // not more than was sent
	}
}

// drop: a rank is lost.
func (t *tx) drop(id int) {
	if i := slices.Index(t.to, id); i >= 0 {
		t.to, t.acked = slices.Delete(t.to, i, i+1), slices.Delete(t.acked, i, i+1)
	}
}

// An rx is a ring that another rank fills.
type rx struct {
	layout  Layout
	waiting []Message // that have arrived, and were not given to an operation
	arrived uint64
	freed   uint64
	begun   uint64 // freed before the operation under way
	inEpoch epochCount
	told    uint64
	implied uint64 // the rank learns as much from the messages of this epoch that it gets
}

func (r *rx) begin() { r.begun, r.inEpoch.before = r.freed, r.inEpoch.all }

// spoken: the rank gets a message of the operation under way, from which it learns what tx.ended says.
func (r *rx) spoken() {
	if r.inEpoch.before > 0 {
		r.implied = r.begun
	}
}

// newEpoch: messages of the epoch before imply nothing any more. tell is as that of free.
func (r *rx) newEpoch() (tell bool) {
	tell = r.implied > r.told
	r.implied, r.inEpoch = 0, epochCount{}
	if tell {
		r.told = r.freed
	}
	return tell
}

// free: so many further messages are not needed any more. tell says that the rank has to learn of it now: it needs to often
// enough never to wait for slots that are free, nor for its window (0: the rest of the operation's messages fit into it), and no more.
func (r *rx) free(n int, window uint64) (tell bool) {
	r.freed += uint64(n) //nolint:gosec // not negative
	if known := max(r.told, r.implied); 2*(r.freed-known) < uint64(r.layout.Slots) && (window == 0 || 2*(r.freed-max(known, r.begun)) < window) {
		return false
	}
	r.told = r.freed
	return true
}
