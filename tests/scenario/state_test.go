package scenario

import (
	"errors"
	"testing"
	"time"

	"github.com/mcrdma/mcrdma/pkg/mcrdma"
)

// The state of a daemon or agent is lost, or replaced by an older copy. Groups that only it knew
// end, or are re-formed; later ones work, and no number is used twice.
func TestStateLost(t *testing.T) {
	everywhere(t, []story{
		{"the sender's", func(l *lab, cfg mcrdma.GroupConfig) { stateLost(l, cfg, l.hosts[0]) }},
		{"a receiver's", func(l *lab, cfg mcrdma.GroupConfig) { stateLost(l, cfg, l.hosts[2]) }},
		{"the sender's, an older copy", func(l *lab, cfg mcrdma.GroupConfig) { olderCopy(l, cfg, l.hosts[0]) }},
		{"a receiver's, an older copy", func(l *lab, cfg mcrdma.GroupConfig) { olderCopy(l, cfg, l.hosts[2]) }},
	})
	t.Run("agent", func(t *testing.T) {
		bySwitches(t, []story{
			{"lost", func(l *lab, cfg mcrdma.GroupConfig) { agentStateLost(l, cfg, false) }},
			{"an older copy", func(l *lab, cfg mcrdma.GroupConfig) { agentStateLost(l, cfg, true) }},
		})
	})
}

// afterward checks what is left of a group after a host's state was lost, and that new groups can
// be created.
func (tm *team) afterward(h *host) {
	l := tm.l
	l.t.Helper()
	time.Sleep(40 * time.Second)
	if h == tm.sender.h {
		l.fails(tm.g.Err(), mcrdma.ErrDaemon, "")
		for _, a := range tm.apps {
			if err := a.m.Err(); !errors.Is(err, mcrdma.ErrSenderLost) && !errors.Is(err, mcrdma.ErrClosed) && !errors.Is(err, mcrdma.ErrRemoved) {
				l.t.Errorf("%s: %v", a.h.name, err)
			}
		}
	} else {
		for _, a := range tm.apps {
			if (a.m.Err() != nil) != (a.h == h) {
				l.t.Errorf("%s: %v", a.h.name, a.m.Err())
			}
		}
		for _, a := range tm.apps {
			if a.h == h {
				tm.without(a)
				break
			}
		}
		tm.write()
		tm.members(2)
		tm.close()
	}
	for _, h := range l.hosts {
		h.app.close()
	}
	next := l.group(mcrdma.GroupConfig{}, l.others()...)
	if next.g.Info().ID == tm.g.Info().ID {
		l.t.Errorf("%v is used twice", next.g.Info().ID)
	}
	next.write()
	next.members(3)
	next.close()
}

func stateLost(l *lab, cfg mcrdma.GroupConfig, h *host) {
	tm := l.group(cfg, l.others()...)
	tm.write()
	h.crash()
	h.disk.put(diskCopy{})
	h.start()
	tm.afterward(h)
}

func olderCopy(l *lab, cfg mcrdma.GroupConfig, h *host) {
	first := l.group(cfg, l.others()...)
	h.stop()
	c := h.disk.copy() // with a group that is closed afterward
	h.start()
	first.resumed(h)
	first.write()
	first.close()
	for _, h := range l.hosts {
		h.app.close()
	}
	tm := l.group(cfg, l.others()...)
	tm.write()
	h.crash()
	h.disk.put(c)
	h.start()
	tm.afterward(h)
}

func agentStateLost(l *lab, cfg mcrdma.GroupConfig, copied bool) {
	for _, n := range l.switches {
		var c diskCopy
		if copied {
			first := l.group(cfg, l.others()...)
			n.stop()
			c = n.disk.copy()
			n.start()
			n.ready()
			l.linksUp()
			first.close()
			for _, h := range l.hosts {
				h.app.close()
			}
			time.Sleep(40 * time.Second)
		}
		tm := l.group(cfg, l.others()...)
		tm.write()
		n.stop()
		n.disk.put(c)
		n.start()
		n.ready()
		l.linksUp()
		time.Sleep(40 * time.Second)
		tm.write()
		tm.members(3)
		tm.close()
		for _, h := range l.hosts {
			h.app.close()
		}
		l.noGroups("after an agent has lost its state")
	}
}
