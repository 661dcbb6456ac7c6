package engine

import "fmt"

// What members tell each other about the group: that it begins, ends, or fails.

// toldHello compares a greeting with what this member would say.
func (e *Engine) toldHello(peer int, h *hello) {
	if e.greeted[peer] {
		e.violated(peer, "it greeted twice")
		return
	}
	if d := e.mine.differs(h); d != "" {
		e.fail(peer, fmt.Errorf("%w: members %d (%s) and %d (%s): %s",
			ErrMismatch, e.cfg.Self, e.cfg.Members[e.cfg.Self], peer, e.cfg.Members[peer], d))
		return
	}
	if int(h.Self) != peer {
		e.fail(peer, fmt.Errorf("%w: member %d (%s) says that it is member %d", ErrMismatch, peer, e.cfg.Members[peer], h.Self))
		return
	}
	if h.Counts == 1 {
		if peer != 0 {
			e.violated(peer, "it wants to be told what others have, as only the root may")
			return
		}
		e.tally.asked = true
	}
	e.greeted[peer], e.have[peer] = true, h.Have
	e.greets++
}

// toldSize keeps the size of a large message until its first block is here. The root may be
// as many messages ahead of this member as fit in the windows of all members between them.
func (e *Engine) toldSize(peer int, c *control) {
	last := e.started - 1
	if len(e.sizes) > 0 {
		last = e.sizes[len(e.sizes)-1].number
	}
	if e.total >= 0 || c.number <= last || !e.isTold(uint32(min(c.value, big))) || e.isSmall(c.value) || len(e.sizes) >= Window*e.nodes {
		e.violated(peer, "it told that message %d has %d bytes, after message %d", c.number, c.value, last)
		return
	}
	e.sizes = append(e.sizes, *c)
}

// toldClose records how many messages there are.
func (e *Engine) toldClose(peer int, total int64) {
	if e.total >= 0 || total < e.started {
		e.violated(peer, "it told that there are %d messages, after it sent %d", total, e.started)
		return
	}
	e.total = total
}

// toldHave counts a member that has everything.
func (e *Engine) toldHave(peer int, total int64) {
	if e.cfg.Self != 0 || !e.closing || e.finished[peer] || total != e.total {
		e.violated(peer, "it told that it has all %d messages", total)
		return
	}
	e.finished[peer] = true
	e.nFinished++
	e.tally.set(peer, total)
}

// toldDone ends the group.
func (e *Engine) toldDone(peer int, total int64) {
	if !e.told || total != e.total {
		e.violated(peer, "it announced that all members have all %d messages, but this member has %d", total, e.complete)
		return
	}
	e.end(closed)
}

// toldFailed fails the group as another member did.
func (e *Engine) toldFailed(peer int, c *control) {
	if c.number >= int64(e.nodes) || int(c.code) >= len(codes) || codes[c.code] == nil {
		e.violated(peer, "it told that member %d failed with code %d", c.number, c.code)
		return
	}
	e.fail(int(c.number), &relayed{text: c.text, reason: codes[c.code]})
}

// barrier takes the next step towards the end, if it can, and reports whether it did.
func (e *Engine) barrier() bool {
	if e.total < 0 || e.complete < e.total || e.told {
		return false
	}
	if e.cfg.Self != 0 {
		e.told = true
		e.tell(0, 1, &control{kind: kindHave, number: e.total})
		return true
	}
	if e.nFinished < e.nodes-1 {
		return false
	}
	e.told = true
	e.end(closed)
	e.tellAll(&control{kind: kindDone, number: e.total})
	return true
}

// violated fails the group because of what a peer did.
func (e *Engine) violated(peer int, format string, args ...any) {
	e.fail(peer, fmt.Errorf("%w by member %d (%s): %s", ErrProtocol, peer, e.cfg.Members[peer], fmt.Sprintf(format, args...)))
}

// fail ends the group and tells all other members, once.
func (e *Engine) fail(suspect int, reason error) {
	if e.phase > open {
		return
	}
	e.failure = &FailedError{Suspect: suspect, Name: e.cfg.Members[suspect], Reason: reason, Complete: e.complete}
	e.end(failed)
	e.tellAll(&control{kind: kindFailed, number: int64(suspect), code: codeOf(reason), text: printable(reason.Error())})
}

// end ends everything that is under way.
func (e *Engine) end(p phase) {
	e.phase, e.reported = p, false
	e.queue, e.sizes = nil, nil
}

// tellAll queues a control message to all other members.
func (e *Engine) tellAll(c *control) { e.tell(0, e.nodes, c) }

// tell queues a control message to the members from first to last-1.
func (e *Engine) tell(first, last int, c *control) {
	e.tells = append(e.tells, tell{first, last, c.append(nil)})
}
