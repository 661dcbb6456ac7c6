package switchagent

import (
	"context"
	"fmt"
	"net/netip"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	p4 "github.com/p4lang/p4runtime/go/p4/v1"
	"google.golang.org/grpc"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/internal/routing"
	"github.com/mcrdma/mcrdma/internal/routing/static"
	"github.com/mcrdma/mcrdma/internal/switchagent/config"
	"github.com/mcrdma/mcrdma/internal/switchagent/unicast"
)

// BenchmarkInstall installs and removes a group over three switches, each of which
// copies: the agents are warm, gRPC, P4Runtime and the states on disk are real.
func BenchmarkInstall(b *testing.B) {
	l := newLine(b, 3)
	l.startAll()
	c := l.groups(1)
	var installs, removes []time.Duration
	id := uint32(0x800000)
	once := func() {
		id++
		g := aGroup(hostAddr(1, 1), id, hostAddr(1, 2), hostAddr(2, 1), hostAddr(3, 1), hostAddr(3, 2))
		begun := time.Now()
		if _, err := c.Install(b.Context(), &mcrdmav1.InstallRequest{Group: g}); err != nil {
			b.Fatal(err)
		}
		installs = append(installs, time.Since(begun))
		begun = time.Now()
		if _, err := c.Remove(b.Context(), &mcrdmav1.RemoveRequest{Key: g.Key}); err != nil {
			b.Fatal(err)
		}
		removes = append(removes, time.Since(begun))
	}
	for range 20 {
		once()
	}
	installs, removes = nil, nil
	b.ReportAllocs()
	for b.Loop() {
		once()
	}
	quantiles(b, installs, "install")
	quantiles(b, removes, "remove")
}

func quantiles(b *testing.B, d []time.Duration, what string) {
	slices.Sort(d)
	ms := func(q float64) float64 {
		return float64(d[min(len(d)-1, int(q*float64(len(d))))].Microseconds()) / 1000
	}
	b.ReportMetric(ms(0.5), what+"-p50-ms")
	b.ReportMetric(ms(0.99), what+"-p99-ms")
}

// many installs n groups of three receivers at one switch, from width clients side
// by side.
func many(b *testing.B, l *line, n, width int, receivers ...netip.Addr) time.Duration {
	c := l.groups(1)
	var next atomic.Int64
	var wg sync.WaitGroup
	begun := time.Now()
	for range width {
		wg.Go(func() {
			for {
				i := int(next.Add(1))
				if i > n {
					return
				}
				g := aGroup(hostAddr(1, 1+i%4), uint32(0x800000+i), receivers...)
				for _, r := range g.Receivers {
					r.Regions = r.Regions[:1]
				}
				if _, err := c.Install(context.Background(), &mcrdmav1.InstallRequest{Group: g}); err != nil {
					b.Errorf("group %d: %v", i, err)
					return
				}
			}
		})
	}
	wg.Wait()
	return time.Since(begun)
}

// BenchmarkManyGroups installs 10,000 groups of three at one agent.
func BenchmarkManyGroups(b *testing.B) {
	const groups = 10_000
	for b.Loop() {
		b.StopTimer()
		l := newLine(b, 1)
		l.start(1, func(c *config.Config, _ *Options) { c.Limits.GroupsPerSource = groups })
		b.StartTimer()
		d := many(b, l, groups, 256, hostAddr(1, 5), hostAddr(1, 6), hostAddr(1, 7))
		b.StopTimer()
		b.ReportMetric(groups/d.Seconds(), "groups/s")
		full := heap()
		l.nodes[0].kill()
		b.ReportMetric(float64(full-heap())/groups*1000/1e6, "agent-MB/1000-groups")
		l.close()
		l.nodes = nil
		b.StartTimer()
	}
}

