package switchagent

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/internal/switchagent/config"
	"github.com/mcrdma/mcrdma/internal/switchagent/unicast"
	"github.com/mcrdma/mcrdma/internal/switchspec"
	"github.com/mcrdma/mcrdma/internal/testenv"
	"github.com/mcrdma/mcrdma/pkg/bifurcation"
)

// raw is all that a switch holds, numbers included.
func (l *line) raw() string {
	var b strings.Builder
	for i, n := range l.nodes {
		fmt.Fprintln(&b, n.name)
		for e := range l.state(i + 1).All() {
			fmt.Fprintln(&b, e)
		}
	}
	return b.String()
}

// A slowStream sends each message late, so that an agent has time to take a step of an election for its end.
type slowStream struct{ grpc.ClientStream }

func (s slowStream) SendMsg(m any) error {
	time.Sleep(10 * time.Millisecond)
	return s.ClientStream.SendMsg(m)
}

func slowly(ctx context.Context, d *grpc.StreamDesc, c *grpc.ClientConn, method string, open grpc.Streamer, o ...grpc.CallOption) (grpc.ClientStream, error) {
	s, err := open(ctx, d, c, method, o...)
	return slowStream{s}, err
}

// An agent that comes back finds the switch as it wants it: nothing is written.
func TestAgentRestartChangesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLine(t, 3)
		l.startAll()
		for i := range 20 {
			l.install(1, aGroup(hostAddr(1, 1), uint32(0x800001+i), hostAddr(1, 2), hostAddr(2, 1), hostAddr(3, 1), hostAddr(3, 2)))
			l.install(2, aGroup(hostAddr(2, 1), uint32(0x800001+i), hostAddr(1, 2), hostAddr(2, 3), hostAddr(3, 1)))
		}
		l.remove(1, aGroup(hostAddr(1, 1), 0x800003))
		if _, err := l.groups(1).Update(t.Context(), &mcrdmav1.UpdateRequest{Key: aGroup(hostAddr(1, 1), 0x800005).Key,
			Receivers: []*mcrdmav1.Receiver{aReceiver(hostAddr(2, 1), 0x101), aReceiver(hostAddr(3, 2), 0x103)}}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(treeTime)
		before := l.raw()
		for i, n := range l.nodes {
			n.kill()
			k := &killer{at: -1}
			var logged testenv.SyncBuffer
			l.start(i+1, k.into, func(_ *config.Config, o *Options) {
				o.Logger, o.DialSwitch = slog.New(slog.NewTextHandler(&logged, nil)), append(o.DialSwitch, grpc.WithStreamInterceptor(slowly))
			})
			time.Sleep(300 * time.Millisecond) // for syncs, which should do nothing
			if strings.Contains(logged.String(), "another agent") {
				t.Errorf("no other agent controls the switch of %s:\n%s", n.name, logged.String())
			}
			if c := k.calls(); c != 0 {
				t.Errorf("the agent of %s wrote or stored %d times", n.name, c)
			}
			n.usesCounted(t)
		}
		if after := l.raw(); after != before {
			t.Errorf("before:\n%s\nafter:\n%s", before, after)
		}
		for i := range l.nodes {
			list, err := l.groups(i+1).List(t.Context(), &mcrdmav1.ListRequest{})
			if err != nil {
				t.Fatal(err)
			}
			for _, g := range list.Groups {
				l.remove(i+1, g.Group)
			}
		}
		l.noLeftovers()
	})
}

// What an agent's configuration no longer has is removed when the agent restarts.
func TestAgentRestartWithLess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLine(t, 1)
		l.startAll()
		gone := switchspec.Route{Dst: netip.PrefixFrom(hostAddr(1, hostsEach), 32)}.Key()
		if _, ok := l.state(1).Find(gone); !ok {
			t.Fatal("there is no route to the last host")
		}
		l.nodes[0].kill()
		l.start(1, func(c *config.Config, _ *Options) { c.Hosts = c.Hosts[:hostsEach-1] })
		now := time.Now()
		l.nodes[0].agent.change(func(t *unicast.Table) { // it may have been learned, so it is asked for
			for i := range 10 {
				t.Probe(now.Add(time.Duration(i) * unicast.ProbeAfter))
			}
		})
		eventually(t, "the route is gone", func() bool {
			_, ok := l.state(1).Find(gone)
			return !ok
		})
	})
}

// usesCounted checks that the next hops of all copies, and no others, are in use.
func (n *node) usesCounted(t *testing.T) {
	t.Helper()
	want := map[uint16]int{}
	for _, s := range n.agent.table.Steps() {
		for _, hop := range s.Installation.Hops() {
			want[hop]++
		}
	}
	n.agent.uni.with(func(table *unicast.Table) {
		for _, h := range table.HopList() {
			if h.Uses != want[h.Number] {
				t.Errorf("%s: next hop %d has %d users, and is counted as having %d", n.name, h.Number, want[h.Number], h.Uses)
			}
		}
	})
}

