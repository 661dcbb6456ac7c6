package e2e

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/mcrdma/mcrdma/tests/e2e/lab"
	"github.com/mcrdma/mcrdma/tests/e2e/orders"
)

// The same application where the switches cannot copy: it runs and says why, and if it requires
// switches, the error says what is missing.
func TestNamespaceWithoutSwitches(t *testing.T) {
	for name, c := range map[string]struct {
		spec    lab.Spec
		prepare func(t *testing.T, l *lab.Lab)
		why     []string // any of these reasons is expected
	}{
		"no agent is configured": {
			spec: lab.Spec{Hosts: map[string]lab.Host{"h1": {NoSwitch: true}}},
			why:  []string{"no switch"},
		},
		"the agents are gone": {
			prepare: func(t *testing.T, l *lab.Lab) {
				for _, n := range l.Switches {
					n.Agent.Kill() // the switches continue with their routes
				}
			},
			why: []string{"torA"},
		},
		"the sender's switch is not programmable": {
			spec: lab.Spec{Switches: map[string]lab.Switch{"torA": {NotProgrammable: true}}},
			why:  []string{"torA"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			l := startLab(t, c.spec)
			dial(t, l.Hosts...)
			h1 := l.Host("h1")
			to := others(l, h1)
			listen(t, small, to...)
			if c.prepare != nil {
				c.prepare(t, l)
			}
			m := gather(t, h1, to, orders.CreateArgs{Name: "g", Service: "small", Regions: []uint64{1 << 20}}).on(t, "relay")
			t.Logf("in %v: %q", m.info.Took, m.info.Why)
			for _, w := range c.why {
				if !strings.Contains(strings.Join(m.info.Why, "\n"), w) {
					t.Errorf("the reasons %q don't say %q", m.info.Why, w)
				}
			}
			for _, depth := range []int{1, 16} {
				res := m.work(t, orders.WorkArgs{Kinds: allKinds, Sizes: smallSizes, Count: 240, Depth: depth, Seed: 1})
				t.Logf("depth %d: %d bytes in %v", depth, res.Bytes, res.Took)
			}
			m.close(t)

			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			err := h1.Member.Do(ctx, orders.Create, orders.CreateArgs{Name: "r", Service: "small", Receivers: addrs(to), Mode: "require", Regions: []uint64{1 << 20}}, nil)
			if !lab.Refused(err, "ErrNoSwitch") {
				t.Errorf("mode require: %v", err)
			}
			t.Logf("mode require: %v", err)
			for _, w := range c.why {
				if err == nil || !strings.Contains(err.Error(), w) {
					t.Errorf("the error does not say %q: %v", w, err)
				}
			}
			nothingLeft(t, l, 5*time.Second)
		})
	}
}
