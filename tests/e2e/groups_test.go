package e2e

import (
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/mcrdma/mcrdma/pkg/rocev2"
	"github.com/mcrdma/mcrdma/tests/e2e/lab"
	"github.com/mcrdma/mcrdma/tests/e2e/orders"
)

var (
	allKinds   = []string{"write", "writeimm", "send", "sendimm"}
	smallSizes = []int{1, 2, 3, 4, 5, 255, 1024, 4095, 4096, 4097, 20_000, 65_536}
	mib        = 1 << 20
	small      = orders.ListenArgs{Service: "small", Receives: 512, ReceiveSize: 65_536}
	large      = orders.ListenArgs{Service: "large", Receives: 6, ReceiveSize: 16 << 20}
)

// attempts limits how often to repeat a measurement that other load may disturb, such as the number
// of retransmitted packets.
const attempts = 3

// One sender, three receivers in two racks: the replicas are equal, the sender's uplink carries
// each byte once, and an operation is one post and one completion.
func TestNamespaceGroups(t *testing.T) {
	neutral := lab.Switch{Agent: "icrc: neutral\n"} // groups that would need recomputed ICRCs are refused
	l := startLab(t, lab.Spec{BGP: true, Switches: map[string]lab.Switch{"torA": neutral, "spine": neutral, "torB": neutral}})
	dial(t, l.Hosts...)
	h1 := l.Host("h1")
	to := others(l, h1)
	listen(t, small, to...)
	listen(t, large, to...)
	m := gather(t, h1, to, orders.CreateArgs{Name: "small", Service: "small", Mode: "require", Regions: []uint64{100_000, 1 << 20}}).on(t, "switch")
	t.Logf("made in %v: %v; %q; tree:", m.info.Took, m.info.Phases, m.info.Why)
	for _, line := range m.info.Tree {
		t.Log(line)
	}
	for _, depth := range []int{1, 2, 16, 64} {
		m.measured(t, orders.WorkArgs{Kinds: allKinds, Sizes: smallSizes, Count: 480, Depth: depth, Seed: uint64(depth), Pieces: 1 + depth%5})
	}
	m.close(t)
	m = gather(t, h1, to, orders.CreateArgs{Name: "large", Service: "large", Mode: "require", Regions: []uint64{17 << 20}}).on(t, "switch")
	m.measured(t, orders.WorkArgs{Kinds: []string{"write"}, Sizes: []int{mib}, Count: l.Share(64), Depth: 64, Seed: 3})
	// Packets are copied as late as possible: the spine's link to torB carries one copy.
	args := orders.WorkArgs{Kinds: []string{"write"}, Sizes: []int{mib}, Count: l.Share(16), Depth: 4, Seed: 5}
	flows, _ := tapAt(t, func() (*lab.Tap, error) { return l.Switch("spine").Tap(2) }, func() { m.work(t, args) })
	want, _ := wireBytes(args, m.info.MTU)
	if got := total(flows, to); got.Bytes < want.Bytes || got.Bytes > want.Bytes*3/2 {
		t.Errorf("the link between the racks carried %+v, want %+v", got, want)
	}
	m.measured(t, orders.WorkArgs{Kinds: allKinds, Sizes: []int{l.Share(16 << 20), 3*mib + 1}, Count: 8, Depth: 4, Seed: 4, Pieces: 3})
	m.close(t)
	nothingLeft(t, l, 3*time.Second)
}

// measured does work that is alone in the network, and checks its traffic.
func (m *team) measured(t *testing.T, args orders.WorkArgs) {
	t.Helper()
	for attempt := 1; ; attempt++ {
		err := m.measure(t, args)
		if err == nil {
			return
		}
		if attempt == attempts {
			t.Error(err)
			return
		}
		t.Log(err)
	}
}