// A switch that comes back empty gets everything again; merging goes on under a new
// epoch, and waits until all members have answered.
func TestSwitchRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLine(t, 2)
		l.startAll()
		g := aGroup(hostAddr(1, 1), 0x800001, hostAddr(1, 2), hostAddr(2, 1), hostAddr(2, 2))
		l.install(1, g)
		want := l.canonical()
		merge := func() (out switchspec.MergeGroup) {
			have, err := l.read(1)
			if err != nil {
				return out
			}
			for m := range switchspec.Of[switchspec.MergeGroup](have) {
				out = m
			}
			return out
		}
		first := merge()
		if first.Learn || first.Epoch == 0 {
			t.Errorf("a new group: %v", first)
		}
		used := map[[2]uint16]bool{{first.Slot, first.Epoch}: true}
		for range 3 {
			for _, n := range l.nodes {
				n.sw.close()
				time.Sleep(5 * time.Second) // the agent tries several times
				n.sw, _ = l.startSwitch(n.p4)
			}
			eventually(t, "the switches have all again", func() bool {
				return l.consistent() == "" && slices.Equal(l.canonical(), want)
			})
			now := merge()
			if !now.Learn || used[[2]uint16{now.Slot, now.Epoch}] {
				t.Errorf("after a restart: %v, before: %v", now, first)
			}
			used[[2]uint16{now.Slot, now.Epoch}] = true
			if err := l.state(1).Check(); err != nil {
				t.Error(err)
			}
		}
		s, err := mcrdmav1.NewSwitchStatusClient(l.conn(1)).GetStatus(t.Context(), &mcrdmav1.GetStatusRequest{})
		if p := s.GetP4Runtime(); err != nil || p.GetPushes() != 4 || p.GetReconnects() != 3 {
			t.Errorf("after 3 restarts: %v, %v", p, err)
		}
		l.remove(1, g)
		l.noLeftovers()
	})
}

// reached are the receivers that a group's packets reach, once each, whichever of
// the equal-cost paths they take; an error says where they go wrong.
func (l *line) reached(at int, src netip.Addr, id uint32, dst netip.Addr) ([]string, error) {
	s, err := l.read(at)
	if err != nil {
		return nil, err
	}
	e, ok := s.Find(switchspec.Match{Src: src, MCID: id, Dst: dst}.Key())
	if !ok {
		return nil, fmt.Errorf("sw%d does not know packets to %v", at, dst)
	}
	m := e.(switchspec.Match)
	var first []string
	for i := range m.PREGroups {
		e, ok := s.Find(switchspec.PREGroup{ID: m.FirstPRE + i}.Key())
		if !ok {
			return nil, fmt.Errorf("sw%d lacks PRE group %d", at, m.FirstPRE+i)
		}
		var got []string
		for _, r := range e.(switchspec.PREGroup).Replicas {
			e, ok := s.Find(switchspec.Replica{Group: m.Group, Rewrite: bifurcation.Rewrite{RID: r.Instance}}.Key())
			if !ok {
				return nil, fmt.Errorf("sw%d lacks replica %d/%d", at, m.Group, r.Instance)
			}
			copied := e.(switchspec.Replica)
			hop, ok := s.Find(switchspec.NextHop{ID: copied.NextHop}.Key())
			if !ok || hop.(switchspec.NextHop).Port != r.Port {
				return nil, fmt.Errorf("sw%d: next hop %d of a copy by port %d is %v", at, copied.NextHop, r.Port, hop)
			}
			if copied.Last {
				got = append(got, copied.Dst.String())
				continue
			}
			next := at + 1
			if r.Port%2 == 0 {
				next = at - 1
			}
			behind, err := l.reached(next, src, id, copied.Dst)
			if err != nil {
				return nil, err
			}
			got = append(got, behind...)
		}
		slices.Sort(got)
		if i > 0 && !slices.Equal(got, first) {
			return nil, fmt.Errorf("sw%d: one way leads to %v, another to %v", at, first, got)
		}
		first = got
	}
	return first, nil
}

