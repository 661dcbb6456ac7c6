package engine

import (
	"errors"
	"fmt"
	"slices"
)

// Send makes a message of the given size the root's next one. The engine may read its memory until
// Complete. Errors wrap ErrNotRoot, ErrSize or ErrClosed; if the group has failed, the error is its
// Failure.
func (e *Engine) Send(size int64) error {
	switch {
	case e.phase == failed:
		return e.failure
	case e.phase != open || e.closing:
		return fmt.Errorf("%w: nothing can be sent", ErrClosed)
	}
	if err := e.CanSend(size); err != nil {
		return err
	}
	e.queue = append(e.queue, size)
	return nil
}

// CanSend returns an error if this member can never send a message of the given size. It may be
// called from any goroutine, at any time.
func (e *Engine) CanSend(size int64) error {
	s, ok := e.shapeOf(size)
	switch {
	case e.cfg.Self != 0:
		return fmt.Errorf("%w: this is member %d", ErrNotRoot, e.cfg.Self)
	case size < 0:
		return fmt.Errorf("%w: %d bytes", ErrSize, size)
	case !ok:
		return fmt.Errorf("%w: %d bytes are %d blocks of %d; use larger blocks", ErrSize, size, s.blocks, e.cfg.BlockSize)
	}
	return nil
}

// Close reports that the root sends no more messages. The group ends when all members have all
// messages. At other members, which wait for the root's message anyway, it does nothing.
func (e *Engine) Close() {
	if e.cfg.Self == 0 && e.phase == open {
		e.closing = true
	}
}

// Leave fails the group because this member leaves it. All members learn the reason.
func (e *Engine) Leave(why string) {
	e.fail(e.cfg.Self, fmt.Errorf("%w: %s", ErrLeft, why))
}

// Broken fails the group because this member's transport has failed.
func (e *Engine) Broken(err error) {
	e.fail(e.cfg.Self, fmt.Errorf("%w: %w", ErrLost, err))
}

// Provide reports that there is memory for the message of the last Open.
func (e *Engine) Provide() {
	if m := e.newest(); m.opened && !m.hasMemory {
		m.prepare()
	}
}

// Refuse fails the group because there is no memory for the message of the last Open.
func (e *Engine) Refuse(why string) {
	e.fail(e.cfg.Self, fmt.Errorf("%w: %s", ErrRefused, why))
}

// Ready reports that a peer can receive one more block.
func (e *Engine) Ready(peer int) {
	if !e.hears(peer) {
		return
	}
	if e.credits[peer]++; e.credits[peer] > maxCredits {
		e.violated(peer, "it is ready for %d blocks", e.credits[peer])
	}
}

// Sent reports that the oldest block being sent to a peer is free again.
func (e *Engine) Sent(peer int) {
	i := slices.IndexFunc(e.sendings, func(s transfer) bool { return s.peer == peer })
	if i < 0 {
		return // protects against a transport that miscounts
	}
	e.ring[e.sendings[i].number%Window].sending--
	e.sendings = slices.Delete(e.sendings, i, i+1)
}

// Received reports that the oldest receive posted for a peer now holds a block of n bytes, with the
// immediate value imm.
func (e *Engine) Received(peer int, imm uint32, n int) {
	if !e.hears(peer) {
		return
	}
	i := slices.IndexFunc(e.recvs, func(r transfer) bool { return r.peer == peer })
	if i < 0 {
		e.violated(peer, "it sent a block that it was not asked for")
		return
	}
	r := e.recvs[i]
	e.recvs = slices.Delete(e.recvs, i, i+1)
	if r.number == Spare {
		e.spare, e.spareImm, e.spareLen = spareArrived, imm, n
		if e.isTold(imm) && len(e.sizes) == 0 {
			e.ask()
		}
		return
	}
	m := &e.ring[r.number%Window]
	m.take(r.block)
	if want := m.span(r.number, r.block).Len; imm != m.imm || n != want {
		e.violated(peer, "block %d of message %d came with %d bytes and immediate value %#x instead of %d and %#x",
			r.block, r.number, n, imm, want, m.imm)
	}
}

// beginArrived begins the message whose first block is in the spare block, if it is the next
// message and its size is known.
func (e *Engine) beginArrived() {
	if e.spare != spareArrived || !e.mayBegin() {
		return
	}
	number, size := e.started, int64(e.spareImm)
	if e.total >= 0 && number >= e.total {
		e.violated(e.first, "it sent message %d; there are only %d", number, e.total)
		return
	}
	known := e.nextIsTold()
	switch told := e.isTold(e.spareImm); {
	case told && !known && (len(e.sizes) == 0 || e.cfg.SmallMax > 0):
		return // the root's message is in flight, or small messages come first
	case told != known:
		e.violated(e.first, "it sent message %d with immediate value %#x, but the root announced others", number, e.spareImm)
		return
	case known:
		size = e.sizes[0].value
		e.sizes = slices.Delete(e.sizes, 0, 1)
	}
	s, ok := e.shapeOf(size)
	if !ok || s.imm() != e.spareImm {
		e.violated(e.first, "message %d of %d bytes came with immediate value %#x", number, size, e.spareImm)
		return
	}
	m := e.begin(number, s)
	if want := m.span(number, m.recv.Block).Len; e.spareLen != want {
		e.violated(e.first, "its first block of message %d has %d bytes instead of %d", number, e.spareLen, want)
		return
	}
	e.started++
	e.spare = spareBegun
}

// Down reports that the connection to a peer ended.
func (e *Engine) Down(peer int, err error) {
	if !e.hears(peer) {
		return
	}
	if e.told && peer != 0 {
		return // the root decides: it has either seen the same failure, or has all reports that it needs
	}
	if !errors.Is(err, ErrProtocol) {
		err = fmt.Errorf("%w: %w", ErrLost, err)
	}
	e.fail(peer, err)
}
