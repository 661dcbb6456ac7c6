package switchagent

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcrdma/mcrdma/internal/switchagent/config"
	"github.com/mcrdma/mcrdma/internal/testenv"
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

// TestMetricNames: rules and dashboards (contrib/monitoring) rely on these names.
func TestMetricNames(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLine(t, 1)
		l.startAll()
		testenv.MetricNames(t, "testdata/metrics.txt", l.nodes[0].agent.metrics.registry.Describe)
	})
}

// TestGroupMetrics: groups have series of their own, up to a number; what is beyond is told.
func TestGroupMetrics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLine(t, 1)
		l.startAll()
		for i := range uint32(maxMeasured + 2) {
			l.install(1, aGroup(hostAddr(1, 1), 0x800001+i, hostAddr(1, 2), hostAddr(1, 3)))
		}
		families, err := l.nodes[0].agent.metrics.registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		series, value := map[string]int{}, map[string]float64{}
		for _, f := range families {
			series[f.GetName()] = len(f.GetMetric())
			value[f.GetName()] = f.GetMetric()[0].GetGauge().GetValue()
		}
		for name, want := range map[string]int{"packets_total": maxMeasured, "bytes_total": maxMeasured, "answers_total": maxMeasured * 2 * 5, "behind_packets": 0} {
			if got := series["mcrdma_agent_group_"+name]; got != want {
				t.Errorf("%d series of %s, want %d", got, name, want)
			}
		}
		if got := value["mcrdma_agent_groups_unmeasured"]; got != 2 {
			t.Errorf("%v groups are not measured, want 2", got)
		}
	})
}
