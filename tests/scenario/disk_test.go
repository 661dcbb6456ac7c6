package scenario

import (
	"errors"
	"strings"
	"testing"
	"time"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/pkg/mcrdma"
)

// A disk is full. Existing groups continue; new ones get a clear error. When there is space again
// and the process has been restarted, everything works.
func TestDiskFull(t *testing.T) {
	everywhere(t, []story{
		{"the sender's", func(l *lab, cfg mcrdma.GroupConfig) { diskFull(l, cfg, l.hosts[0]) }},
		{"a receiver's", func(l *lab, cfg mcrdma.GroupConfig) { diskFull(l, cfg, l.hosts[2]) }},
		{"the sender's, of a group that changes", diskFullChange},
		{"all disks, of a group that is closed", diskFullClose},
	})
	bySwitches(t, []story{{"an agent's", diskFullAgent}})
}

func diskFull(l *lab, cfg mcrdma.GroupConfig, h *host) {
	tm := l.group(cfg, l.others()...)
	tm.write()
	h.disk.setFull(true)
	g, err := tm.sender.client.Create(l.t.Context(), groupTo(cfg, l.others()...))
	if err == nil {
		l.t.Errorf("created: %+v", g.Info())
	}
	l.fails(err, mcrdma.ErrLimit, "")
	if err != nil && !strings.Contains(err.Error(), "no space left on device") && h == l.hosts[0] {
		l.t.Errorf("%v", err)
	}
	d, err := h.daemon()
	if err != nil || len(d.GetProblems()) == 0 {
		l.t.Errorf("the daemon reports no problem: %v, %v", d, err)
	}
	tm.write()
	tm.members(3)
	h.disk.setFull(false)
	h.stop()
	h.start()
	tm.resumed(h)
	tm.write()
	g, err = tm.sender.client.Create(l.t.Context(), groupTo(cfg, l.others()...))
	l.must(err)
	l.must(g.Close(l.t.Context()))
	tm.close()
}

func diskFullChange(l *lab, cfg mcrdma.GroupConfig) {
	tm := l.group(cfg, l.others()...)
	tm.write()
	tm.sender.h.disk.setFull(true)
	tm.apps[1].kill()
	stop := tm.keepTrying()
	time.Sleep(20 * time.Second)
	tm.sender.h.disk.setFull(false)
	tm.sender.h.stop()
	tm.sender.h.start()
	time.Sleep(20 * time.Second)
	stop()
	if err := tm.g.Err(); err != nil {
		l.t.Logf("the group has ended: %v", err)
		if !errors.Is(err, mcrdma.ErrLimit) && !errors.Is(err, mcrdma.ErrFailed) && !errors.Is(err, mcrdma.ErrDaemon) {
			l.t.Errorf("%v", err)
		}
		return
	}
	tm.without(tm.apps[1])
	tm.write()
	tm.members(2)
	tm.close()
}

// keepTrying writes until stop is called, and ignores errors.
func (tm *team) keepTrying() (stop func()) {
	end, ended := make(chan struct{}), make(chan struct{})
	tm.l.wg.Go(func() {
		defer close(ended)
		for tm.tryWrite(tm.l.t.Context()) == nil {
			select {
			case <-end:
				return
			case <-time.After(20 * time.Millisecond):
			}
		}
	})
	return func() {
		close(end)
		<-ended
	}
}

func diskFullClose(l *lab, cfg mcrdma.GroupConfig) {
	l.wait = leases // the daemons remember ended sessions
	tm := l.group(cfg, l.others()...)
	tm.write()
	for _, h := range l.hosts {
		h.disk.setFull(true)
	}
	tm.close()
	time.Sleep(time.Second)
	for _, h := range l.hosts {
		h.app.close()
		h.disk.setFull(false)
		h.stop()
		h.start()
	}
}

func diskFullAgent(l *lab, cfg mcrdma.GroupConfig) {
	n := l.switches[0]
	tm := l.group(cfg, l.others()...)
	tm.write()
	n.disk.setFull(true)
	g, err := tm.sender.client.Create(l.t.Context(), groupTo(cfg, l.others()...))
	l.must(err)
	if i := g.Info(); i.Path != mcrdma.PathRelay || !strings.Contains(strings.Join(i.Why, " "), "cannot be stored") {
		l.t.Errorf("%+v", i)
	}
	if s, err := n.status(); err != nil || len(s.GetProblems()) == 0 || mcrdmav1.ProblemOf(s.GetProblemKinds(), 0) != mcrdmav1.ProblemKind_PROBLEM_KIND_STATE_FILE {
		l.t.Errorf("the agent reports no problem: %v, %v", s, err)
	}
	tm.write()
	l.must(g.Close(l.t.Context()))
	n.disk.setFull(false)
	n.stop()
	n.start()
	n.ready()
	l.linksUp()
	tm.write()
	tm.close()
}