func heap() uint64 {
	runtime.GC() // twice, for what finalizers and pools keep
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// BenchmarkRebifurcate switches 1,000 groups over after one route has changed: one of
// two links to the next switch goes down, or comes back.
func BenchmarkRebifurcate(b *testing.B) {
	const groups = 1000
	l := newLine(b, 2)
	l.startAll()
	many(b, l, groups, 256, hostAddr(1, 5), hostAddr(2, 1), hostAddr(2, 2))
	a := l.nodes[0].agent
	var took []time.Duration
	ways := 2
	for b.Loop() {
		ways = 3 - ways
		begun := time.Now()
		a.routes.link(103, "sw2", ways == 2)
		for turned(a, ways) != groups {
			time.Sleep(time.Millisecond)
		}
		took = append(took, time.Since(begun))
	}
	quantiles(b, took, "turn")
}

// turned counts the steps that use so many of the equal ways.
func turned(a *Agent, ways int) int {
	n := 0
	for _, s := range a.table.Steps() {
		if len(s.Installation.Rules.PREGroups) == ways {
			n++
		}
	}
	return n
}

// writes counts the updates that an agent writes to its switch.
type writes struct {
	updates atomic.Int64
	done    chan int // how many there were in each Write; not read if full
}

func (w *writes) option() grpc.DialOption {
	return grpc.WithChainUnaryInterceptor(func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		err := invoke(ctx, method, req, reply, cc, opts...)
		if r, ok := req.(*p4.WriteRequest); ok {
			w.updates.Add(int64(len(r.Updates)))
			select {
			case w.done <- len(r.Updates):
			default:
			}
		}
		return err
	})
}

// routed starts a line whose first switch has so many routes besides those of the topology.
func routed(t testing.TB, n int) (*line, *writes) {
	l, w := newLine(t, 2), &writes{done: make(chan int, 1)}
	l.start(1, func(_ *config.Config, o *Options) { o.DialSwitch = append(o.DialSwitch, w.option()) })
	var d routing.Delta
	for i := range n {
		d.Routes = append(d.Routes, aRoute(i, 1+i%3))
	}
	a := l.nodes[0].agent
	a.routes.Source.(*static.Source).Apply(d)
	eventually(t, "the routes are on the switch", func() (all bool) {
		a.uni.with(func(t *unicast.Table) { all = len(t.RouteList()) > n && len(t.Changes()) == 0 })
		return all
	})
	return l, w
}

// aRoute leads by the first link to sw2, the second, or both.
func aRoute(i, links int) routing.Route {
	var hops []routing.NextHop
	for bit, port := range []string{"101", "103"} {
		if links&(1<<bit) != 0 {
			hops = append(hops, routing.NextHop{Addr: netip.MustParseAddr("10.255.0.2"), Port: port})
		}
	}
	return routing.Route{Prefix: netip.PrefixFrom(netip.AddrFrom4([4]byte{20, byte(i >> 8), byte(i), 0}), 24), Hops: routing.NewHops(hops...)}
}

// BenchmarkRouteChange is one route that changes, from the routing source to the switch.
func BenchmarkRouteChange(b *testing.B) {
	for _, n := range []int{100, 10_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			l, w := routed(b, n)
			source := l.nodes[0].agent.routes.Source.(*static.Source)
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				select {
				case <-w.done:
				default:
				}
				i++
				source.Apply(routing.Delta{Routes: []routing.Route{aRoute(0, 1+i%3)}})
				<-w.done
			}
		})
	}
}

// TestRouteChangeIsADelta: what a route's change writes, and the memory that it takes,
// does not depend on how many routes there are.
func TestRouteChangeIsADelta(t *testing.T) {
	const routes, changes = 5000, 60
	synctest.Test(t, func(t *testing.T) {
		l, w := routed(t, routes)
		source := l.nodes[0].agent.routes.Source.(*static.Source)
		synctest.Wait()
		written := w.updates.Load()
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		for i := range changes {
			source.Apply(routing.Delta{Routes: []routing.Route{aRoute(0, 1+(i+1)%3)}})
			synctest.Wait()
		}
		runtime.ReadMemStats(&after)
		if n := w.updates.Load() - written; n != changes {
			t.Errorf("%d changes of a route are %d updates of the switch", changes, n)
		}
		if each := (after.TotalAlloc - before.TotalAlloc) / changes; each > 32*routes {
			t.Errorf("a change of a route takes %d bytes: the whole table is gone through", each)
		}
	})
}
