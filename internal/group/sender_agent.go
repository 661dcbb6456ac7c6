package group

import (
	"strings"
	"time"
)

// agent is the switch's agent's state of the present formation.
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
}

// plan is called when a group has just been formed. Each time the switches fail again, it waits
// longer, because re-forming a group takes time.
func (a *agent) plan(f *Formation, now time.Time) {
	if !f.Transient {
		a.wait, a.retryAt = 0, time.Time{}
		return
	}
	a.wait = min(max(2*a.wait, firstRetry), lastRetry)
	a.retryAt = now.Add(a.wait)
}

// settled returns the time from which a problem counts; zero: there is none.
func (a *agent) settled() time.Time {
	if a.since.IsZero() {
		return time.Time{}
	}
	return a.since.Add(SettleTime)
}

func (s *Sender) heard(problems []string, now time.Time) {
	a := &s.agent
	had := len(a.problems) > 0
	if a.problems = problems; len(problems) == 0 {
		a.since = time.Time{}
	} else if !had {
		a.since = now
	}
	s.draw()
}

// draw asks for the tree.
func (s *Sender) draw() {
	s.agent.drawAt = time.Time{}
	if !s.form.switched() {
		return
	}
	if a := &s.agent; a.drawing {
		a.again = true
	} else {
		a.drawing = true
		s.do(DrawTree{s.form})
	}
}

// stepAgent does the due work of the present formation.
func (s *Sender) stepAgent(now time.Time) {
	a := &s.agent
	if s.state != Active {
		return
	}
	if !a.drawAt.IsZero() && !now.Before(a.drawAt) {
		s.draw()
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
		if x, text := s.unreachable(); text != "" {
			s.breakUp(x, text)
		}
	}
}

// unreachable finds a receiver that the switches cannot reach.
func (s *Sender) unreachable() (Receiver, string) {
	for _, p := range s.agent.problems {
		for _, r := range s.form.Receivers {
			if strings.HasPrefix(p, r.Addr.String()+":") {
				return r, p
			}
		}
	}
	return Receiver{}, ""
}
