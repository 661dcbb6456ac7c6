package e2e

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mcrdma/mcrdma/tests/e2e/lab"
	"github.com/mcrdma/mcrdma/tests/e2e/orders"
)

// patient daemons would make these tests long.
const hasty = "leases: {member: 4s, group: 4s}\nbeat: {dead_after: 2s, grace: 4s}\n"

// busy is work that lasts until the test has injected its fault.
var busy = orders.WorkArgs{Kinds: allKinds, Sizes: smallSizes, Millis: 4000, Depth: 8, Seed: 9, Patience: 40_000}

// ruin starts work in a group, injects a fault at the right time, and returns the result of the
// work.
func (m *team) ruin(t *testing.T, worst func()) (orders.WorkResult, error) {
	t.Helper()
	type outcome struct {
		res orders.WorkResult
		err error
	}
	done := make(chan outcome, 1)
	go func() {
		res, err := m.try(t.Context(), busy)
		done <- outcome{res, err}
	}()
	// Not before the work has begun.
	enough := uint64(m.from.Lab().Share(1 << 20))
	eventually(t, "work goes on", 10*time.Second, func() bool {
		return ask[orders.GroupInfo](t, m.from, orders.Info, orders.Name{Name: m.name}).Bytes > enough
	})
	worst()
	o := <-done
	return o.res, o.err
}

// eventually waits for something.
func eventually(t *testing.T, what string, within time.Duration, f func() bool) {
	t.Helper()
	for deadline := time.Now().Add(within); !f(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Errorf("not within %v: %s", within, what)
			return
		}
	}
}

func (m *team) events(t *testing.T) []orders.Event {
	t.Helper()
	return ask[[]orders.Event](t, m.from, orders.Events, orders.Name{Name: m.name})
}

// told checks for an event of a type, about a host unless that is nil.
func (m *team) told(t *testing.T, kind string, h *lab.HostNode) {
	t.Helper()
	eventually(t, "an event of type "+kind, 5*time.Second, func() bool {
		return slices.ContainsFunc(m.events(t), func(e orders.Event) bool {
			return e.Type == kind && (h == nil || e.Address == h.Addr.String())
		})
	})
}

// ready makes a lab and a group of h1, with h2, h3 and h4 as receivers.
func ready(t *testing.T, spec lab.Spec, args orders.CreateArgs) (*lab.Lab, *team) {
	t.Helper()
	l := startLab(t, spec)
	dial(t, l.Hosts...)
	listen(t, small, l.Hosts...)
	h1 := l.Host("h1")
	args.Name, args.Service, args.Regions = "g", "small", []uint64{1 << 20}
	return l, gather(t, h1, others(l, h1), args)
}

// A receiver's application is killed: it is removed, and the others have everything.
func TestNamespaceReceiverKilled(t *testing.T) {
	for _, mode := range []string{"require", "off"} {
		t.Run(mode, func(t *testing.T) {
			l, m := ready(t, lab.Spec{Daemon: hasty}, orders.CreateArgs{Mode: mode})
			h3 := l.Host("h3")
			res, err := m.ruin(t, h3.Member.Kill)
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("%d operations, the longest took %v; %+v", res.Done, res.Max, m.events(t))
			if err := m.compare(t.Context(), res, l.Host("h2"), l.Host("h4")); err != nil {
				t.Error(err)
			}
			m.told(t, "removed", h3)
			m.close(t)
			nothingLeft(t, l, 10*time.Second)
		})
	}
}

// A receiver's host is cut off: it is removed, and when it is back, it has no group.
func TestNamespaceReceiverVanishes(t *testing.T) {
	for _, mode := range []string{"require", "off"} {
		t.Run(mode, func(t *testing.T) {
			l, m := ready(t, lab.Spec{Daemon: hasty}, orders.CreateArgs{Mode: mode})
			h3 := l.Host("h3")
			res, err := m.ruin(t, func() {
				if err := h3.Space.SetUp("eth0", false); err != nil {
					t.Error(err)
				}
			})
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("%d operations, the longest took %v; %+v", res.Done, res.Max, m.events(t))
			if err := m.compare(t.Context(), res, l.Host("h2"), l.Host("h4")); err != nil {
				t.Error(err)
			}
			m.told(t, "removed", h3)
			m.close(t)
			nothingLeft(t, l, 15*time.Second) // at h3 by its lease
		})
	}
}

