package e2e

import (
	"context"
	"regexp"
	"strconv"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/mcrdma/mcrdma/tests/e2e/lab"
	"github.com/mcrdma/mcrdma/tests/e2e/orders"
)

// narrow is a lab whose spine is a bottleneck that marks packets.
func narrow() lab.Spec {
	return lab.Spec{Switches: map[string]lab.Switch{"spine": {Rate: "400mbit", Depth: 4000, Agent: "ecn: {kmin: 10, kmax: 200, pmax: 0.2}\n"}}}
}

// A share is what a flow got of the bottleneck, in bits a second.
type share struct {
	name string
	rate float64
}

// race runs all flows at once, and returns what each got.
func race(t *testing.T, flows map[string]func(ctx context.Context, d time.Duration) (bytes uint64, took time.Duration, err error), d time.Duration) []share {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var wg sync.WaitGroup
	var mu sync.Mutex
	var shares []share
	for name, f := range flows {
		wg.Go(func() {
			bytes, took, err := f(ctx, d)
			if err != nil {
				t.Errorf("%s: %v", name, err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			shares = append(shares, share{name, float64(bytes) * 8 / took.Seconds()})
		})
	}
	wg.Wait()
	return shares
}

// fair checks that each share is within 20 % of the mean.
func fair(t *testing.T, shares []share) {
	t.Helper()
	sum := 0.0
	for _, s := range shares {
		sum += s.rate
	}
	mean := sum / float64(len(shares))
	for _, s := range shares {
		t.Logf("%s: %.1f Mb/s, %+.0f %% of fair", s.name, s.rate/1e6, 100*(s.rate/mean-1))
		if s.rate < 0.8*mean || s.rate > 1.2*mean {
			t.Errorf("%s has %.1f Mb/s, and a fair share were %.1f", s.name, s.rate/1e6, mean/1e6)
		}
	}
	t.Logf("together %.1f Mb/s", sum/1e6)
}

var queueDrops = regexp.MustCompile(`queue_peak=(\d+) queue_drops=(\d+)`)

// queues reads the queues of a switch: the deepest, and how many packets were dropped.
func queues(t *testing.T, n *lab.SwitchNode) (peak, drops int) {
	t.Helper()
	before := len(queueDrops.FindAllString(n.Switch.Log(), -1))
	n.Switch.Signal(unix.SIGUSR1)
	eventually(t, "the switch logs its counters", 5*time.Second, func() bool {
		return len(queueDrops.FindAllString(n.Switch.Log(), -1)) >= before+2
	})
	for _, m := range queueDrops.FindAllStringSubmatch(n.Switch.Log(), -1) {
		p, _ := strconv.Atoi(m[1])
		d, _ := strconv.Atoi(m[2])
		peak, drops = max(peak, p), max(drops, d)
	}
	return peak, drops
}

// flow returns a function that has an ordinary connection at work for a while.
func flow(name string, from *lab.HostNode) func(ctx context.Context, d time.Duration) (uint64, time.Duration, error) {
	return func(ctx context.Context, d time.Duration) (uint64, time.Duration, error) {
		r, err := lab.Ask[orders.FlowResult](ctx, from.Member, orders.FlowRun, orders.FlowRunArgs{Name: name, Size: 64 << 10, Depth: 16, Millis: int(d.Milliseconds())})
		return r.Bytes, r.Took, err
	}
}

// flow is the same for a group.
func (m *team) flow(ctx context.Context, d time.Duration) (uint64, time.Duration, error) {
	r, err := m.try(ctx, orders.WorkArgs{Kinds: []string{"write"}, Sizes: []int{64 << 10}, Depth: 16, Millis: int(d.Milliseconds()), Seed: 1})
	return r.Bytes, r.Took, err
}

// retransmits adds up what hosts have sent again.
func retransmits(t *testing.T, hosts ...*lab.HostNode) (n uint64) {
	t.Helper()
	for _, h := range hosts {
		n += ask[map[string]uint64](t, h, orders.Counters, nil)["tx_retransmits"]
	}
	return n
}

type racers = map[string]func(ctx context.Context, d time.Duration) (uint64, time.Duration, error)

// Three ordinary connections: what the transport itself makes of a bottleneck.
func TestNamespaceUnicastCongestion(t *testing.T) {
	l := startLab(t, func() lab.Spec { s := narrow(); s.NoHosts = true; return s }())
	openDevices(t, l, "?rate=1gbit")
	h := l.Hosts
	connect(t, "a", h[0], h[2], 1<<20, 1024)
	connect(t, "b", h[1], h[3], 1<<20, 1024)
	connect(t, "c", h[0], h[3], 1<<20, 1024)
	flows := racers{"a": flow("a", h[0]), "b": flow("b", h[1]), "c": flow("c", h[0])}
	race(t, flows, 2*time.Second) // until it has settled
	fair(t, race(t, flows, 5*time.Second))
	peak, drops := queues(t, l.Switch("spine"))
	sent := retransmits(t, h...)
	t.Logf("queue of up to %d packets, %d dropped, %d sent again", peak, drops, sent)
	if drops != 0 || sent != 0 {
		t.Error("packets were lost")
	}
}

// Two groups and an ordinary connection share a bottleneck fairly, and nothing is lost.
func TestNamespaceCongestion(t *testing.T) {
	l := startLab(t, narrow())
	dial(t, l.Hosts...)
	h := l.Hosts
	listen(t, small, h...)
	far := h[2:]
	a := gather(t, h[0], far, orders.CreateArgs{Name: "a", Service: "small", Mode: "require", MTU: 1024, Regions: []uint64{1 << 20}})
	b := gather(t, h[1], far, orders.CreateArgs{Name: "b", Service: "small", Mode: "require", MTU: 1024, Regions: []uint64{1 << 20}})
	connect(t, "c", h[0], h[2], 1<<20, 1024)
	flows := racers{"group a": a.flow, "group b": b.flow, "unicast": flow("c", h[0])}
	race(t, flows, 2*time.Second)
	before := retransmits(t, h...)
	fair(t, race(t, flows, 5*time.Second))
	peak, drops := queues(t, l.Switch("spine"))
	again := retransmits(t, h...) - before
	t.Logf("queue of up to %d packets, %d dropped, %d sent again", peak, drops, again)
	if drops != 0 || again != 0 {
		t.Error("packets were lost")
	}
	a.close(t)
	b.close(t)
	nothingLeft(t, l, 5*time.Second)
}
