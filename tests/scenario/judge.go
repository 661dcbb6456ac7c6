package scenario

import (
	"fmt"
	"strings"
	"time"

	"github.com/mcrdma/mcrdma/internal/switchagent/unicast"
	"github.com/mcrdma/mcrdma/internal/switchspec"
)

// How long the judge waits until nothing is left.
const (
	prompt = 5 * time.Second
	leases = 70 * time.Second // for stories in which a process cannot notify the others: leases and grace end first
)

// judge ends the applications, lets time pass, and checks that nothing of any group is left in a
// daemon, an agent, a switch or on a disk; and the same after a restart of all daemons and agents.
func (l *lab) judge() {
	l.t.Helper()
	for _, h := range l.hosts {
		if h.app != nil {
			h.app.close()
		}
	}
	l.nothingLeft("after all is closed", true)
	if l.t.Failed() {
		return
	}
	for _, h := range l.hosts {
		h.stop()
		h.start()
	}
	time.Sleep(time.Second) // they connect again
	l.nothingLeft("after a restart", true)
}

// noGroups checks that nothing is left of any group while applications continue.
func (l *lab) noGroups(when string) {
	l.t.Helper()
	l.nothingLeft(when, false)
}

// nothingLeft waits until nothing is left, for as long as the story allows.
func (l *lab) nothingLeft(when string, sessions bool) {
	l.t.Helper()
	begun := time.Now()
	for ; ; time.Sleep(time.Second) {
		left := l.left(sessions)
		if left == "" {
			return
		}
		if time.Since(begun) > l.wait {
			l.t.Errorf("%s, this is left after %v:\n%s", when, l.wait, left)
			return
		}
	}
}

// left returns what is left of groups, and of sessions if none should be left.
func (l *lab) left(sessions bool) string {
	var b strings.Builder
	for _, h := range l.hosts {
		if d, err := h.daemon(); err != nil {
			fmt.Fprintf(&b, "%s: %v\n", h.name, err)
		} else if sessions && len(d.GetSessions()) > 0 || d.GetGroups() > 0 || d.GetMemberships() > 0 {
			fmt.Fprintf(&b, "%s: %d groups, %d memberships, sessions: %v\n", h.name, d.GetGroups(), d.GetMemberships(), d.GetSessions())
		} else {
			for _, p := range d.GetPeers() {
				if p.GetShared() > 0 {
					fmt.Fprintf(&b, "%s: %s shares %d groups\n", h.name, p.GetHost(), p.GetShared())
				}
			}
		}
	}
	for _, n := range l.switches {
		s, err := n.status()
		if err != nil {
			fmt.Fprintf(&b, "%s: %v\n", n.name, err)
			continue
		}
		if s.GetGroups() > 0 || s.GetSteps() > 0 {
			fmt.Fprintf(&b, "%s: %d groups, %d steps\n", n.name, s.GetGroups(), s.GetSteps())
		}
		for _, p := range s.GetPeers() {
			if p.GetBranches() > 0 || p.GetHeld() > 0 {
				fmt.Fprintf(&b, "%s: %d branches at %s, %d for it\n", n.name, p.GetBranches(), p.GetName(), p.GetHeld())
			}
		}
		for _, e := range ofGroups(n.state()) {
			fmt.Fprintf(&b, "%s: in the switch: %s\n", n.name, e)
		}
	}
	for i, d := range l.disks() {
		if n := d.len(); n != l.clean[i] {
			fmt.Fprintf(&b, "disk %d: %d records, and there were %d\n", i, n, l.clean[i])
		}
	}
	return b.String()
}

// ofGroups returns a switch's entries for groups.
func ofGroups(s *switchspec.State) (list []string) {
	for e := range s.All() {
		switch e := e.(type) {
		case switchspec.PREGroup:
			if e.ID == unicast.FloodGroup {
				continue
			}
		case switchspec.Replica, switchspec.Region, switchspec.Match, switchspec.MergeGroup, switchspec.MergeMember, switchspec.Bypass:
		default:
			continue
		}
		list = append(list, fmt.Sprintf("%T %v", e, e))
	}
	return list
}
