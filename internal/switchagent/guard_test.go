package switchagent

import (
	"testing"
	"testing/synctest"

	"github.com/mcrdma/mcrdma/internal/switchagent/config"
	"github.com/mcrdma/mcrdma/internal/switchspec"
)

// With the guard, all ports with hosts let only the configured hosts send, each at its
// own; without it, any host.
func TestGuard(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLine(t, 1)
		for _, guard := range []bool{true, false} {
			var hosts []config.Host
			var ports int
			l.start(1, func(c *config.Config, _ *Options) {
				c.Guard = guard
				hosts, ports = c.Hosts, len(c.Ports)
			})
			if len(hosts) == 0 {
				t.Fatal("no hosts are configured")
			}
			var guarded, known int
			for range switchspec.Of[switchspec.GuardedPort](l.state(1)) {
				guarded++
			}
			for h := range switchspec.Of[switchspec.PortHost](l.state(1)) {
				known++
				if want := hosts[known-1]; h != (switchspec.PortHost{Port: want.Port, Addr: want.Address, MAC: want.MAC}) {
					t.Errorf("%v, want %v", h, want)
				}
			}
			wantPorts, wantHosts := ports, len(hosts)
			if !guard {
				wantPorts, wantHosts = 0, 0
			}
			if guarded != wantPorts || known != wantHosts {
				t.Errorf("guard %t: %d guarded ports and %d hosts, want %d and %d", guard, guarded, known, wantPorts, wantHosts)
			}
			l.nodes[0].kill()
		}
	})
}