// While routes change, packets reach all receivers after each single write.
func TestMakeBeforeBreak(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLine(t, 3)
		l.readOften()
		var mu sync.Mutex
		check := func() {}
		watched := &killer{at: -1, watch: func() {
			mu.Lock()
			defer mu.Unlock()
			check()
		}}
		for i := range l.nodes {
			l.start(i+1, watched.into, func(c *config.Config, _ *Options) { c.Leases.Branch = 10 * time.Minute }) // checks take time
		}
		receivers := []netip.Addr{hostAddr(1, 2), hostAddr(2, 1), hostAddr(3, 1), hostAddr(3, 2)}
		want := []string{"10.1.0.12", "10.2.0.11", "10.3.0.11", "10.3.0.12"}
		var more []string // possible too
		checks, there := 0, true
		l.install(1, aGroup(hostAddr(1, 1), 0x800001, receivers...)) // no packets come before
		mu.Lock()
		check = func() {
			checks++
			known := func() bool {
				s, err := l.read(1)
				if err != nil {
					t.Error(err) // and not Fatal, on an agent's goroutine
					return false
				}
				_, ok := s.Find(switchspec.Match{Src: hostAddr(1, 1), MCID: 0x800001, Dst: hostAddr(1, 2)}.Key())
				return ok
			}
			before := there || known()
			got, err := l.reached(1, hostAddr(1, 1), 0x800001, hostAddr(1, 2))
			if !before || !there && !known() {
				return // not yet, or no longer
			}
			if err != nil || !slices.Equal(got, want) && (more == nil || !slices.Equal(got, more)) {
				t.Errorf("after a write: reached %v, %v", got, err)
			}
		}
		mu.Unlock()
		for round := range 4 {
			up := round%2 == 1
			for i := range 2 {
				a := l.nodes[i].agent
				a.routes.link(103, l.nodes[i+1].name, up)
				eventually(t, "the group has turned", func() bool { return turned(a, map[bool]int{true: 2, false: 1}[up]) == 1 })
			}
		}
		// A host moves to another port.
		a := l.nodes[2].agent
		mac := switchspec.MAC{2, 0, 0, 9, 9, 9}
		moved := unicast.Host{Addr: netip.AddrFrom4([4]byte{10, 3, 0, 100}), MAC: mac, Port: 3}
		a.learn(moved)
		mu.Lock()
		more = append(slices.Clone(want), moved.Addr.String())
		slices.Sort(more)
		mu.Unlock()
		_, err := l.groups(1).Update(t.Context(), &mcrdmav1.UpdateRequest{Key: aGroup(hostAddr(1, 1), 0x800001).Key,
			InitialPsn: new(uint32), Receivers: []*mcrdmav1.Receiver{aReceiver(receivers[0], 0x100), aReceiver(receivers[1], 0x101),
				aReceiver(receivers[2], 0x102), aReceiver(receivers[3], 0x103), aReceiver(moved.Addr, 0x104)}})
		if err != nil {
			t.Fatal(err)
		}
		mu.Lock()
		want, more = more, nil
		mu.Unlock()
		t.Log("it moves")
		moved.Port = 7
		a.learn(moved)
		eventually(t, "copies leave by the new port", func() bool { return strings.Contains(canonical(l.state(3)), "port 7 to 10.3.0.100") })
		mu.Lock()
		there = false
		mu.Unlock()
		l.remove(1, aGroup(hostAddr(1, 1), 0x800001))
		mu.Lock()
		check = func() {}
		mu.Unlock()
		l.noLeftovers()
		if checks < 20 {
			t.Errorf("%d checks only", checks)
		}
		t.Logf("%d checks", checks)
	})
}

// Requests of an agent that has lost its state, and whose clock was set back, are not
// taken for late ones from before.
func TestSequenceCatchesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLine(t, 2)
		l.startAll()
		g := aGroup(hostAddr(1, 1), 0x800001, hostAddr(1, 2), hostAddr(2, 1), hostAddr(2, 2))
		l.install(1, g)
		want := l.canonical()
		l.nodes[0].kill()
		if err := os.Remove(l.config(1).State); err != nil {
			t.Fatal(err)
		}
		l.launch(1)
		a := l.nodes[0].agent
		a.peers.sequence.Store(5)
		<-a.Ready()
		l.install(1, g)
		if have := l.canonical(); !slices.Equal(have, want) {
			t.Errorf("have %v, want %v", have, want)
		}
		if a.peers.sequence.Load() < 1<<40 {
			t.Errorf("the sequence is at %d", a.peers.sequence.Load())
		}
		l.remove(1, g)
		l.noLeftovers()
	})
}

// An agent that has lost its state learns again what others hold at it.
func TestStateLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLine(t, 3)
		fast := func(c *config.Config, _ *Options) { c.Leases.Branch = time.Second }
		for i := range l.nodes {
			l.start(i+1, fast)
		}
		g := aGroup(hostAddr(1, 1), 0x800001, hostAddr(1, 2), hostAddr(2, 1), hostAddr(3, 1), hostAddr(3, 2))
		l.install(1, g)
		want := l.canonical()
		for _, i := range []int{3, 2} {
			l.nodes[i-1].kill()
			if err := os.Remove(l.config(i).State); err != nil {
				t.Fatal(err)
			}
			l.start(i, fast)
			eventually(t, "the tree is whole again", func() bool { return slices.Equal(l.canonical(), want) })
		}
		l.remove(1, g)
		l.noLeftovers()
	})
}
