package engine

import "fmt"

// The end and the failure of the group, and how this member tells the others.

// barrier takes the next step toward the end, if possible, and tells the others.
func (e *Engine) barrier() {
	switch {
	case e.total < 0 || e.complete < e.total || e.told:
	case e.cfg.Self != 0:
		e.told = true
		e.tell(0, 1, &control{kind: kindHave, number: e.total})
	case e.nFinished == e.nodes-1:
		e.phase = closed
		e.tellAll(&control{kind: kindDone, number: e.total})
	}
}

// violated fails the group because of what a peer did.
func (e *Engine) violated(peer int, format string, args ...any) {
	e.fail(peer, fmt.Errorf("%w by member %d (%s): %s", ErrProtocol, peer, e.cfg.Members[peer], fmt.Sprintf(format, args...)))
}

// fail ends the group because of what this member has found.
func (e *Engine) fail(suspect int, reason error) { e.end(suspect, e.cfg.Self, reason) }

// end ends the group and tells all other members, once.
func (e *Engine) end(suspect, reporter int, reason error) {
	if e.phase > open {
		return
	}
	e.failure = &FailedError{Suspect: suspect, Reporter: reporter, Name: e.cfg.Members[suspect], Reason: reason, Complete: e.complete}
	e.phase = failed
	e.tellAll(&control{kind: kindFailed, number: int64(suspect), value: int64(reporter), code: codeOf(reason), text: printable(reason.Error())})
}

// tellAll queues a control message to all other members.
func (e *Engine) tellAll(c *control) { e.tell(0, e.nodes, c) }

// tell queues a control message to the members from first to last-1.
func (e *Engine) tell(first, last int, c *control) {
	msg := c.append(nil)
	for peer := first; peer < last; peer++ {
		if e.isPeer(peer) {
			e.tells = append(e.tells, tell{peer, msg})
		}
	}
}

// ask asks the root for a size. Normally the root's message with the size is in flight; if it is
// not, the root's answer arrives without it.
func (e *Engine) ask() {
	e.asks++
	e.tell(0, 1, &control{kind: kindAsk, number: e.asks})
}

// hears reports whether events of a peer still count.
func (e *Engine) hears(peer int) bool { return e.phase <= open && e.isPeer(peer) }

func (e *Engine) isPeer(peer int) bool { return peer >= 0 && peer < e.nodes && peer != e.cfg.Self }
