package connmgr

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/internal/connmgr/config"
)

// BenchmarkCreate makes groups of three receivers over loopback, with mutual TLS and
// an agent, and closes them. It reports how long each phase took at the 99th percentile.
func BenchmarkCreate(b *testing.B) {
	for _, durable := range []bool{false, true} {
		b.Run(fmt.Sprintf("durable=%v", durable), func(b *testing.B) {
			r := newRig(b, 0, onSockets, withTLS, withSwitch)
			r.add(4)
			for i := 1; i <= 4; i++ {
				r.start(i, func(_ *config.Config, o *Options) {
					if o.Logger = nil; durable {
						o.OpenStore = nil
					}
				})
			}
			r.receivers()
			a := r.host(1).app("")
			a.closeGroup(a.create(a.request()).GetFormation().GetGroup())
			phases := map[string][]time.Duration{}
			var order []string
			b.ReportAllocs()
			for b.Loop() {
				f := a.create(a.request()).GetFormation()
				if f.GetPath() != mcrdmav1.Path_PATH_SWITCH {
					b.Fatal(f)
				}
				for _, s := range f.GetPhases() {
					if !slices.Contains(order, s.GetPhase()) {
						order = append(order, s.GetPhase())
					}
					phases[s.GetPhase()] = append(phases[s.GetPhase()], s.GetTook().AsDuration())
				}
				a.closeGroup(f.GetGroup())
			}
			for _, s := range order {
				slices.Sort(phases[s])
				n := len(phases[s])
				for _, p := range []int{50, 99} {
					took := phases[s][min(n*p/100, n-1)]
					b.ReportMetric(float64(took.Microseconds())/1000, fmt.Sprintf("ms/%s-p%d", strings.ToLower(s), p))
				}
			}
		})
	}
}
