package switchagent

import (
	"testing"

	"github.com/mcrdma/mcrdma/internal/switchagent/config"
	"github.com/mcrdma/mcrdma/internal/switchspec"
)

// All ports mark as is configured, and no longer once it is not.
func TestECN(t *testing.T) {
	l := newLine(t, 1)
	marking := func() (list []switchspec.ECNPort) {
		for e := range switchspec.Of[switchspec.ECNPort](l.state(1)) {
			list = append(list, e)
		}
		return list
	}
	for _, e := range []config.ECN{{KMin: 20, KMax: 80, PMax: 0.1}, {KMin: 5, KMax: 5, PMax: 1}, {}} {
		l.start(1, func(c *config.Config, _ *Options) { c.ECN = e })
		want := 0
		if e.KMax > 0 {
			want = hostsEach
		}
		list := marking()
		if len(list) != want {
			t.Errorf("%v: %d ports mark, want %d", e, len(list), want)
		}
		for _, p := range list {
			if p.KMin != e.KMin || p.KMax != e.KMax {
				t.Errorf("%v: %v", e, p)
			}
		}
		l.nodes[0].kill()
	}
}

func TestECNUnits(t *testing.T) {
	for p, want := range map[float64]uint16{1e-9: 1, 0.1: 6554, 0.5: 32768, 1: 65535} {
		if got := ecnPort(config.ECN{PMax: p}); got.PMax != want {
			t.Errorf("probability %v is %d, want %d", p, got.PMax, want)
		}
	}
}
