package switchagent

import (
	"context"
	"net/netip"
	"sync/atomic"
	"testing"
	"testing/synctest"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/internal/routing"
	"github.com/mcrdma/mcrdma/internal/switchagent/config"
	"github.com/mcrdma/mcrdma/internal/switchagent/unicast"
	"github.com/mcrdma/mcrdma/internal/switchspec"
)

// TestRoutesWaitForSwitches: routes change one after the other, each while another
// switch learns of the packets that will reach it by the previous one. None is on
// this switch before the other one knows its group.
func TestRoutesWaitForSwitches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const routes, port = 8, 104
		l := newLine(t, 3)
		l.fake(2)
		next := l.fake(3)
		l.start(1, func(c *config.Config, _ *Options) {
			c.Ports = append(c.Ports, config.Port{Port: port, To: "sw3", PeerMAC: switchspec.MAC{2, 0, 0, 0, 3, 0}})
		})
		a := l.nodes[0].agent
		host := func(i, n int) netip.Addr { return hostAddr(2, 10*i+n) }
		turn := func(i int) {
			var d routing.Delta
			for n := range 2 {
				d.Routes = append(d.Routes, routing.Route{Prefix: netip.PrefixFrom(host(i, n), 32),
					Hops: routing.NewHops(routing.NextHop{Addr: netip.MustParseAddr("10.255.0.3"), Port: "104"})})
			}
			a.change(func(t *unicast.Table) { t.Routes(d) })
		}
		onSwitch := func(i int) bool {
			s := l.state(1)
			r, ok := s.Find(switchspec.Route{Dst: netip.PrefixFrom(host(i, 0), 32)}.Key())
			if !ok {
				return false
			}
			h, ok := s.Find(switchspec.NextHop{ID: r.(switchspec.Route).Number}.Key())
			return ok && h.(switchspec.NextHop).Port == port
		}
		var known [routes]atomic.Bool
		told := make(chan int, routes)
		next.onHold(func(_ context.Context, r *mcrdmav1.HoldRequest) error {
			i := int(r.Group.McId) - 1
			if known[i].Swap(true) {
				return nil
			}
			if onSwitch(i) {
				t.Errorf("route %d is on the switch before sw3 knows of its group", i)
			}
			if i+1 < routes {
				turn(i + 1)
			}
			told <- i
			return nil
		})
		for i := range routes {
			l.install(1, aGroup(hostAddr(1, 1), uint32(i+1), host(i, 0), host(i, 1)))
		}
		turn(0)
		for want := range routes {
			if i := <-told; i != want {
				t.Fatalf("sw3 is asked to hold group %d, want %d", i, want)
			}
			eventually(t, "the route is on the switch", func() bool { return onSwitch(want) })
		}
	})
}
