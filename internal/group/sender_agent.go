package group

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
)

// agent is what is known of the present formation from the switch's agent.
type agent struct {
	problems []string
	since    time.Time // of problems
	retryAt  time.Time // when to ask whether switches can copy; zero: never
	wait     time.Duration
	missed   bool      // the agent may lack it
	asking   bool      // AskMissing is under way
	drawing  bool      // DrawTree is under way
	again    bool      // and is to be done again
	drawAt   time.Time // when it is to be done since the tree is not known; zero: it is, or is being asked for
	route    bool      // a tree that has changed is news
}

// plan is called with a group that has just been formed. Each time the switches fail again, it
// waits longer: forming a group anew takes time.
func (a *agent) plan(f *Formation, now time.Time) {
	if !f.Transient {
		a.wait, a.retryAt = 0, time.Time{}
		return
	}
	a.wait = min(max(2*a.wait, firstRetry), lastRetry)
	a.retryAt = now.Add(a.wait)
}

// settled is when a problem is believed; zero: there is none.
func (a *agent) settled() time.Time {
	if a.since.IsZero() {
		return time.Time{}
	}
	return a.since.Add(SettleTime)
}

// News is what the agent says of a formation: its tree may have changed, and these are its
// problems. Of a formation that is being made, it is kept.
func (s *Sender) News(mcID uint32, problems []string, now time.Time) {
	if f := s.form; f != nil && f.switched() && f.MCID == mcID {
		s.heard(problems, now)
	} else if t := s.try; t != nil && t.f != nil && t.f.MCID == mcID {
		t.news = &problems
	}
	s.step(now)
}

func (s *Sender) heard(problems []string, now time.Time) {
	a := &s.agent
	had := len(a.problems) > 0
	if a.problems = problems; len(problems) == 0 {
		a.since = time.Time{}
	} else if !had {
		a.since = now
	}
	s.draw(true)
}

// draw asks for the tree.
func (s *Sender) draw(route bool) {
	s.agent.drawAt = time.Time{}
	if !s.form.switched() {
		return
	}
	if a := &s.agent; a.drawing {
		a.again = true
	} else {
		a.drawing, a.route = true, route
		s.do(DrawTree{s.form})
	}
}

// Drawn is the outcome of DrawTree. No lines: it is not known.
func (s *Sender) Drawn(of *Formation, lines, why []string, now time.Time) {
	a := &s.agent
	again, route := a.again || s.form != of, a.route
	a.drawing, a.again = false, false
	if s.end != nil {
		return
	}
	if s.form == of && len(lines) == 0 {
		a.drawAt = now.Add(firstRetry)
	}
	if f := s.form; f == of && len(lines) > 0 && !slices.Equal(lines, f.Tree) {
		drawn := *f
		drawn.Tree, drawn.Why = lines, why
		s.form = &drawn
		t := TellSender{Type: mcrdmav1.GroupChanged_TYPE_TREE, Tree: lines}
		if route && len(f.Tree) > 0 {
			t.Type, t.Text = mcrdmav1.GroupChanged_TYPE_ROUTE, "the way to the receivers has changed"
		}
		s.tell(t)
	}
	if again {
		s.draw(true)
	}
	s.step(now)
}

// Missing says that the agent lacks a formation. While that is being changed, the agent may
// lack it for a moment: so it is asked again. sure: that was done.
func (s *Sender) Missing(mcID uint32, missing, sure bool, now time.Time) {
	a := &s.agent
	if sure {
		a.asking = false
	}
	if s.end == nil && s.form != nil && s.form.MCID == mcID && s.form.switched() && missing {
		if sure && s.state == Active {
			s.breakUp(netip.Addr{}, fmt.Sprintf("switch %s does not have the group any longer", s.cfg.Switch))
		} else {
			a.missed = true
		}
	}
	s.step(now)
}

// Probed is the outcome of ProbeSwitch.
func (s *Sender) Probed(ready bool, now time.Time) {
	if ready && s.state == Active && s.form.Transient {
		s.breakUp(netip.Addr{}, fmt.Sprintf("switch %s is ready again", s.cfg.Switch))
	}
	s.step(now)
}

// stepAgent does what is due of the present formation.
func (s *Sender) stepAgent(now time.Time) {
	a := &s.agent
	if s.state != Active || s.end != nil {
		return
	}
	if !a.drawAt.IsZero() && !now.Before(a.drawAt) {
		s.draw(a.route)
	}
	if a.missed && !a.asking {
		a.missed, a.asking = false, true
		s.do(AskMissing{s.form.MCID})
	}
	if !a.retryAt.IsZero() && !now.Before(a.retryAt) {
		a.retryAt = now.Add(firstRetry)
		s.do(ProbeSwitch{})
	}
	if at := a.settled(); !at.IsZero() && !now.Before(at) {
		a.since = now // until the next look
		if addr, text := s.unreachable(); addr.IsValid() {
			s.breakUp(addr, text)
		}
	}
}

// unreachable finds a receiver that the switches cannot reach.
func (s *Sender) unreachable() (netip.Addr, string) {
	for _, p := range s.agent.problems {
		for _, r := range s.form.Receivers {
			if strings.HasPrefix(p, r.Addr.String()+":") {
				return r.Addr, p
			}
		}
	}
	return netip.Addr{}, ""
}