func (m *team) measure(t *testing.T, args orders.WorkArgs) error {
	t.Helper()
	before := ask[orders.GroupInfo](t, m.from, orders.Info, orders.Name{Name: m.name})
	var res orders.WorkResult
	flows, _ := tap(t, m.from, func() { res = m.work(t, args) })
	after := ask[orders.GroupInfo](t, m.from, orders.Info, orders.Name{Name: m.name})
	want, payload := wireBytes(args, m.info.MTU)
	group := flows[lab.TapFlow{To: netip.MustParseAddr(m.info.Members[0]), QPN: rocev2.QPN(m.info.MCID)}]
	all := total(flows, m.to)
	posts, completions := after.Posts-before.Posts, after.Completions-before.Completions
	ratio := float64(all.Bytes) / float64(want.Bytes)
	t.Logf("%s: %d operations of %v at depth %d, %d bytes, in %v (%.0f MB/s; p50 %v, p99 %v): uplink %.4f of one copy with its headers, %d frames (once: %d); %.2f posts and %.2f completions each",
		m.name, res.Done, args.Kinds, args.Depth, payload, res.Took.Round(time.Millisecond), float64(payload)/res.Took.Seconds()/1e6, res.P50, res.P99,
		ratio, all.Frames, want.Frames, float64(posts)/float64(res.Done), float64(completions)/float64(res.Done))
	if res.Done != args.Count || res.Bytes != payload || posts != uint64(args.Count) || completions != uint64(args.Count) {
		t.Errorf("%d operations of %d were done, %d bytes of %d, with %d posts and %d completions", res.Done, args.Count, res.Bytes, payload, posts, completions)
	}
	if ratio < 1 || group != all {
		t.Errorf("the uplink carried %+v, of that %+v for the group, want %+v", all, group, want)
	}
	if ratio > 1.03 {
		return fmt.Errorf("the uplink carried %+v, want %+v", all, want)
	}
	return nil
}

// The shortest test, so that "make test" has one, too.
func TestNamespaceSample(t *testing.T) {
	l := startSample(t, lab.Spec{})
	dial(t, l.Hosts...)
	to := others(l, l.Host("h1"))
	listen(t, small, to...)
	m := gather(t, l.Host("h1"), to, orders.CreateArgs{Name: "g", Service: "small", Mode: "require", Regions: []uint64{1 << 20}})
	m.work(t, orders.WorkArgs{Kinds: allKinds, Sizes: smallSizes, Count: 96, Depth: 8, Seed: 1})
	// Agents choose the mode of the ICRC that all devices here support.
	if copies, err := l.CopiesKeepICRC(t.Context()); copies != len(to) || err != nil {
		t.Errorf("the ICRC of copies for %d receivers is kept: %v", copies, err)
	}
	// The check finds existing groups, so it would find leftovers. The spine has no part in it.
	err := l.CheckLeftovers(t.Context(), 0)
	for _, who := range []string{"torA has left", "torB has left", "daemon of h1", "daemon of h4"} {
		if err == nil || !strings.Contains(err.Error(), who) {
			t.Errorf("while the group is there: nothing of %s in %v", who, err)
		}
	}
	m.close(t)
	nothingLeft(t, l, 5*time.Second)
}

