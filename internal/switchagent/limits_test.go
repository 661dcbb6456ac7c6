package switchagent

import (
	"context"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"

	"google.golang.org/grpc/codes"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/internal/softswitch"
	"github.com/mcrdma/mcrdma/internal/softswitch/pre"
	"github.com/mcrdma/mcrdma/internal/switchagent/config"
)

func TestConfiguredLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLine(t, 2)
		l.start(1, func(c *config.Config, _ *Options) {
			c.Limits.Groups, c.Limits.GroupsPerSource, c.Limits.Receivers = 3, 2, 3
		})
		l.start(2, func(c *config.Config, _ *Options) { c.Limits.Steps = 2 })
		c := l.groups(1)
		far := []netip.Addr{hostAddr(2, 1), hostAddr(2, 2)}
		g := aGroup(hostAddr(1, 1), 1, far...)
		l.install(1, g)
		h := aGroup(hostAddr(1, 1), 2, far...)
		l.install(1, h)
		before := l.snapshot()
		limit := func(i string, words ...string) refused {
			return refused{codes.ResourceExhausted, "LIMIT", "sw" + i, words}
		}
		for name, x := range map[string]struct {
			g    *mcrdmav1.Group
			want refused
		}{
			"of one sender":  {aGroup(hostAddr(1, 1), 3, hostAddr(1, 2)), limit("1", "2 groups of one sender")},
			"steps behind":   {aGroup(hostAddr(1, 3), 3, far...), limit("2", "part in 2 groups")},
			"receivers":      {aGroup(hostAddr(1, 3), 3, hostAddr(1, 2), hostAddr(1, 4), hostAddr(1, 5), hostAddr(1, 6)), refused{codes.InvalidArgument, "TOO_MANY_RECEIVERS", "sw1", []string{"4", "take 3"}}},
			"sender again":   {aGroup(hostAddr(1, 1), 4, hostAddr(1, 2)), limit("1", "2 groups of one sender")},
			"steps behind 2": {aGroup(hostAddr(1, 4), 3, far...), limit("2", "part in 2 groups")},
		} {
			_, err := c.Install(t.Context(), &mcrdmav1.InstallRequest{Group: x.g})
			x.want.check(t, name, err)
			l.unchanged(name, before)
		}
		l.install(1, g) // renewed, though no more is taken
		k := aGroup(hostAddr(1, 3), 3, hostAddr(1, 2), hostAddr(1, 4))
		l.install(1, k)
		_, err := c.Install(t.Context(), &mcrdmav1.InstallRequest{Group: aGroup(hostAddr(1, 4), 3, hostAddr(1, 2))})
		limit("1", "3 groups").check(t, "groups", err)
		l.remove(1, h)
		l.install(1, aGroup(hostAddr(1, 4), 3, far...)) // there is room again, here and behind
		l.remove(1, aGroup(hostAddr(1, 4), 3))
		l.remove(1, g)
		l.remove(1, k)
		l.noLeftovers()
	})
}

// TestRoutingOnly: a switch that is configured to route only refuses steps.
func TestRoutingOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLine(t, 2)
		l.start(1)
		l.start(2, func(c *config.Config, _ *Options) { c.Programmable = false })
		before := l.snapshot()
		_, err := l.groups(1).Install(t.Context(), &mcrdmav1.InstallRequest{Group: aGroup(hostAddr(1, 1), 1, hostAddr(2, 1), hostAddr(2, 2))})
		refused{codes.InvalidArgument, "INVALID", "sw2", []string{"route only"}}.check(t, "hold", err)
		_, err = l.groups(2).Install(t.Context(), &mcrdmav1.InstallRequest{Group: aGroup(hostAddr(2, 1), 1, hostAddr(2, 2))})
		refused{codes.FailedPrecondition, "NO_MERGE_POINT", "sw2", []string{"route only"}}.check(t, "install", err)
		l.unchanged("refused", before)
		l.noLeftovers()
	})
}

