package e2e

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/mcrdma/mcrdma/tests/e2e/lab"
	"github.com/mcrdma/mcrdma/tests/e2e/orders"
)

// dial makes the hosts' applications open their devices and connect to the daemons.
func dial(t *testing.T, hosts ...*lab.HostNode) {
	t.Helper()
	openDevices(t, hosts)
	dialOnly(t, hosts...)
}

// openDevices makes the hosts' applications open their devices, with options.
func openDevices(t *testing.T, hosts []*lab.HostNode, options ...string) {
	t.Helper()
	for _, h := range hosts {
		ask[orders.DeviceInfo](t, h, orders.OpenDevice, orders.DeviceArgs{Device: h.Device(options...)})
	}
}

// dialOnly connects applications that have opened their devices to the daemons.
func dialOnly(t *testing.T, hosts ...*lab.HostNode) {
	t.Helper()
	for _, h := range hosts {
		got := ask[orders.HostInfo](t, h, orders.Dial, orders.DialArgs{Socket: h.Socket, Program: "member"})
		if got.Host != h.Name || got.Address != h.Addr.String() {
			t.Errorf("the daemon of %s says that this is %+v", h.Name, got)
		}
	}
}

// listen offers a service at hosts.
func listen(t *testing.T, args orders.ListenArgs, hosts ...*lab.HostNode) {
	t.Helper()
	for _, h := range hosts {
		ask[any](t, h, orders.Listen, args)
	}
}

// others returns all hosts except one.
func others(l *lab.Lab, not *lab.HostNode) []*lab.HostNode {
	return slices.DeleteFunc(slices.Clone(l.Hosts), func(h *lab.HostNode) bool { return h == not })
}

func addrs(hosts []*lab.HostNode) (list []string) {
	for _, h := range hosts {
		list = append(list, h.Addr.String())
	}
	return list
}

// A team is a group with its sender and receivers.
type team struct {
	name string
	from *lab.HostNode
	to   []*lab.HostNode
	info orders.GroupInfo // when it was created
}

// gather creates a group.
func gather(t *testing.T, from *lab.HostNode, to []*lab.HostNode, args orders.CreateArgs) *team {
	t.Helper()
	args.Receivers = addrs(to)
	m := &team{name: args.Name, from: from, to: to}
	m.info = ask[orders.GroupInfo](t, from, orders.Create, args)
	return m
}

// on fails the test unless the group has that path.
func (m *team) on(t *testing.T, path string) *team {
	t.Helper()
	if m.info.Path != path {
		t.Fatalf("group %s goes by %s, want %s: %q", m.name, m.info.Path, path, m.info.Why)
	}
	return m
}

// work makes the group's sender do the work, and compares all replicas.
func (m *team) work(t *testing.T, args orders.WorkArgs) orders.WorkResult {
	t.Helper()
	res, err := m.try(t.Context(), args)
	if err != nil {
		t.Fatal(err)
	}
	if err := m.compare(t.Context(), res, m.to...); err != nil {
		t.Fatal(err)
	}
	return res
}

func (m *team) try(ctx context.Context, args orders.WorkArgs) (orders.WorkResult, error) {
	args.Name = m.name
	ctx, cancel := context.WithTimeout(ctx, 3*time.Minute)
	defer cancel()
	return lab.Ask[orders.WorkResult](ctx, m.from.Member, orders.Work, args)
}

// compare checks that receivers have exactly what was sent.
func (m *team) compare(ctx context.Context, res orders.WorkResult, receivers ...*lab.HostNode) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	for _, h := range receivers {
		got, err := lab.Ask[orders.ReplicaInfo](ctx, h.Member, orders.Replica, orders.ReplicaArgs{Group: m.info.ID, Count: res.Count})
		if err != nil {
			return err
		}
		if !slices.Equal(got.Regions, res.Regions) {
			return fmt.Errorf("group %s: regions at %s are %.8q, and not %.8q", m.name, h.Name, got.Regions, res.Regions)
		}
		if got.Count != res.Count || got.Messages != res.Messages {
			return fmt.Errorf("group %s: %s has got %d messages (%.8s), and not %d (%.8s)", m.name, h.Name, got.Count, got.Messages, res.Count, res.Messages)
		}
	}
	return nil
}

func (m *team) close(t *testing.T) {
	t.Helper()
	ask[any](t, m.from, orders.Close, orders.Name{Name: m.name})
}

// nothingLeft reads back from switches and daemons.
func nothingLeft(t *testing.T, l *lab.Lab, after time.Duration) {
	t.Helper()
	if err := l.CheckLeftovers(context.Background(), after); err != nil {
		t.Error(err)
	}
}

// wireBytes returns the bytes of one copy of the work on a link, by the headers of RoCEv2.
func wireBytes(args orders.WorkArgs, mtu int) (sum lab.TapCount, payload uint64) {
	extra := map[string]int{"write": 16, "writeimm": 20, "sendimm": 4}
	for i := range args.Count {
		kind := args.Kinds[i%len(args.Kinds)]
		size := args.Sizes[i/len(args.Kinds)%len(args.Sizes)]
		f := lab.Frames(size, mtu, extra[kind])
		sum.Frames += f.Frames
		sum.Bytes += f.Bytes
		payload += uint64(size)
	}
	return sum, payload
}

// tap counts what a host sends while f runs.
func tap(t *testing.T, h *lab.HostNode, f func()) (flows map[lab.TapFlow]lab.TapCount, other lab.TapCount) {
	t.Helper()
	return tapAt(t, h.Tap, f)
}

func tapAt(t *testing.T, open func() (*lab.Tap, error), f func()) (flows map[lab.TapFlow]lab.TapCount, other lab.TapCount) {
	t.Helper()
	x, err := open()
	if err != nil {
		t.Fatal(err)
	}
	func() {
		defer func() { flows, other, err = x.Stop() }()
		f()
	}()
	if err != nil {
		t.Error(err)
	}
	return flows, other
}

// total returns the sum of all flows to some hosts.
func total(flows map[lab.TapFlow]lab.TapCount, to []*lab.HostNode) (sum lab.TapCount) {
	for f, c := range flows {
		if slices.ContainsFunc(to, func(h *lab.HostNode) bool { return h.Addr == f.To }) {
			sum.Frames += c.Frames
			sum.Bytes += c.Bytes
		}
	}
	return sum
}
