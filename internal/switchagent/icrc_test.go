package switchagent

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/internal/switchagent/config"
	"github.com/mcrdma/mcrdma/internal/switchspec"
)

// still is a group whose members take copies with any identification, and have their memory where
// the sender's packets address it.
func still(g *mcrdmav1.Group) *mcrdmav1.Group {
	for _, r := range g.Receivers {
		r.SeesIdentification = true
		for _, m := range r.Regions {
			m.ReceiverVa = m.Va
		}
	}
	return g
}

// copies is what becomes of copies at switch i: of each replica and region, with "+" if a
// constant keeps the ICRC, and "0" if it is computed anew.
func (l *line) copies(i int) string {
	var out []string
	sign := map[bool]string{true: "+", false: "0"}
	for e := range l.state(i).All() {
		switch e := e.(type) {
		case switchspec.Replica:
			kind := "branch"
			if e.Last {
				kind = "last"
			}
			out = append(out, fmt.Sprintf("%s %v %s", kind, e.Dst, sign[e.Neutral != 0]))
		case switchspec.Region:
			out = append(out, "region "+sign[e.Neutral != 0])
		}
	}
	return strings.Join(out, "; ")
}

// recomputes is what the agent of switch i says of the steps in which it computes the ICRC anew.
func (l *line) recomputes(i int) string {
	l.t.Helper()
	res, err := mcrdmav1.NewSwitchStatusClient(l.conn(i)).ListSteps(l.t.Context(), &mcrdmav1.ListStepsRequest{})
	if err != nil {
		l.t.Fatal(err)
	}
	var out []string
	for _, s := range res.Steps {
		out = append(out, s.Recomputes)
	}
	return strings.Join(out, "; ")
}

// TestICRCModes: constants are there where the mode wants them and the members allow it; where not,
// the agent says why, or refuses the group.
func TestICRCModes(t *testing.T) {
	here, far := hostAddr(1, 2), hostAddr(2, 1)
	group := func() *mcrdmav1.Group { return still(aGroup(hostAddr(1, 1), 0x800001, here, far)) }
	blind, moved := group(), group()
	blind.Receivers[1].SeesIdentification = false
	moved.Receivers[1].Regions[0].ReceiverVa++
	const kept = "last 10.1.0.12 +; branch 10.2.0.11 +; branch 10.2.0.11 +; region +; region +"
	const anew = "last 10.1.0.12 0; last 10.2.0.11 0; last 10.2.0.11 0; region 0; region 0; region 0; region 0; region 0; region 0"
	for name, c := range map[string]struct {
		mode        string
		group       *mcrdmav1.Group
		first, next string // copies
		why         string
		refused     string
	}{
		"auto":           {config.ICRCAuto, group(), kept, "last 10.2.0.11 +; region +; region +", "", ""},
		"auto, blind":    {config.ICRCAuto, blind, anew, "", "the device of 10.2.0.11 does not see the IPv4 identification", ""},
		"auto, moved":    {config.ICRCAuto, moved, kept, "last 10.2.0.11 +; region +; region 0", "memory of 10.2.0.11 is not registered at the address that the sender's packets carry", ""},
		"neutral":        {config.ICRCNeutral, group(), kept, "last 10.2.0.11 +; region +; region +", "", ""},
		"neutral, blind": {config.ICRCNeutral, blind, "", "", "", "the switch cannot compute ICRCs (icrc: neutral), and the device of 10.2.0.11 does not see the IPv4 identification"},
		"recompute":      {config.ICRCRecompute, group(), anew, "", "", ""},
		"nic-check-off":  {config.ICRCOff, group(), anew, "", "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newLine(t, 2)
				for i := range l.nodes {
					l.start(i+1, func(cfg *config.Config, _ *Options) { cfg.ICRC = c.mode })
				}
				if e, _ := l.state(1).Find(switchspec.Settings{}.Key()); e.(switchspec.Settings).ICRC != icrcModes[c.mode] {
					t.Errorf("%v", e)
				}
				_, err := l.groups(1).Install(t.Context(), &mcrdmav1.InstallRequest{Group: c.group})
				if c.refused != "" {
					if err == nil || !strings.Contains(err.Error(), c.refused) {
						t.Errorf("refused: %v", err)
					}
					l.noLeftovers()
					return
				}
				if err != nil {
					t.Fatal(err)
				}
				if got := l.copies(1); got != c.first {
					t.Errorf("the first switch has\n%s\nwant\n%s", got, c.first)
				}
				if got := l.copies(2); got != c.next {
					t.Errorf("the next switch has\n%s\nwant\n%s", got, c.next)
				}
				if got := l.recomputes(1); got != c.why {
					t.Errorf("the agent says %q", got)
				}
				before := l.raw()
				l.nodes[0].kill()
				l.start(1, func(cfg *config.Config, _ *Options) { cfg.ICRC = c.mode })
				if after := l.raw(); after != before {
					t.Errorf("before a restart:\n%s\nafter:\n%s", before, after)
				}
				l.remove(1, c.group)
				l.noLeftovers()
			})
		})
	}
}

// TestICRCLastSwitchAway: where the agent of a receiver's last switch does not answer, the copy is
// rewritten before, as it would be in mode recompute: the group does not need that agent.
func TestICRCLastSwitchAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLine(t, 3)
		l.start(1)
		l.start(2)
		g := still(aGroup(hostAddr(1, 1), 0x800001, hostAddr(1, 2), hostAddr(3, 1)))
		l.install(1, g)
		if got := l.copies(1); strings.Contains(got, "last 10.3.0.11") || !strings.Contains(got, "branch 10.3.0.11 +") {
			t.Errorf("the first switch has %s", got)
		}
		if got := l.copies(2); !strings.HasPrefix(got, "last 10.3.0.11 +") {
			t.Errorf("the second switch has %s", got)
		}
		l.remove(1, g)
		l.start(3)
		l.install(1, g)
		if got := l.copies(2); got != "" {
			t.Errorf("the second switch has %s", got)
		}
		if got := l.copies(3); !strings.HasPrefix(got, "last 10.3.0.11 +") {
			t.Errorf("the third switch has %s", got)
		}
		l.remove(1, g)
		l.noLeftovers()
	})
}