// A receiver's daemon is killed and does not come back: its application is removed after the
// timeout, and gets an error.
func TestNamespaceReceiverDaemonGone(t *testing.T) {
	l, m := ready(t, lab.Spec{Daemon: hasty}, orders.CreateArgs{Mode: "require"})
	h3 := l.Host("h3")
	res, err := m.ruin(t, h3.Daemon.Kill)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d operations, the longest took %v; %+v", res.Done, res.Max, m.events(t))
	m.told(t, "removed", h3)
	res = m.workFor(t, 100, l.Host("h2"), l.Host("h4"))
	t.Logf("%d operations without it", res.Done)
	m.close(t)
	nothingLeft(t, l, 10*time.Second)
}

// A switch is killed and restarted, empty: its agent restores its entries.
func TestNamespaceSwitchRestarts(t *testing.T) {
	// Hosts may be cut off for as long as a switch takes to start.
	l, m := ready(t, lab.Spec{Daemon: "beat: {dead_after: 12s}\n"}, orders.CreateArgs{Mode: "require"})
	for _, name := range []string{"torA", "spine"} {
		t.Run(name, func(t *testing.T) {
			again := func() {
				l.Switch(name).Switch.Kill()
				start(t, l.Switch(name).Switch)
			}
			if l.Spec.BMv2 { // it takes longer to start than a queue pair retries: the group rests meanwhile
				if name == "spine" {
					t.Skip("optional: bmv2 starts for longer than hosts may be cut off that stay in their groups")
				}
				m.restored(t, l.Switch(name), again)
				again = func() {}
			}
			res, err := m.ruin(t, again)
			info := ask[orders.GroupInfo](t, m.from, orders.Info, orders.Name{Name: m.name})
			t.Logf("%d operations, the longest took %v; formation %d by %s with %v; %v; %+v", res.Done, res.Max, info.Formation, info.Path, info.Members, err, m.events(t))
			if err != nil {
				t.Fatal(err)
			}
			if err := m.compare(t.Context(), res, m.to...); err != nil {
				t.Error(err)
			}
		})
	}
	m.close(t)
	nothingLeft(t, l, 15*time.Second)
}

// restored does something to a switch, and returns when the switch has the same entries of groups
// as before, and the sender reaches all receivers.
func (m *team) restored(t *testing.T, n *lab.SwitchNode, f func()) {
	t.Helper()
	before, err := n.Left()
	if err != nil {
		t.Fatal(err)
	}
	f()
	eventually(t, n.Name+" has its groups again", 30*time.Second, func() bool {
		now, err := n.Left()
		return err == nil && slices.Equal(now, before)
	})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for _, h := range m.to {
		if err := m.from.Reach(ctx, h.Addr); err != nil {
			t.Error(err)
		}
	}
}

// workFor does that many operations, and compares them at some receivers.
func (m *team) workFor(t *testing.T, count int, receivers ...*lab.HostNode) orders.WorkResult {
	t.Helper()
	args := busy
	args.Millis, args.Count = 0, count
	res, err := m.try(t.Context(), args)
	if err == nil {
		err = m.compare(t.Context(), res, receivers...)
	}
	if err != nil {
		t.Fatal(err)
	}
	return res
}

// Too few members are left: the sender and the remaining receivers get an error.
func TestNamespaceMinSize(t *testing.T) {
	l, m := ready(t, lab.Spec{Daemon: hasty}, orders.CreateArgs{Mode: "require", MinSize: 4})
	_, err := m.ruin(t, l.Host("h3").Member.Kill)
	if !lab.Refused(err, "ErrMinSize") {
		t.Errorf("the work ended with %v", err)
	}
	t.Log(err)
	m.told(t, "failed", nil)
	for _, h := range []string{"h2", "h4"} {
		eventually(t, h+" learns of it", 10*time.Second, func() bool {
			return ask[orders.ReplicaInfo](t, l.Host(h), orders.Replica, orders.ReplicaArgs{Group: m.info.ID}).Ended != ""
		})
	}
	nothingLeft(t, l, 10*time.Second)
}

