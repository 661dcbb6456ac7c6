package engine

import "slices"

// Next returns the next action, and false if there is none until the next event. It allocates only
// if a message is longer than all before, and for control messages.
func (e *Engine) Next() (Action, bool) {
	for {
		if a, ok := e.nextTell(); ok {
			return a, true
		}
		switch e.phase {
		case joining:
			if e.greets < e.nodes {
				return Action{}, false
			}
			e.phase = open
			return Action{Kind: Joined}, true
		case open:
			if a, ok := e.nextOpen(); ok {
				return a, true
			}
			if e.phase == open {
				e.barrier()
			}
			if e.phase == open && len(e.tells) == 0 {
				return e.nextCount()
			}
		default:
			if e.reported {
				return Action{}, false
			}
			e.reported = true
			if e.phase == failed {
				return Action{Kind: Failed}, true
			}
			return Action{Kind: Closed}, true
		}
	}
}

// nextOpen returns the next action in an open group: first those that others may wait for, last the
// callback that may take long.
func (e *Engine) nextOpen() (Action, bool) {
	if e.cfg.Self == 0 {
		e.beginQueued()
	} else {
		e.beginSmall()
		e.beginArrived()
		if e.phase > open {
			return Action{}, false
		}
		if a, ok := e.nextSmall(); ok {
			return a, true
		}
		if a, ok := e.nextSpare(); ok {
			return a, true
		}
	}
	if a, ok := e.nextSend(); ok {
		return a, true
	}
	if a, ok := e.nextRecv(); ok {
		return a, true
	}
	if a, ok := e.nextComplete(); ok {
		return a, true
	}
	return e.nextEverywhere()
}

// nextTell returns the next control message.
func (e *Engine) nextTell() (Action, bool) {
	if len(e.tells) == 0 {
		return Action{}, false
	}
	t := e.tells[0]
	e.tells = e.tells[1:]
	return Action{Kind: Tell, Peer: t.peer, Msg: t.msg}, true
}

// beginQueued begins messages at the root. When there are no more, it announces their number, after
// all other control messages about them.
func (e *Engine) beginQueued() {
	for len(e.queue) > 0 && e.started-e.complete < Window {
		s, _ := e.shapeOf(e.queue[0])
		e.queue = slices.Delete(e.queue, 0, 1)
		if s.size >= big || e.cfg.SmallMax > 0 && !e.isSmall(s.size) {
			e.tellAll(&control{kind: kindSize, number: e.started, value: s.size})
		}
		e.begin(e.started, s)
		e.started++
	}
	if e.closing && e.total < 0 && len(e.queue) == 0 {
		e.total = e.started
		e.tellAll(&control{kind: kindClose, number: e.total})
	}
}

// nextSpare returns the next action for the spare block. The block in it counts as arrived when it
// is copied, which the owner does before anything else.
func (e *Engine) nextSpare() (Action, bool) {
	if e.spare != spareBegun {
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
	block := m.recv.Block
	m.take(block)
	m.recv, m.recvs = m.node.NextRecv(m.recv.Step)
	e.spare = spareFree
	return Action{Kind: Copy, Span: m.span(m.number, block)}, true
}

// nextSend issues the next send, if its block has arrived, its peer is ready, and not too many
// sends are in flight.
func (e *Engine) nextSend() (Action, bool) {
	for e.sendAt < e.started {
		m := &e.ring[e.sendAt%Window]
		if !m.sends {
			e.sendAt++
			continue
		}
		if m.small {
			if a, ok := e.nextPut(m); ok {
				return a, true
			}
			break
		}
		t := m.send
		if e.credits[t.Peer] == 0 || !m.holds(t.Block) || !e.mayStart(e.sendings, t.Peer) {
			break
		}
		e.credits[t.Peer]--
		e.sendings = append(e.sendings, transfer{t.Peer, m.number, t.Block})
		m.sending++
		m.send, m.sends = m.node.NextSend(t.Step)
		return Action{Kind: SendBlock, Peer: t.Peer, Imm: m.imm, Span: m.span(m.number, t.Block)}, true
	}
	return Action{}, false
}

// nextRecv posts the next receive: of the newest message or, if all of that are posted, of the
// spare block for the next message.
func (e *Engine) nextRecv() (Action, bool) {
	if e.first < 0 {
		return Action{}, false
	}
	if m := e.newest(); e.started > 0 && (m.recvs || !m.hasMemory) {
		t := m.recv
		if !m.hasMemory || !m.recvs || !e.mayStart(e.recvs, t.Peer) {
			return Action{}, false
		}
		e.recvs = append(e.recvs, transfer{t.Peer, m.number, t.Block})
		m.recv, m.recvs = m.node.NextRecv(t.Step)
		return Action{Kind: PostRecv, Peer: t.Peer, Span: m.span(m.number, t.Block)}, true
	}
	if e.spare != spareFree || e.started == e.total || !e.mayStart(e.recvs, e.first) {
		return Action{}, false
	}
	e.spare = sparePosted
	e.recvs = append(e.recvs, transfer{peer: e.first, number: Spare})
	return Action{Kind: PostRecv, Peer: e.first, Span: Span{Message: Spare, Len: e.cfg.BlockSize}}, true
}

// mayStart reports whether one more transfer with a peer may start in a direction that already has
// others. A transfer with the same peer does not compete with them. With another peer it would, and
// a member that is ahead would get further ahead at the others' expense; a pipeline is fast only
// while all members are in step.
func (e *Engine) mayStart(others []transfer, peer int) bool {
	if len(others) <= e.cfg.Ahead {
		return true
	}
	return len(others) < samePeer && !slices.ContainsFunc(others, func(t transfer) bool { return t.peer != peer })
}

// nextComplete completes messages in their order.
func (e *Engine) nextComplete() (Action, bool) {
	if e.complete == e.started {
		return Action{}, false
	}
	m := &e.ring[e.complete%Window]
	if !m.over() {
		return Action{}, false
	}
	e.complete++
	e.tally.set(0, e.complete)
	return Action{Kind: Complete, Span: Span{Message: m.number}}, true
}
