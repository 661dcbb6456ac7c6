package scenario

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/mcrdma/mcrdma/pkg/mcrdma"
)

// Daemons and agents end, in order or not, and restart with their state: groups continue. Groups
// whose application has ended end when its grace has ended.
func TestRestart(t *testing.T) {
	everywhere(t, []story{
		{"the sender's daemon", func(l *lab, cfg mcrdma.GroupConfig) { restarts(l, cfg, l.hosts[0]) }},
		{"a receiver's daemon", func(l *lab, cfg mcrdma.GroupConfig) { restarts(l, cfg, l.hosts[2]) }},
		{"all daemons one by one", func(l *lab, cfg mcrdma.GroupConfig) { restarts(l, cfg, l.hosts...) }},
		{"all daemons at once", allRestart},
		{"the sender's daemon stays away", senderAway},
		{"a receiver's daemon stays away", receiverAway},
		{"the sender's application goes while its daemon is away", senderGone},
		{"a receiver's application goes while its daemon is away", receiverGone},
		{"a receiver dies while another one's daemon restarts", diesMeanwhile},
		{"a receiver dies while its daemon is waited for", diesWaitedFor},
		{"created while a daemon restarts", createdMeanwhile},
		{"a receiver is taken out while the sender's daemon is away", removedMeanwhile},
	})
	byHosts(t, []story{{"state in files", stateInFiles}})
}

func TestAgentRestart(t *testing.T) {
	bySwitches(t, []story{
		{"one by one", agentsRestart},
		{"both at once", bothAgentsRestart},
		{"a group is closed while an agent is away", closedWithoutAgent},
		{"a receiver dies while an agent is away", diesWithoutAgent},
		{"daemons and agents at once", everythingRestarts},
	})
}

// resumed waits until an application has resumed its group or membership.
func (tm *team) resumed(h *host) {
	tm.l.t.Helper()
	if h == tm.sender.h {
		tm.event(mcrdma.EventResumed)
	}
	for _, a := range tm.apps {
		if a.h == h {
			tm.l.event(a.m.Events(), mcrdma.EventResumed)
		}
	}
}

func restarts(l *lab, cfg mcrdma.GroupConfig, hosts ...*host) {
	tm := l.group(cfg, l.others()...)
	for _, crash := range []bool{false, true} {
		for _, h := range hosts {
			tm.write()
			if crash {
				h.crash()
			} else {
				h.stop()
			}
			tm.write() // data needs no daemon
			time.Sleep(3 * time.Second)
			tm.write()
			h.start()
			tm.resumed(h)
			tm.write()
		}
	}
	if i := tm.g.Info(); i.Formation != 1 {
		l.t.Errorf("formed anew: %+v", i)
	}
	tm.members(3)
	time.Sleep(40 * time.Second) // longer than any lease
	tm.write()
	tm.close()
}

func allRestart(l *lab, cfg mcrdma.GroupConfig) {
	tm := l.group(cfg, l.others()...)
	for _, h := range l.hosts {
		h.crash()
	}
	time.Sleep(5 * time.Second)
	for _, h := range l.hosts {
		h.start()
	}
	for _, h := range l.hosts {
		tm.resumed(h)
	}
	time.Sleep(40 * time.Second)
	tm.write()
	tm.members(3)
	tm.close()
}

func senderAway(l *lab, cfg mcrdma.GroupConfig) {
	tm := l.group(cfg, l.others()...)
	tm.write()
	tm.sender.h.crash()
	begun := time.Now()
	for _, a := range tm.apps {
		a.ends(mcrdma.ErrSenderLost)
	}
	if took := time.Since(begun); took < 10*time.Second || took > 40*time.Second {
		l.t.Errorf("given up after %v", took)
	}
	tm.sender.h.start()
	tm.event(mcrdma.EventFailed)
	l.noGroups("after the daemon's absence")
}

func receiverAway(l *lab, cfg mcrdma.GroupConfig) {
	tm := l.group(cfg, l.others()...)
	tm.write()
	lost := tm.apps[1]
	lost.h.crash()
	begun := time.Now()
	tm.removed(lost)
	if took := time.Since(begun); took < 9*time.Second || took > 12*time.Second {
		l.t.Errorf("taken out after %v", took)
	}
	tm.write()
	lost.h.start()
	if _, err := lost.m.Recv(l.t.Context()); err == nil {
		l.t.Error("it is still a member")
	}
	tm.write()
	tm.members(2)
	tm.close()
}

func senderGone(l *lab, cfg mcrdma.GroupConfig) {
	tm := l.group(cfg, l.others()...)
	tm.write()
	h := tm.sender.h
	h.crash()
	tm.sender.kill()
	time.Sleep(time.Second)
	h.start()
	begun := time.Now()
	for _, a := range tm.apps {
		a.ends(mcrdma.ErrSenderLost)
	}
	if took := time.Since(begun); took < 9*time.Second || took > 12*time.Second {
		l.t.Errorf("given up after %v", took)
	}
	l.noGroups("after the grace")
}

func receiverGone(l *lab, cfg mcrdma.GroupConfig) {
	l.wait = leases // the application might come back
	tm := l.group(cfg, l.others()...)
	tm.write()
	gone := tm.apps[1]
	gone.h.crash()
	gone.kill()
	time.Sleep(time.Second)
	gone.h.start()
	tm.removed(gone)
	tm.write()
	tm.members(2)
	tm.close()
}

