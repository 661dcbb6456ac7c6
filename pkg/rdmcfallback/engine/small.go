package engine

// Small messages (DSN §4.6 "Small messages"): in a small group the root writes each one directly
// into a ring of slots at each receiver. Small messages carry the low 32 bits of their number. In
// such groups the root announces the size of every other message with its number, so that each
// receiver knows the order of all messages.

// SmallSlots is the number of slots for small messages at each receiver.
const SmallSlots = 32

// A put is a small message in the ring at this receiver.
type put struct {
	number int64
	size   int
}

// Small reports that the root put a small message of size bytes into this member's ring.
func (e *Engine) Small(peer int, imm uint32, size int) {
	if !e.hears(peer) {
		return
	}
	last := e.started - 1
	if len(e.puts) > 0 {
		last = e.puts[len(e.puts)-1].number
	}
	number := last + int64(imm-uint32(last))
	switch {
	case peer != 0 || e.cfg.SmallMax == 0 || size > e.cfg.SmallMax || len(e.puts)+e.freeable >= SmallSlots:
		e.violated(peer, "it sent a small message of %d bytes, the %d. here", size, len(e.puts)+1)
	case number == last: // never less
		e.violated(peer, "it sent message %d twice", number)
	default:
		e.puts = append(e.puts, put{number, size})
	}
}

// Freed reports that n slots at a receiver are free again.
func (e *Engine) Freed(peer, n int) {
	if !e.hears(peer) {
		return
	}
	if e.cfg.Self != 0 || e.cfg.SmallMax == 0 || n < 1 || n > SmallSlots-e.room[peer] {
		e.violated(peer, "it freed %d slots for small messages", n)
	} else {
		e.room[peer] += n
	}
}

// beginSmall begins the next message if it is in the ring.
func (e *Engine) beginSmall() {
	if len(e.puts) == 0 || !e.mayBegin() {
		return
	}
	number := e.puts[0].number
	switch {
	case e.total >= 0 && number >= e.total:
		e.violated(0, "it sent small message %d; there are only %d", number, e.total)
	case number > e.started:
		e.fillGap()
	case e.nextIsTold():
		e.violated(0, "it sent message %d as a small one and as another", number)
	default:
		s, _ := e.shapeOf(int64(e.puts[0].size))
		e.begin(number, s)
		e.started++
	}
}

// fillGap makes sure that the root announces the size of the next message, which is not small,
// because puts arrive in order.
func (e *Engine) fillGap() {
	switch {
	case e.nextIsTold():
	case len(e.sizes) > 0: // sizes arrive in order, too
		e.missed()
	case e.gap < e.started:
		e.gap = e.started
		e.ask()
		e.gapAsk = e.asks
	}
}

// missed fails the group because the next message is not small and the root did not announce its
// size.
func (e *Engine) missed() {
	e.violated(0, "it sent small message %d, but never message %d", e.puts[0].number, e.started)
}

// nextIsTold reports whether the root has announced the size of the next message.
func (e *Engine) nextIsTold() bool { return len(e.sizes) > 0 && e.sizes[0].number == e.started }

// nextSmall returns the next action for a small message that has begun: it is copied when there is
// memory for it, and then its slot is freed.
func (e *Engine) nextSmall() (Action, bool) {
	if e.freeable >= SmallSlots/4 {
		n := e.freeable
		e.freeable = 0
		return Action{Kind: FreeSmall, Size: int64(n)}, true
	}
	if e.started == 0 || !e.newest().small || e.newest().missing == 0 {
		return Action{}, false
	}
	m := e.newest()
	if !m.opened {
		m.opened = true
		return Action{Kind: Open, Span: Span{Message: m.number}, Size: m.size}, true
	}
	if !m.hasMemory {
		return Action{}, false
	}
	m.missing = 0
	e.puts = e.puts[:copy(e.puts, e.puts[1:])]
	e.freeable++
	return Action{Kind: CopySmall, Span: m.span(m.number, 0)}, true
}

// nextPut puts a small message into the ring of the next receiver that has a free slot.
func (e *Engine) nextPut(m *message) (Action, bool) {
	peer := m.putTo
	if e.room[peer] == 0 {
		return Action{}, false
	}
	e.room[peer]--
	m.putTo++
	m.sends = m.putTo < e.nodes
	return Action{Kind: PutSmall, Peer: peer, Imm: uint32(m.number), Span: m.span(m.number, 0)}, true
}
