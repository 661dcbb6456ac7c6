package replica

import (
	"time"

	"github.com/mcrdma/mcrdma/pkg/replica/core"
)

// run runs posted functions until the mailbox is closed.
func (l *loop) run() {
	defer close(l.stopped)
	l.busy.timer = time.AfterFunc(0, func() { l.post(l.tick) })
	defer l.busy.timer.Stop()
	l.mailbox.run()
}

// settle carries out the node's actions, and retries waiting calls.
func (l *loop) settle() {
	for {
		list := l.node.Take()
		for _, a := range list {
			if l.failure == nil {
				l.perform(a)
			}
		}
		if len(list) == 0 && (len(l.calls.waiting) == 0 || !l.calls.retry()) {
			break
		}
	}
	at := now()
	s := l.node.Status(at)
	s.Applied = min(s.Applied, l.shown) // the store has them already
	l.out.statusChanged(s, l.failure)
	if d := l.node.Deadline(); d != l.busy.due && l.failure == nil {
		l.busy.due = d
		l.busy.timer.Reset(d - at)
	}
}

// step takes a message.
func (l *loop) step(m message) {
	var took []core.Version
	for _, i := range m.entries {
		if l.content.arrive(i) {
			took = append(took, i.Version)
		}
	}
	m.entries = nil
	l.pieces = m.pieces
	if l.failure == nil {
		l.node.Step(m.Message, now())
		l.settle()
	}
	for _, v := range took {
		l.content.forget(v)
	}
}

// leaving: this node leaves a group, or has received more since. If entries that it has received
// cannot be in its log, because it lacks some before them, it was never acting in this group, and
// does not get what it lacks any more. Then they and all later ones are of no use, and would only
// occupy the memory that receiving these waits for.
func (l *loop) leaving() {
	l.post(func() { // after the actions for the entries before
		if len(l.content.arrived) > 0 {
			l.follow.discard()
		}
	})
}

// left: this node is no longer a member of a group.
func (l *loop) left(iv core.Interval) {
	l.node.Left(iv, now())
	l.settle()
	l.content.forgetAll()
}
