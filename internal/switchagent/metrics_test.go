package switchagent

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcrdma/mcrdma/internal/switchagent/config"
)

// TestPortMetrics: of each port with a watched link it is told whether the link works.
func TestPortMetrics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLine(t, 2)
		a, err := l.second(1, func(c *config.Config, _ *Options) {
			c.Hello = config.Hello{Interval: 50 * time.Millisecond, Multiplier: 3}
			for i := range c.Ports {
				c.Ports[i].Hello = c.Ports[i].To != ""
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		defer l.running(a)()
		synctest.Wait()
		families, err := a.metrics.registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		got := map[string]float64{}
		for _, f := range families {
			if f.GetName() == "mcrdma_agent_port_up" {
				for _, m := range f.GetMetric() {
					got[fmt.Sprint(m.GetLabel()[0].GetValue(), m.GetLabel()[1].GetValue())] = m.GetGauge().GetValue()
				}
			}
		}
		if len(got) == 0 {
			t.Error("no port is told")
		}
		for port, up := range got {
			if up != 0 { // no agent is at the other end of this one's hellos
				t.Errorf("%s is up", port)
			}
		}
	})
}