// smallSwitch replaces switch i by one whose replication engine is small.
func (l *line) smallSwitch(i int, limits pre.Limits) {
	l.t.Helper()
	n := l.nodes[i-1]
	n.sw.close()
	n.sw, _ = l.startSwitch(n.p4, func(c *softswitch.Config) { c.PRE = limits })
}

// TestFullSwitch fills a table of the switch itself. What does not fit is refused
// as a whole, what was there stays, and with room again, more fits.
func TestFullSwitch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLine(t, 2)
		l.smallSwitch(2, pre.Limits{Groups: 4})
		l.startAll()
		c := l.groups(1)
		var there []*mcrdmav1.Group
		var before snapshot
		var err error
		for i := range uint32(10) {
			before = l.snapshot()
			g := aGroup(hostAddr(1, 1), i+1, hostAddr(1, 2), hostAddr(2, 1), hostAddr(2, 2))
			if _, err = c.Install(t.Context(), &mcrdmav1.InstallRequest{Group: g}); err != nil {
				break
			}
			there = append(there, g)
		}
		if len(there) != 3 {
			t.Errorf("%d groups fit, and one PRE group is for floods", len(there))
		}
		refused{codes.ResourceExhausted, "LIMIT", "sw2", []string{"PRE", "PRE group"}}.check(t, "full", err)
		l.unchanged("full", before)
		l.remove(1, there[0])
		l.install(1, there[0])
		// One that fits and one that does not, together: the one that fits is made.
		l.remove(1, there[0])
		type result struct {
			id  uint32
			err error
		}
		results := make(chan result)
		for id := uint32(21); id <= 24; id++ {
			go func() {
				g := aGroup(hostAddr(1, 3), id, hostAddr(1, 2), hostAddr(2, 1), hostAddr(2, 2))
				_, err := c.Install(context.WithoutCancel(t.Context()), &mcrdmav1.InstallRequest{Group: g})
				results <- result{id, err}
			}()
		}
		fit := 0
		for range 4 {
			r := <-results
			if r.err == nil {
				fit++
				there = append(there, aGroup(hostAddr(1, 3), r.id))
				continue
			}
			refused{codes.ResourceExhausted, "LIMIT", "sw2", nil}.check(t, "side by side", r.err)
		}
		if fit != 1 {
			t.Errorf("%d of 4 fit where there was room for one", fit)
		}
		for _, g := range there {
			l.remove(1, g)
		}
		l.noLeftovers()
	})
}

// TestRefusedAfterSwitchRestart: the switch restarts while a group is written to it,
// and then has no room for that group. The install fails, and nothing of it stays.
func TestRefusedAfterSwitchRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLine(t, 1)
		room := pre.Limits{Groups: 4} // one is for floods
		l.smallSwitch(1, room)
		k := &killer{at: -1}
		l.start(1, k.into)
		for id := range uint32(3) {
			l.install(1, aGroup(hostAddr(1, 1), id+1, hostAddr(1, 2), hostAddr(1, 3)))
		}
		want := l.canonical()
		k.arm(0, false, func() { l.smallSwitch(1, room) })
		g := aGroup(hostAddr(1, 1), 9, hostAddr(1, 2), hostAddr(1, 3))
		_, err := l.groups(1).Install(t.Context(), &mcrdmav1.InstallRequest{Group: g})
		refused{codes.ResourceExhausted, "LIMIT", "sw1", []string{"full"}}.check(t, "install", err)
		if !k.fired() {
			t.Fatal("the switch was not written")
		}
		eventually(t, "the switch has the groups of before", func() bool { return l.consistent() == "" && slices.Equal(l.canonical(), want) })
		l.remove(1, aGroup(hostAddr(1, 1), 1))
		l.install(1, g) // there is room now
		for _, id := range []uint32{2, 3, 9} {
			l.remove(1, aGroup(hostAddr(1, 1), id))
		}
		l.noLeftovers()
	})
}
