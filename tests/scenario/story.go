package scenario

import (
	"flag"
	"regexp"
	"testing"
	"testing/synctest"

	"github.com/mcrdma/mcrdma/pkg/mcrdma"
)

var only = flag.String("scenario.only", "", "tell only the stories whose names match this expression")

// A story is a sequence of events in a lab; the judge follows it. It leaves all daemons and agents
// running. cfg is the configuration of groups, as far as it depends on the lab.
type story struct {
	name string
	tell func(l *lab, cfg mcrdma.GroupConfig)
}

// inVirtualTime makes a lab in a bubble.
func inVirtualTime(t *testing.T, switches bool, f func(l *lab)) {
	synctest.Test(t, func(t *testing.T) { f(newLab(t, switches)) })
}

// bySwitches runs stories in one lab with switches, one after another: creating the lab takes
// longer than most stories.
func bySwitches(t *testing.T, stories []story) {
	t.Run("switch", func(t *testing.T) {
		t.Parallel()
		inVirtualTime(t, true, func(l *lab) {
			for _, s := range stories {
				l.tell(s, mcrdma.GroupConfig{})
			}
		})
	})
}

// byHosts runs each story in its own lab, where hosts relay.
func byHosts(t *testing.T, stories []story) {
	for _, s := range stories {
		t.Run("relay/"+s.name, func(t *testing.T) {
			t.Parallel()
			inVirtualTime(t, false, func(l *lab) { l.tell(s, mcrdma.GroupConfig{}) })
		})
	}
}

// everywhere runs stories in both.
func everywhere(t *testing.T, stories []story) {
	bySwitches(t, stories)
	byHosts(t, stories)
}

func (l *lab) tell(s story, cfg mcrdma.GroupConfig) {
	if ok, err := regexp.MatchString(*only, s.name); err == nil && !ok {
		return
	}
	defer func() {
		if l.t.Failed() {
			l.t.Errorf("this was story %q", s.name)
		}
	}()
	l.wait = prompt
	s.tell(l, cfg)
	l.judge()
	if l.t.Failed() {
		l.t.FailNow() // the next story would begin with the remains of this one
	}
}

// path returns the path of groups here.
func (l *lab) path() mcrdma.Path {
	if len(l.switches) > 0 {
		return mcrdma.PathSwitch
	}
	return mcrdma.PathRelay
}
