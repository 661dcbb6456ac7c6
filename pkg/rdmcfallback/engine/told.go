package engine

import "fmt"

// Control messages among members about the group: its beginning, end or failure, and the messages
// to come.

// Told reports that a peer sent a control message. It does not keep msg.
func (e *Engine) Told(peer int, msg []byte) {
	if !e.hears(peer) {
		return
	}
	c, err := parse(msg)
	fromRoot := c.kind == kindSize || c.kind == kindClose || c.kind == kindDone || c.kind == kindTold
	switch {
	case err != nil:
		e.violated(peer, "it sent %v", err)
	case fromRoot && peer != 0:
		e.violated(peer, "it sent a control message of kind %d, which only the root may", c.kind)
	case c.kind == kindHello:
		e.toldHello(peer, &c.hello)
	case c.kind == kindFailed:
		e.toldFailed(peer, &c)
	case !e.greeted[peer]:
		e.violated(peer, "it sent a control message of kind %d before it greeted", c.kind)
	case c.kind == kindSize:
		e.toldSize(peer, &c)
	case c.kind == kindClose:
		e.toldClose(peer, c.number)
	case c.kind == kindHave:
		e.toldHave(peer, c.number)
	case c.kind == kindCount:
		e.toldCount(peer, c.number)
	case c.kind == kindDone:
		e.toldDone(peer, c.number)
	case c.kind == kindAsk:
		e.tell(peer, peer+1, &control{kind: kindTold, number: c.number})
	case c.kind == kindTold:
		e.sizesAnnounced(peer, c.number)
	}
}

// toldHello compares a greeting with this member's own.
func (e *Engine) toldHello(peer int, h *hello) {
	switch d := e.mine.differs(h); {
	case e.greeted[peer]:
		e.violated(peer, "it greeted twice")
	case d != "":
		e.fail(peer, fmt.Errorf("%w: members %d (%s) and %d (%s): %s",
			ErrMismatch, e.cfg.Self, e.cfg.Members[e.cfg.Self], peer, e.cfg.Members[peer], d))
	case int(h.Self) != peer:
		e.fail(peer, fmt.Errorf("%w: member %d (%s) says that it is member %d", ErrMismatch, peer, e.cfg.Members[peer], h.Self))
	case h.Counts > 0 && peer != 0:
		e.violated(peer, "it wants to be told what others have, as only the root may")
	default:
		e.tally.asked = e.tally.asked || h.Counts > 0
		e.greeted[peer], e.have[peer] = true, h.Have
		e.greets++
	}
}

// toldSize stores the size of a large message until its first block arrives. The root may be ahead
// of this member by as many messages as fit in the windows of all members between them.
func (e *Engine) toldSize(peer int, c *control) {
	last := e.started - 1
	if len(e.sizes) > 0 {
		last = e.sizes[len(e.sizes)-1].number
	}
	if e.total >= 0 || c.number <= last || !e.isTold(uint32(min(c.value, big))) || e.isSmall(c.value) || len(e.sizes) >= Window*e.nodes {
		e.violated(peer, "it told that message %d has %d bytes, after message %d", c.number, c.value, last)
	} else {
		e.sizes = append(e.sizes, *c)
	}
}

// sizesAnnounced handles the root's answer: the root has announced all sizes due at the time of the
// question.
func (e *Engine) sizesAnnounced(peer int, ask int64) {
	if ask <= e.answers || ask > e.asks {
		e.violated(peer, "it answered question %d, after %d of %d", ask, e.answers, e.asks)
		return
	}
	e.answers = ask
	if ask == e.asks && e.spare == spareArrived && e.isTold(e.spareImm) && len(e.sizes) == 0 {
		e.violated(e.first, "it sent a message with immediate value %#x, of which the root doesn't know", e.spareImm)
	}
	if ask == e.gapAsk && e.gap == e.started && len(e.sizes) == 0 {
		e.missed()
	}
}

// toldClose records the total number of messages.
func (e *Engine) toldClose(peer int, total int64) {
	if e.total >= 0 || total < e.started {
		e.violated(peer, "it told that there are %d messages, after it sent %d", total, e.started)
	} else {
		e.total = total
	}
}

// toldHave counts a member that has all messages.
func (e *Engine) toldHave(peer int, total int64) {
	if e.cfg.Self != 0 || e.finished[peer] || total != e.total {
		e.violated(peer, "it told that it has all %d messages", total)
	} else {
		e.finished[peer] = true
		e.nFinished++
		e.tally.set(peer, total)
	}
}

// toldCount records how many messages a member has.
func (e *Engine) toldCount(peer int, count int64) {
	t := &e.tally
	if t.counts == nil || count <= t.counts[peer] || count > e.started {
		e.violated(peer, "it told that it has %d messages", count)
	} else {
		t.set(peer, count)
	}
}

// toldDone ends the group.
func (e *Engine) toldDone(peer int, total int64) {
	if !e.told || total != e.total {
		e.violated(peer, "it announced that all members have all %d messages, but this member has %d", total, e.complete)
	} else {
		e.phase = closed
	}
}

// toldFailed fails the group as another member did.
func (e *Engine) toldFailed(peer int, c *control) {
	if c.value == notFound {
		c.value = int64(peer)
	}
	if max(c.number, c.value) >= int64(e.nodes) || codes[c.code] == nil {
		e.violated(peer, "it told that member %d failed with code %d", c.number, c.code)
	} else {
		e.end(int(c.number), int(c.value), &relayed{text: c.text, reason: codes[c.code]})
	}
}
