package switchagent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/internal/fanout"
	"github.com/mcrdma/mcrdma/internal/identity"
	"github.com/mcrdma/mcrdma/internal/switchagent/config"
	"github.com/mcrdma/mcrdma/internal/switchagent/groups"
)

// shortLeases sets the shortest leases of groups and branches that a configuration may.
func shortLeases(c *config.Config, _ *Options) {
	c.Leases = config.Leases{Group: time.Second, Branch: time.Second}
}

// empty waits until nothing of groups is on any switch.
func (l *line) empty(what string) {
	l.t.Helper()
	eventually(l.t, what, func() bool {
		for i := range l.nodes {
			if have, err := l.read(i + 1); err != nil || len(multicast(have)) > 0 {
				return false
			}
		}
		return true
	})
	synctest.Wait() // an agent may know it a little later than its switch
}

// TestLeases: a group that is not renewed goes along the whole tree, and others stay.
func TestLeases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLine(t, 3)
		for i := range 3 {
			l.start(i+1, shortLeases)
		}
		c := l.groups(1)
		w, err := c.Watch(within(t, 30*time.Second), &mcrdmav1.WatchRequest{})
		if err != nil {
			t.Fatal(err)
		}
		expectEvents(t, w, mcrdmav1.WatchResponse_TYPE_SYNCED)
		kept := aGroup(hostAddr(1, 1), 1, hostAddr(1, 2), hostAddr(2, 1), hostAddr(3, 1), hostAddr(3, 2))
		left := aGroup(hostAddr(1, 1), 2, hostAddr(1, 2), hostAddr(2, 1), hostAddr(3, 1), hostAddr(3, 2))
		long := aGroup(hostAddr(1, 2), 2, hostAddr(3, 1), hostAddr(3, 2))
		l.install(1, kept)
		want := l.canonical()
		l.install(1, left)
		installed := time.Now()
		res, err := c.Install(t.Context(), &mcrdmav1.InstallRequest{Group: long, Lease: durationpb.New(time.Hour)})
		if err != nil || res.GetLease().AsDuration() != time.Hour || res.GetMaxPackets() != 1<<21 {
			t.Fatal(res, err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		renewing := func() {
			for ctx.Err() == nil {
				res, err := c.Renew(context.WithoutCancel(ctx), &mcrdmav1.RenewRequest{Keys: []*mcrdmav1.GroupKey{kept.Key}})
				if err != nil || len(res.GetMissing()) > 0 {
					t.Errorf("renew: %v, %v", res, err)
				}
				select {
				case <-ctx.Done():
				case <-time.After(20 * time.Millisecond):
				}
			}
		}
		wg.Go(renewing)
		defer wg.Wait()
		defer cancel()
		events := expectEvents(t, w, mcrdmav1.WatchResponse_TYPE_INSTALLED, mcrdmav1.WatchResponse_TYPE_INSTALLED, mcrdmav1.WatchResponse_TYPE_INSTALLED, mcrdmav1.WatchResponse_TYPE_EXPIRED)
		if took := time.Since(installed); took < 900*time.Millisecond {
			t.Errorf("expired after %v", took)
		}
		if k := events[3].GetGroup().GetGroup().GetKey(); k.GetMcId() != 2 || k.GetSource() != "10.1.0.11" || len(events[3].GetGroup().GetGroup().GetReceivers()) != 4 {
			t.Errorf("expired: %v", events[3])
		}
		if res, err := c.Renew(t.Context(), &mcrdmav1.RenewRequest{Keys: []*mcrdmav1.GroupKey{left.Key, kept.Key}}); err != nil || len(res.GetMissing()) != 1 {
			t.Errorf("renew: %v, %v", res, err)
		}
		l.remove(1, long)
		expectEvents(t, w, mcrdmav1.WatchResponse_TYPE_REMOVED)
		// Branches have been renewed by syncs, more than a lease long.
		if have := l.canonical(); !slices.Equal(have, want) {
			t.Errorf("have %v, want %v", have, want)
		}
		cancel()
		wg.Wait()
		expectEvents(t, w, mcrdmav1.WatchResponse_TYPE_EXPIRED)
		l.empty("the group that is no longer renewed")
		l.noLeftovers()
	})
}