// Several groups of several senders at the same time, and ordinary connections.
func TestNamespaceManyGroups(t *testing.T) {
	l := startLab(t, lab.Spec{})
	dial(t, l.Hosts...)
	listen(t, small, l.Hosts...)
	h := l.Hosts
	teams := []*team{
		gather(t, h[0], others(l, h[0]), orders.CreateArgs{Name: "a", Service: "small", Mode: "require", Regions: []uint64{1 << 20}}),
		gather(t, h[0], h[2:], orders.CreateArgs{Name: "b", Service: "small", Mode: "require", Regions: []uint64{1 << 20}}),
		gather(t, h[2], others(l, h[2]), orders.CreateArgs{Name: "c", Service: "small", Mode: "require", Regions: []uint64{1 << 20, 1 << 20}}),
		gather(t, h[3], h[:2], orders.CreateArgs{Name: "d", Service: "small", Regions: []uint64{1 << 20}}).on(t, "switch"),
		gather(t, h[1], h[:1], orders.CreateArgs{Name: "e", Service: "small", Regions: []uint64{1 << 20}}),
	}
	connect(t, "x", h[1], h[3], 1<<20, 4096)
	connect(t, "y", h[2], h[0], 1<<20, 1024)
	var wg sync.WaitGroup
	for i, m := range teams {
		wg.Go(func() {
			args := orders.WorkArgs{Kinds: allKinds, Sizes: smallSizes, Count: 400, Depth: 1 << i, Seed: uint64(i)}
			res, err := m.try(t.Context(), args)
			if err == nil {
				err = m.compare(t.Context(), res, m.to...)
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	for _, f := range []struct {
		name     string
		from, to *lab.HostNode
	}{{"x", h[1], h[3]}, {"y", h[2], h[0]}} {
		wg.Go(func() {
			sent, err := lab.Ask[orders.FlowResult](t.Context(), f.from.Member, orders.FlowRun, orders.FlowRunArgs{Name: f.name, Size: 50_000, Depth: 4, Count: 200})
			if err != nil {
				t.Error(err)
				return
			}
			if got, err := lab.Ask[string](t.Context(), f.to.Member, orders.FlowSum, orders.Name{Name: f.name}); err != nil || got != sent.Sum {
				t.Errorf("flow %s: other content, or %v", f.name, err)
			}
		})
	}
	wg.Wait()
	for _, m := range teams {
		m.close(t)
	}
	nothingLeft(t, l, 3*time.Second)
}

// Every link loses, reorders and duplicates packets.
func TestNamespaceLoss(t *testing.T) {
	for _, c := range []struct {
		imp   lab.Impairment
		count int
	}{
		{lab.Impairment{Loss: 0.001, Seed: 1}, 480},
		{lab.Impairment{Loss: 0.01, Seed: 2}, 240},
		{lab.Impairment{Loss: 0.05, Seed: 3}, 96},
		{lab.Impairment{Reorder: 0.02, Double: 0.01, Seed: 4}, 240},
	} {
		t.Run(fmt.Sprintf("loss=%v%%,reorder=%v%%", 100*c.imp.Loss, 100*c.imp.Reorder), func(t *testing.T) {
			spec := lab.Spec{Links: c.imp}
			if c.imp.Loss == 0.05 { // on four links, one of three requests or answers is lost
				spec.Daemon = "beat: {dead_after: 12s}\n"
			}
			l := startLab(t, spec)
			dial(t, l.Hosts...)
			to := others(l, l.Host("h1"))
			listen(t, small, to...)
			m := gather(t, l.Host("h1"), to, orders.CreateArgs{Name: "g", Service: "small", Mode: "require", Regions: []uint64{1 << 20}})
			var res orders.WorkResult
			args := orders.WorkArgs{Kinds: allKinds, Sizes: smallSizes, Count: c.count, Depth: 16, Seed: 1, Patience: 100_000}
			flows, _ := tap(t, m.from, func() { res = m.work(t, args) })
			want, payload := wireBytes(args, m.info.MTU)
			t.Logf("%d bytes in %v (p50 %v, p99 %v), uplink %.2f of one copy", payload, res.Took, res.P50, res.P99, float64(total(flows, to).Bytes)/float64(want.Bytes))
			info := ask[orders.GroupInfo](t, m.from, orders.Info, orders.Name{Name: "g"})
			events := ask[[]orders.Event](t, m.from, orders.Events, orders.Name{Name: "g"})
			// With that loss, all eight tries of a queue pair may fail; then the group is
			// re-formed, with all members.
			if info.Formation != 1 && c.imp.Loss < 0.05 || len(info.Members) != 3 {
				t.Errorf("the group did not survive as it was: %+v, events %+v", info, events)
			}
			m.close(t)
			nothingLeft(t, l, 10*time.Second)
		})
	}
}

// Copies made by the sender, on the same links.
func TestNamespaceFanOut(t *testing.T) {
	l := startLab(t, lab.Spec{})
	dial(t, l.Hosts...)
	h1 := l.Host("h1")
	to := others(l, h1)
	listen(t, large, to...)
	for _, transport := range []string{"rdma", "tcp"} {
		m := gather(t, h1, to, orders.CreateArgs{Name: "fan", Service: "large", Mode: "off", Algorithm: "sequential", Transport: transport, Regions: []uint64{4 << 20}}).on(t, "relay")
		for attempt := 1; ; attempt++ {
			ratio := m.fanOut(t, transport, l.Share(24))
			if ratio >= 2.97 && ratio <= 3.06 {
				break
			}
			if attempt == attempts {
				t.Errorf("by %s the uplink carried %.3f of one copy", transport, ratio)
				break
			}
		}
		m.close(t)
	}
	nothingLeft(t, l, 3*time.Second)
}

// fanOut returns what the uplink carries if the sender makes the copies, as a multiple of one copy.
func (m *team) fanOut(t *testing.T, transport string, count int) float64 {
	t.Helper()
	args := orders.WorkArgs{Kinds: []string{"write", "send"}, Sizes: []int{mib}, Count: count, Depth: 4, Seed: 1}
	var res orders.WorkResult
	flows, other := tap(t, m.from, func() { res = m.work(t, args) })
	carried := total(flows, m.to)
	if transport == "tcp" {
		carried = other // the host sends nothing else of this size
	}
	// The headers of TCP (options included) and of RoCEv2 differ little.
	once, payload := wireBytes(args, 4096)
	ratio := float64(carried.Bytes) / float64(once.Bytes)
	t.Logf("by %s: %d bytes in %v: uplink %.3f of one copy with its headers; %q", transport, payload, res.Took, ratio, m.info.Why)
	return ratio
}
