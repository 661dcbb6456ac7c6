//go:build interop

package multicast

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/mcrdma/mcrdma/tests/e2e/lab"
	"github.com/mcrdma/mcrdma/tests/e2e/orders"
	"github.com/mcrdma/mcrdma/tests/interop/rxe/vm"
)

var (
	kinds = []string{"write", "writeimm", "send", "sendimm"}
	// sizes are around nothing, a word, the path MTU, and more.
	sizes = []int{0, 1, 3, 1023, 1024, 1025, 65_537, 1<<20 + 1}
	// each kind with each size
	matrix = orders.WorkArgs{Kinds: kinds, Sizes: sizes, Count: len(kinds) * len(sizes), Depth: 8, Patience: 100_000}
)

// A team is a group with its sender and receivers.
type team struct {
	*bed
	from *lab.HostNode
	to   []*lab.HostNode
	info orders.GroupInfo // when it was made
}

// ask gives an order to a host's application, and fails the test on an error.
func ask[T any](t *testing.T, h *lab.HostNode, order string, args any) T {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	res, err := lab.Ask[T](ctx, h.Member, order, args)
	if err != nil {
		t.Fatal(err)
	}
	return res
}

// gather makes a group that goes by switches.
func (b *bed) gather(t *testing.T, from string, to ...string) *team {
	t.Helper()
	m := &team{bed: b, from: b.Host(from)}
	args := orders.CreateArgs{Name: "g", Service: "s", Mode: "require", Regions: []uint64{1<<20 + 1, 2 << 20}}
	for _, name := range to {
		h := b.Host(name)
		m.to = append(m.to, h)
		args.Receivers = append(args.Receivers, h.Addr.String())
	}
	for _, h := range append(m.to, m.from) {
		dev := "softroce:" + h.Addr.String()
		if g := b.guests[h.Name]; g != nil {
			dev = device
			if err := g.employ(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if got := ask[orders.DeviceInfo](t, h, orders.OpenDevice, orders.DeviceArgs{Device: dev}).MTU; got != 1024 {
			t.Errorf("%s at %s has a path MTU of %d", dev, h.Name, got)
		}
		ask[orders.HostInfo](t, h, orders.Dial, orders.DialArgs{Socket: h.Socket, Program: "member"})
	}
	for _, h := range m.to {
		ask[any](t, h, orders.Listen, orders.ListenArgs{Service: "s", Receives: 8, ReceiveSize: slices.Max(sizes)})
	}
	m.info = ask[orders.GroupInfo](t, m.from, orders.Create, args)
	if m.info.Path != "switch" || m.info.MTU != 1024 {
		t.Fatalf("the group goes by %s with an MTU of %d: %q", m.info.Path, m.info.MTU, m.info.Why)
	}
	t.Logf("made in %v: %q; tree:", m.info.Took.Round(time.Millisecond), m.info.Why)
	for _, line := range m.info.Tree {
		t.Log(line)
	}
	return m
}

// work has the sender do it, and compares what the receivers have.
func (m *team) work(t *testing.T, args orders.WorkArgs) orders.WorkResult {
	t.Helper()
	args.Name = "g"
	res := ask[orders.WorkResult](t, m.from, orders.Work, args)
	m.compare(t, res, m.to)
	return res
}

// compare checks that receivers have exactly what was sent. The hashes are made where
// the data is.
func (m *team) compare(t *testing.T, res orders.WorkResult, to []*lab.HostNode) {
	t.Helper()
	for _, h := range to {
		got := ask[orders.ReplicaInfo](t, h, orders.Replica, orders.ReplicaArgs{Group: m.info.ID, Count: res.Count, Millis: 30_000})
		if !slices.Equal(got.Regions, res.Regions) {
			t.Errorf("regions at %s are %.8q, and not %.8q", h.Name, got.Regions, res.Regions)
		}
		if got.Count != res.Count || got.Messages != res.Messages {
			t.Errorf("%s has got %d messages (%.8s), and not %d (%.8s)", h.Name, got.Count, got.Messages, res.Count, res.Messages)
		}
	}
}

// impair has the cables of all guests lose packets, and returns what happened since
// the last time.
func (b *bed) impair(loss float64) (sum vm.Stats) {
	for i, h := range b.Hosts {
		if g := b.guests[h.Name]; g != nil && g.vm != nil {
			s := g.vm.Impair(vm.Impairment{Loss: loss, Seed: uint64(i + 1)})
			sum.Frames += s.Frames
			sum.Lost += s.Lost
			sum.SequenceNaks += s.SequenceNaks
			sum.RNRNaks += s.RNRNaks
		}
	}
	return sum
}

// all is what is asked of each group.
func (m *team) all(t *testing.T, victim string) {
	for _, loss := range []float64{0, 0.01} {
		m.impair(loss)
		args := matrix
		args.Seed = uint64(1 + loss*100)
		res := m.work(t, args)
		st := m.impair(0)
		t.Logf("loss %v%%: %d operations, %d bytes in %v (p50 %v, longest %v); on the guests' cables: %+v", loss*100, res.Done, res.Bytes,
			res.Took.Round(time.Millisecond), res.P50.Round(time.Millisecond), res.Max.Round(time.Millisecond), st)
		if st.Frames == 0 || (st.Lost > 0) != (loss > 0) {
			t.Errorf("the network did not do as told: %+v", st)
		}
	}
	m.loses(t, victim)
	ask[any](t, m.from, orders.Close, orders.Name{Name: "g"})
	m.nothingLeft(t)
	m.dismiss(t)
}

// dismiss ends the applications, which must find that all is in order.
func (m *team) dismiss(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for _, h := range append(m.to, m.from) {
		var err error
		if g := m.guests[h.Name]; g == nil {
			err = errors.Join(h.Member.Stop(), h.NewMember(ctx))
		} else if g.vm != nil {
			err = g.dismiss(ctx)
		}
		if err != nil {
			t.Error(err)
		}
	}
}

// loses has one receiver's guest die while the group is at work, which goes on with
// the others.
func (m *team) loses(t *testing.T, name string) {
	victim := m.guests[name]
	type outcome struct {
		res orders.WorkResult
		err error
	}
	done := make(chan outcome, 1)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Second)
	defer cancel()
	go func() {
		res, err := lab.Ask[orders.WorkResult](ctx, m.from.Member, orders.Work, orders.WorkArgs{Name: "g", Kinds: kinds,
			Sizes: []int{1, 1023, 1025, 8000, 65_537}, Millis: 8000, Depth: 8, Seed: 7, Patience: 90_000})
		done <- outcome{res, err}
	}()
	before := ask[orders.GroupInfo](t, m.from, orders.Info, orders.Name{Name: "g"})
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		if ask[orders.GroupInfo](t, m.from, orders.Info, orders.Name{Name: "g"}).Bytes > before.Bytes+1<<18 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the work does not go on")
		}
	}
	if err := victim.kill(); err != nil {
		t.Fatal(err)
	}
	o := <-done
	events := ask[[]orders.Event](t, m.from, orders.Events, orders.Name{Name: "g"})
	if o.err != nil {
		t.Fatalf("%v; events: %+v", o.err, events)
	}
	rest := slices.DeleteFunc(slices.Clone(m.to), func(h *lab.HostNode) bool { return h == victim.host })
	m.compare(t, o.res, rest)
	after := ask[orders.GroupInfo](t, m.from, orders.Info, orders.Name{Name: "g"})
	t.Logf("%s killed: %d operations, %d bytes in %v (p50 %v, longest %v); formation %d, by %s, %d members; events: %+v", name, o.res.Done, o.res.Bytes,
		o.res.Took.Round(time.Millisecond), o.res.P50.Round(time.Millisecond), o.res.Max.Round(time.Millisecond),
		after.Formation, after.Path, len(after.Members), events)
	if len(after.Members) != len(rest) || after.Path != "switch" {
		t.Errorf("afterwards the members are %q, by %s", after.Members, after.Path)
	}
	if !slices.ContainsFunc(events, func(e orders.Event) bool { return e.Type == "removed" && e.Address == victim.host.Addr.String() }) {
		t.Errorf("nobody said that %s was removed: %+v", name, events)
	}
}