// TestBranchLeases: what an agent held elsewhere is removed when the agent has gone, and
// comes back with it.
func TestBranchLeases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLine(t, 3)
		long := func(c *config.Config, o *Options) {
			shortLeases(c, o)
			c.Leases.Group = time.Hour
		}
		for i := range 3 {
			l.start(i+1, long)
		}
		g := aGroup(hostAddr(1, 1), 1, hostAddr(1, 2), hostAddr(2, 1), hostAddr(3, 1), hostAddr(3, 2))
		l.install(1, g)
		want := l.canonical()
		l.nodes[0].kill()
		eventually(t, "the branches' end", func() bool {
			return len(multicast(l.state(2))) == 0 && len(multicast(l.state(3))) == 0
		})
		if have := l.canonical(); have[0] != want[0] {
			t.Errorf("the first switch: %v", have[0])
		}
		l.start(1, long)
		eventually(t, "the branches' return", func() bool { return slices.Equal(l.canonical(), want) })
		l.remove(1, g)
		l.noLeftovers()
	})
}

// TestRenewalBeatsExpiry renews groups and branches as they expire; nothing that was
// renewed in time may be lost.
func TestRenewalBeatsExpiry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLine(t, 2)
		l.startAll()
		g := aGroup(hostAddr(1, 1), 1, hostAddr(1, 2), hostAddr(2, 1), hostAddr(2, 2))
		l.install(1, g)
		a, b := l.nodes[0].agent, l.nodes[1].agent
		held := b.table.Steps()[0].Key
		k := groups.Key{Source: hostAddr(1, 1), ID: 1}
		// Another goroutine has the turn of both steps while their ends are found.
		atA, err := a.table.Enter(t.Context(), groups.StepKey{Key: k, Dst: hostAddr(1, 2)})
		if err != nil {
			t.Fatal(err)
		}
		atB, err := b.table.Enter(t.Context(), held)
		if err != nil {
			t.Fatal(err)
		}
		long := time.Now().Add(-48 * time.Hour)
		a.table.Renew(k, 0, long)
		b.table.Sync("sw1", 0, map[groups.StepKey]uint64{held: 0}, long)
		var wg sync.WaitGroup
		for _, x := range []*Agent{a, b} {
			wg.Go(func() { x.expire(t.Context()) })
		}
		time.Sleep(50 * time.Millisecond) // they wait for their turns
		if !a.table.Renew(k, 0, time.Now()) {
			t.Fatalf("there is no group %v", k)
		}
		if _, err := a.peers.all["sw2"].sync(t.Context()); err != nil {
			t.Fatal(err)
		}
		a.table.Leave(atA)
		b.table.Leave(atB)
		wg.Wait()
		if a.table.Installed(k) == nil || len(multicast(l.state(2))) == 0 {
			t.Error("what was renewed has expired")
		}
		l.remove(1, g)
		l.noLeftovers()
	})
}

func TestWatchTellsInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLine(t, 2)
		l.start(1, shortLeases)
		l.start(2)
		c := l.groups(1)
		g := aGroup(hostAddr(1, 1), 1, hostAddr(1, 2), hostAddr(2, 1))
		h := aGroup(hostAddr(1, 1), 2, hostAddr(1, 2))
		install := func(g *mcrdmav1.Group, lease time.Duration) {
			t.Helper()
			if _, err := c.Install(t.Context(), &mcrdmav1.InstallRequest{Group: g, Lease: durationpb.New(lease)}); err != nil {
				t.Fatal(err)
			}
		}
		install(g, time.Hour)
		install(h, time.Hour)
		w, err := c.Watch(within(t, 30*time.Second), &mcrdmav1.WatchRequest{Source: "10.1.0.11"})
		if err != nil {
			t.Fatal(err)
		}
		for i, e := range expectEvents(t, w, mcrdmav1.WatchResponse_TYPE_INSTALLED, mcrdmav1.WatchResponse_TYPE_INSTALLED, mcrdmav1.WatchResponse_TYPE_SYNCED)[:2] {
			if id := e.GetGroup().GetGroup().GetKey().GetMcId(); int(id) != i+1 || e.GetGroup().GetSwitch() != "sw1" {
				t.Errorf("event %d: %v", i, e)
			}
		}
		other := aGroup(hostAddr(1, 4), 1, hostAddr(1, 2))
		install(other, time.Hour) // another source's
		psn := uint32(1)
		if _, err := c.Update(t.Context(), &mcrdmav1.UpdateRequest{Key: g.Key, InitialPsn: &psn,
			Receivers: []*mcrdmav1.Receiver{g.Receivers[0], aReceiver(hostAddr(2, 2), 7)}}); err != nil {
			t.Fatal(err)
		}
		install(h, time.Hour) // renews
		l.remove(1, other)
		l.remove(1, h)
		l.remove(1, h) // nothing
		install(h, time.Millisecond)
		events := expectEvents(t, w, mcrdmav1.WatchResponse_TYPE_UPDATED, mcrdmav1.WatchResponse_TYPE_REMOVED, mcrdmav1.WatchResponse_TYPE_INSTALLED, mcrdmav1.WatchResponse_TYPE_EXPIRED)
		if r := events[0].GetGroup().GetGroup().GetReceivers(); len(r) != 2 || r[1].GetAddress() != "10.2.0.12" {
			t.Errorf("%v", events[0])
		}
		l.remove(1, g)
		expectEvents(t, w, mcrdmav1.WatchResponse_TYPE_REMOVED)
		// A watcher is told when the agent goes.
		l.nodes[0].kill()
		if e, err := w.Recv(); status.Code(err) != codes.Unavailable && status.Code(err) != codes.Canceled {
			t.Errorf("%v, %v", e, err)
		}
	})
}