// The sender's application is killed: receivers get an error, and everything is removed.
func TestNamespaceSenderKilled(t *testing.T) {
	l, m := ready(t, lab.Spec{Daemon: hasty}, orders.CreateArgs{Mode: "require"})
	if _, err := m.ruin(t, m.from.Member.Kill); err == nil {
		t.Error("the work of a killed application succeeded")
	}
	for _, h := range m.to {
		eventually(t, h.Name+" learns of it", 10*time.Second, func() bool {
			info := ask[orders.ReplicaInfo](t, h, orders.Replica, orders.ReplicaArgs{Group: m.info.ID})
			return strings.Contains(info.Ended, "sender lost")
		})
	}
	nothingLeft(t, l, 10*time.Second)
}

// The sender's daemon and its application are killed and do not come back: leases end.
func TestNamespaceSenderHostDies(t *testing.T) {
	l, m := ready(t, lab.Spec{Daemon: hasty}, orders.CreateArgs{Mode: "require"})
	if _, err := m.ruin(t, func() {
		m.from.Daemon.Kill()
		m.from.Member.Kill()
	}); err == nil {
		t.Error("the work of a killed application succeeded")
	}
	nothingLeft(t, l, 20*time.Second)
}

// Daemons and agents are killed and restarted: writes continue.
func TestNamespaceControlRestarts(t *testing.T) {
	l, m := ready(t, lab.Spec{Daemon: hasty}, orders.CreateArgs{Mode: "require"})
	for name, p := range map[string]*lab.Process{
		"the sender's daemon": l.Host("h1").Daemon, "a receiver's daemon": l.Host("h4").Daemon,
		"the agent of the sender's switch": l.Switch("torA").Agent, "the agent of the spine": l.Switch("spine").Agent,
	} {
		t.Run(name, func(t *testing.T) {
			res, err := m.ruin(t, func() {
				p.Kill()
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				if err := p.Start(ctx); err != nil {
					t.Error(err)
				}
			})
			if err != nil {
				t.Fatal(err)
			}
			if err := m.compare(t.Context(), res, m.to...); err != nil {
				t.Error(err)
			}
			info := ask[orders.GroupInfo](t, m.from, orders.Info, orders.Name{Name: m.name})
			t.Logf("%d operations, the longest took %v; formation %d by %s, %d members; %+v", res.Done, res.Max, info.Formation, info.Path, len(info.Members), m.events(t))
			if len(info.Members) != 3 {
				t.Errorf("members are %v", info.Members)
			}
		})
	}
	eventually(t, "the daemon knows the group again", 10*time.Second, func() bool {
		res, err := m.from.Groups(t.Context())
		return err == nil && len(res.GetGroups()) == 1
	})
	m.close(t)
	nothingLeft(t, l, 10*time.Second)
}

// An agent is stopped for a while, after it has announced that: the group continues without it, and
// a group closed meanwhile has been removed when it is back.
func TestNamespaceAgentStopped(t *testing.T) {
	hold := lab.Switch{Agent: "restart: {hold: 30s}\n"}
	l, m := ready(t, lab.Spec{Daemon: hasty, Switches: map[string]lab.Switch{"torA": hold, "spine": hold, "torB": hold}}, orders.CreateArgs{Mode: "require"})
	agent := l.Switch("torA").Agent
	res, err := m.ruin(t, func() {
		if err := agent.Stop(); err != nil {
			t.Error(err)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := m.compare(t.Context(), res, m.to...); err != nil {
		t.Error(err)
	}
	t.Logf("%d operations, the longest took %v; %+v", res.Done, res.Max, m.events(t))
	m.close(t)
	start(t, agent)
	nothingLeft(t, l, 15*time.Second)
}

// An agent is killed, and its neighbors route around its switch: the hosts there are cut off. The
// work continues with the remaining receivers, or fails with a clear error; nothing is left when
// the agent is back.
func TestNamespaceAgentKilled(t *testing.T) {
	l, m := ready(t, lab.Spec{Daemon: hasty}, orders.CreateArgs{})
	agent := l.Switch("torA").Agent
	res, err := m.ruin(t, agent.Kill)
	t.Logf("%d operations, the longest took %v; %v; %+v", res.Done, res.Max, err, m.events(t))
	if err == nil {
		err = m.compare(t.Context(), res, l.Host("h2"))
		if err != nil {
			t.Error(err)
		}
		m.close(t)
	}
	start(t, agent)
	nothingLeft(t, l, 15*time.Second)
}

func start(t *testing.T, p *lab.Process) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := p.Start(ctx); err != nil {
		t.Fatal(err)
	}
}