// nothingLeft reads back from switches and daemons.
func (b *bed) nothingLeft(t *testing.T) {
	t.Helper()
	if err := b.CheckLeftovers(context.Background(), 10*time.Second); err != nil {
		t.Error(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for _, g := range b.guests {
		if g.vm == nil {
			continue
		}
		left, err := g.left(ctx)
		for deadline := time.Now().Add(10 * time.Second); len(left) > 0 && err == nil && time.Now().Before(deadline); time.Sleep(100 * time.Millisecond) {
			left, err = g.left(ctx)
		}
		if err == nil {
			err = describe(left)
		}
		if err != nil {
			t.Error(fmt.Errorf("daemon of %s: %w", g.host.Name, err))
		}
	}
}

// The kernel sends: its data is replicated to three other kernels in two racks, and it
// gets one answer for all.
func TestKernelSends(t *testing.T) {
	b := getBed(t, "h1", "h2", "h3", "h4")
	b.gather(t, "h1", "h2", "h3", "h4").all(t, "h4")
}

// Three kernels receive what softroce sends.
func TestKernelsReceive(t *testing.T) {
	b := getBed(t, "h1", "h2", "h3")
	b.gather(t, "h4", "h1", "h2", "h3").all(t, "h2")
}

func TestOne(t *testing.T) {
	b := getBed(t, "h3")
	b.gather(t, "h1", "h2", "h3", "h4").all(t, "h3")
}
