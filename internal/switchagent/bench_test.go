package switchagent

import (
	"context"
	"net/netip"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/internal/switchagent/config"
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
	a.mu.Lock()
	defer a.mu.Unlock()
	n := 0
	for _, s := range a.steps {
		if len(s.installation.rules.PREGroups) == ways {
			n++
		}
	}
	return n
}