// TestSlowWatcherIsLost: a client that does not read gets LOST, and blocks no other.
func TestSlowWatcherIsLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLine(t, 1)
		l.startAll()
		a := l.nodes[0].agent
		slow := mcrdmav1.NewSwitchGroupsClient(l.as(1, identity.Identity{Role: identity.Admin, Name: "slow"}))
		w, err := slow.Watch(within(t, 30*time.Second), &mcrdmav1.WatchRequest{})
		if err != nil {
			t.Fatal(err)
		}
		expectEvents(t, w, mcrdmav1.WatchResponse_TYPE_SYNCED)
		in, err := groupFrom(aGroup(hostAddr(1, 1), 1, hostAddr(1, 2), hostAddr(1, 3), hostAddr(1, 4)), time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		for range 10 * fanout.Queue {
			a.tell(mcrdmav1.WatchResponse_TYPE_UPDATED, groups.View{Info: in})
		}
		told := 0
		for {
			e, err := w.Recv()
			if err != nil {
				t.Fatalf("after %d events: %v", told, err)
			}
			if e.GetType() == mcrdmav1.WatchResponse_TYPE_LOST {
				break
			}
			told++
		}
		if _, err := w.Recv(); !errors.Is(err, io.EOF) {
			t.Errorf("after the end: %v", err)
		}
		if told < fanout.Queue || told == 10*fanout.Queue {
			t.Errorf("%d events", told)
		}
		if _, err := slow.Install(t.Context(), &mcrdmav1.InstallRequest{Group: aGroup(hostAddr(1, 1), 1, hostAddr(1, 2))}); err != nil {
			t.Error(err)
		}
	})
}

// TestRequestsBeforeTheSwitchIsFound: an agent that has earlier groups, and no
// switch yet.
func TestRequestsBeforeTheSwitchIsFound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLine(t, 2)
		l.startAll()
		var groups []*mcrdmav1.Group
		for id := range uint32(5) {
			g := aGroup(hostAddr(1, 1), id+1, hostAddr(1, 2), hostAddr(2, 1), hostAddr(2, 2))
			groups = append(groups, g)
			lease := time.Hour
			if id == 3 {
				lease = time.Second
			}
			if _, err := l.groups(1).Install(t.Context(), &mcrdmav1.InstallRequest{Group: g, Lease: durationpb.New(lease)}); err != nil {
				t.Fatal(err)
			}
		}
		n := l.nodes[0]
		n.kill()
		n.sw.close()
		l.launch(1, shortLeases)
		a := n.agent
		c := l.groups(1)
		brief := func() context.Context {
			ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
			t.Cleanup(cancel)
			return ctx
		}
		psn := uint32(1)
		var wg sync.WaitGroup
		for i, f := range map[string]func(ctx context.Context) error{
			"install": func(ctx context.Context) error {
				_, err := c.Install(ctx, &mcrdmav1.InstallRequest{Group: aGroup(hostAddr(1, 1), 99, hostAddr(1, 2))})
				return err
			},
			"shrink": func(ctx context.Context) error {
				_, err := c.Update(ctx, &mcrdmav1.UpdateRequest{Key: groups[0].Key, Receivers: groups[0].Receivers[:2]})
				return err
			},
			"grow": func(ctx context.Context) error {
				_, err := c.Update(ctx, &mcrdmav1.UpdateRequest{Key: groups[1].Key, InitialPsn: &psn, Receivers: append(slices.Clone(groups[1].Receivers), aReceiver(hostAddr(1, 5), 1))})
				return err
			},
			"remove": func(ctx context.Context) error {
				_, err := c.Remove(ctx, &mcrdmav1.RemoveRequest{Key: groups[2].Key})
				return err
			},
			"counters": func(ctx context.Context) error {
				_, err := c.Get(ctx, &mcrdmav1.GetRequest{Key: groups[4].Key, Counters: true})
				return err
			},
		} {
			wg.Go(func() {
				err := f(brief())
				if s := status.Convert(err); s.Code() != codes.DeadlineExceeded && s.Code() != codes.Unavailable {
					t.Errorf("%s: %v", i, err)
				}
			})
		}
		wg.Wait()
		// What needs no switch works; and the agent keeps the group whose lease has ended
		// until it can remove it from the switch.
		time.Sleep(1500 * time.Millisecond)
		for _, g := range groups {
			if res, err := c.Get(brief(), &mcrdmav1.GetRequest{Key: g.Key}); err != nil || len(res.GetGroup().GetGroup().GetReceivers()) != 3 {
				t.Errorf("%v: %v, %v", g.Key, res, err)
			}
		}
		if res, err := c.Renew(brief(), &mcrdmav1.RenewRequest{Keys: []*mcrdmav1.GroupKey{groups[0].Key, groups[1].Key}}); err != nil || len(res.GetMissing()) > 0 {
			t.Errorf("%v, %v", res, err)
		}
		n.sw, _ = l.startSwitch(n.p4)
		select {
		case <-a.Ready():
		case <-time.After(20 * time.Second):
			t.Fatal("the agent is not ready")
		}
		for _, g := range groups { // the switch knows nothing, so no state can be told from an older copy
			eventually(t, "the group is gone", func() bool { return l.missing(g) })
		}
		eventually(t, "nothing is left of them", func() bool {
			return a.table.Usage().Groups == 0
		})
		l.empty(fmt.Sprint(len(groups), " groups"))
		l.noLeftovers()
	})
}

