package switchagent

import (
	"testing"
	"testing/synctest"

	"github.com/mcrdma/mcrdma/internal/switchagent/config"
	"github.com/mcrdma/mcrdma/internal/switchspec"
)

// All ports mark as configured, and stop once the configuration is removed.
func TestECN(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLine(t, 1)
		marking := func() (list []switchspec.ECNPort) {
			for e := range switchspec.Of[switchspec.ECNPort](l.state(1)) {
				list = append(list, e)
			}
			return list
		}
		for _, c := range []struct {
			ecn        config.ECN
			ports      int
			kmin, kmax uint32
			pmax       uint16
		}{
			{config.ECN{}, hostsEach, 45, 454, 655}, // packets of 1100 bytes
			{config.ECN{KMin: 20_000, KMax: 80_000, PMax: 0.1, Unit: 64}, hostsEach, 312, 1250, 6554},
			{config.ECN{KMin: 1, KMax: 1, PMax: 1}, hostsEach, 0, 0, 65535},
			{config.ECN{Off: true, KMin: 20}, 0, 0, 0, 0},
			{config.ECN{Unit: 64}, hostsEach, 781, 7812, 655},
		} {
			l.start(1, func(conf *config.Config, _ *Options) { conf.ECN = c.ecn })
			list := marking()
			if len(list) != c.ports {
				t.Errorf("%+v: %d ports mark, want %d", c.ecn, len(list), c.ports)
			}
			for _, p := range list {
				if p.KMin != c.kmin || p.KMax != c.kmax || p.PMax != c.pmax {
					t.Errorf("%+v: %v", c.ecn, p)
				}
			}
			l.nodes[0].kill()
		}
	})
}

func TestECNUnits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for p, want := range map[float64]uint16{1e-9: 1, 0.1: 6554, 0.5: 32768, 1: 65535} {
			if got := ecnPort(config.ECN{PMax: p, Unit: 64}); got.PMax != want {
				t.Errorf("probability %v is %d, want %d", p, got.PMax, want)
			}
		}
	})
}