// diesMeanwhile: where hosts relay, the next formation waits for the daemon, as the next view does where switches copy.
func diesMeanwhile(l *lab, cfg mcrdma.GroupConfig) {
	cfg.MinSize = 1
	tm := l.group(cfg, l.others()...)
	tm.write()
	away := tm.apps[0].h
	away.crash()
	time.Sleep(time.Second)
	dead := tm.apps[1]
	dead.kill()
	l.wg.Go(func() {
		time.Sleep(3 * time.Second)
		away.start()
	})
	l.must(tm.tryWrite(l.t.Context()))
	tm.removed(dead)
	tm.write()
	tm.members(2)
	tm.close()
}

// diesWaitedFor: the formation that waits for a daemon goes on without its application.
func diesWaitedFor(l *lab, cfg mcrdma.GroupConfig) {
	l.wait = leases // the application might come back
	cfg.MinSize = 1
	tm := l.group(cfg, l.others()...)
	tm.write()
	gone, dead := tm.apps[0], tm.apps[1]
	gone.h.crash()
	time.Sleep(time.Second)
	dead.kill()
	l.wg.Go(func() {
		time.Sleep(2 * time.Second)
		gone.kill()
		time.Sleep(2 * time.Second)
		gone.h.start()
	})
	l.must(tm.tryWrite(l.t.Context()))
	tm.without(gone)
	tm.without(dead)
	tm.write()
	tm.members(1)
	tm.close()
}

func createdMeanwhile(l *lab, cfg mcrdma.GroupConfig) {
	for _, h := range l.others() {
		h.receive()
	}
	tm := &team{l: l, sender: l.hosts[0].run()}
	l.hosts[0].stop()
	l.wg.Go(func() {
		time.Sleep(4 * time.Second)
		l.hosts[0].start()
	})
	var err error
	tm.g, err = tm.sender.client.Create(l.t.Context(), groupTo(cfg, l.others()...))
	l.must(err)
	for _, h := range l.others() {
		h.app.accept()
		tm.apps = append(tm.apps, h.app)
	}
	tm.write()
	tm.close()
}

func removedMeanwhile(l *lab, cfg mcrdma.GroupConfig) {
	tm := l.group(cfg, l.others()...)
	tm.write()
	tm.sender.h.crash()
	tm.apps[2].kill()
	time.Sleep(2 * time.Second)
	tm.sender.h.start()
	tm.removed(tm.apps[2])
	tm.write()
	tm.members(2)
	tm.close()
}

// stateInFiles: the production store, over several restarts.
func stateInFiles(l *lab, cfg mcrdma.GroupConfig) {
	for _, h := range l.hosts {
		h.stop()
		h.disk.path = filepath.Join(l.dir, h.name+".db")
		h.start()
	}
	time.Sleep(time.Second) // daemons connect again
	restarts(l, cfg, l.hosts...)
}

func agentsRestart(l *lab, cfg mcrdma.GroupConfig) {
	tm := l.group(cfg, l.others()...)
	for _, crash := range []bool{false, true} {
		for _, n := range l.switches {
			tm.write()
			if crash {
				n.crash()
			} else {
				n.stop()
			}
			tm.write()
			time.Sleep(3 * time.Second)
			n.start()
			n.ready()
			tm.write()
		}
		if i := tm.g.Info(); i.Formation != 1 && !crash { // neighbors take a crash for a dead link, and hosts relay meanwhile
			l.t.Errorf("formed anew: %+v", i)
		}
	}
	time.Sleep(40 * time.Second)
	tm.write()
	tm.members(3)
	tm.close()
}

func bothAgentsRestart(l *lab, cfg mcrdma.GroupConfig) {
	tm := l.group(cfg, l.others()...)
	tm.write() // without agents, hosts that have sent nothing do not find their gateways
	for _, n := range l.switches {
		n.crash()
	}
	tm.write()
	time.Sleep(3 * time.Second)
	for _, n := range l.switches {
		n.start()
	}
	time.Sleep(40 * time.Second)
	tm.write()
	tm.members(3)
	tm.close()
}

func closedWithoutAgent(l *lab, cfg mcrdma.GroupConfig) {
	l.wait = leases // another agent keeps branches until the next sync
	for _, n := range l.switches {
		tm := l.group(cfg, l.others()...)
		tm.write()
		n.crash()
		tm.close()
		for _, h := range l.hosts {
			h.app.close()
		}
		n.start()
		n.ready()
		l.noGroups("after the agent is back")
	}
}

func diesWithoutAgent(l *lab, cfg mcrdma.GroupConfig) {
	cfg.Transport = "tcp"
	tm := l.group(cfg, l.others()...)
	tm.write()
	l.switches[0].crash()
	stop := tm.keepWriting()
	tm.apps[2].kill()
	tm.removed(tm.apps[2])
	time.Sleep(2 * time.Second)
	l.switches[0].start()
	l.switches[0].ready()
	time.Sleep(40 * time.Second)
	stop()
	tm.same()
	tm.members(2)
	tm.close()
}

func everythingRestarts(l *lab, cfg mcrdma.GroupConfig) {
	tm := l.group(cfg, l.others()...)
	tm.write() // without agents, hosts that have sent nothing do not find their gateways
	for _, h := range l.hosts {
		h.crash()
	}
	for _, n := range l.switches {
		n.crash()
	}
	tm.write()
	time.Sleep(time.Second)
	for _, n := range l.switches {
		n.start()
	}
	for _, h := range l.hosts {
		h.start()
	}
	time.Sleep(40 * time.Second)
	tm.write()
	tm.members(3)
	tm.close()
}