// TestNumbers: an agent tells the number that a daemon gives a group, when it is installed and,
// after a restart of the agent, from when it is renewed. Daemons of an earlier release tell none.
func TestNumbers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLine(t, 2)
		l.startAll()
		g, older := aGroup(hostAddr(1, 1), 0x800001, hostAddr(1, 2), hostAddr(2, 1)), aGroup(hostAddr(1, 1), 0x800002, hostAddr(1, 2))
		g.Key.Number = 1 << 40
		l.install(1, g)
		l.install(1, older)
		numbers := func(want uint64) {
			t.Helper()
			list, err := l.groups(1).List(t.Context(), &mcrdmav1.ListRequest{})
			if err != nil || len(list.Groups) != 2 || list.Groups[0].Group.Key.Number != want || list.Groups[1].Group.Key.Number != 0 {
				t.Errorf("%v, %v; want number %d", list, err, want)
			}
		}
		renew := func(keys ...*mcrdmav1.GroupKey) {
			t.Helper()
			if r, err := l.groups(1).Renew(t.Context(), &mcrdmav1.RenewRequest{Keys: keys}); err != nil || len(r.Missing) > 0 {
				t.Fatal(r, err)
			}
		}
		numbers(1 << 40)
		renew(&mcrdmav1.GroupKey{Source: g.Key.Source, McId: g.Key.McId})
		numbers(1 << 40)
		l.nodes[0].kill()
		l.start(1)
		numbers(0)
		renew(older.Key, g.Key)
		numbers(1 << 40)
		l.remove(1, g)
		l.remove(1, older)
		l.noLeftovers()
	})
}

// TestUpdateAnswersFirst: a receiver that leaves is out of merging when Update answers, which waits neither for other switches nor for
// packets on their way there; the tree follows.
func TestUpdateAnswersFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLine(t, 2)
		l.startAll()
		g := aGroup(hostAddr(1, 1), 1, hostAddr(1, 2), hostAddr(2, 1), hostAddr(2, 2)) // sw2 is reached by the one that leaves
		l.install(1, g)
		begun := time.Now()
		if _, err := l.groups(1).Update(t.Context(), &mcrdmav1.UpdateRequest{Key: g.Key, Receivers: []*mcrdmav1.Receiver{g.Receivers[0], g.Receivers[2]}}); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(begun); took >= drainTime {
			t.Errorf("Update took %v", took)
		}
		if merges := strings.Join(l.canonical(), "\n"); !strings.Contains(merges, "[10.1.0.12→10.1.0.11 0x1 10.2.0.12→10.1.0.11 0x1]") {
			t.Errorf("merging goes on with those that left:\n%s", merges)
		}
		time.Sleep(treeTime)
		if why := l.consistent(); why != "" {
			t.Error(why)
		}
		if tree := strings.Join(l.canonical(), "\n"); strings.Contains(tree, "10.2.0.11") {
			t.Errorf("the tree still has the receiver that left:\n%s", tree)
		}
	})
}
