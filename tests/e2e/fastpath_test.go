package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/mcrdma/mcrdma/internal/testenv"
	"github.com/mcrdma/mcrdma/tests/e2e/lab"
	"github.com/mcrdma/mcrdma/tests/e2e/orders"
)

// fastLab is a lab whose switches forward most packets in the kernel.
func fastLab(t *testing.T) *lab.Lab {
	embeddedOnly(t, "bmv2 has no fast path")
	neutral := lab.Switch{Agent: "icrc: neutral\n"}
	l := startLab(t, lab.Spec{FastPath: true, MTU: 2200,
		Switches: map[string]lab.Switch{"torA": neutral, "spine": neutral, "torB": neutral}})
	for _, n := range l.Switches {
		if strings.Contains(n.Switch.Log(), "there is no fast path") {
			testenv.Skip(t, "%s: %s", n.Name, n.Switch.Log())
		}
		eventually(t, n.Name+" has a fast path", 30*time.Second, func() bool {
			status, _ := kernelOf(t, n)
			return strings.HasPrefix(status, "xdp")
		})
	}
	return l
}

// kernelOf makes a switch log where packets are processed, and the kernel's counters.
func kernelOf(t *testing.T, n *lab.SwitchNode) (status string, counts map[string]uint64) {
	t.Helper()
	status, counts, err := n.Kernel(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return status, counts
}

// With the fast path, the kernel forwards the packets of a group. Other groups are created and
// closed meanwhile; a receiver and a switch are killed.
func TestNamespaceFastPath(t *testing.T) {
	l := fastLab(t)
	dial(t, l.Hosts...)
	h1, torA := l.Host("h1"), l.Switch("torA")
	to := others(l, h1)
	listen(t, small, l.Hosts...)
	m := gather(t, h1, to, orders.CreateArgs{Name: "g", Service: "small", Mode: "require", Regions: []uint64{1 << 20}}).on(t, "switch")
	_, before := kernelOf(t, torA)
	args := orders.WorkArgs{Kinds: allKinds, Sizes: smallSizes, Count: 480, Depth: 16, Seed: 1}
	flows, _ := tap(t, h1, func() { m.work(t, args) })
	sent := total(flows, to)
	_, now := kernelOf(t, torA)
	t.Logf("h1 sent %d frames; torA before %v, now %v", sent.Frames, before, now)
	got, copies := now["Requests"]-before["Requests"], now["Copies"]-before["Copies"]
	if got > sent.Frames || got < sent.Frames*9/10 { // a queue on the path may overflow, and then more frames are sent
		t.Errorf("the kernel copied %d packets of %d", got, sent.Frames)
	}
	if copies != 2*got && now["Updates"] == before["Updates"] || now["Answers"] == before["Answers"] {
		t.Errorf("copies and answers: before %v, now %v", before, now)
	}

	// Receivers' kernels coalesce the packets of a message: copies keep the order of their
	// identifications.
	received := func(h *lab.HostNode) (packets, messages uint64) {
		c := ask[map[string]uint64](t, h, orders.Counters, nil)
		return c["rx_packets"], c["rx_messages"]
	}
	var packets, messages [3]uint64
	for i, h := range to {
		packets[i], messages[i] = received(h)
	}
	m.work(t, orders.WorkArgs{Kinds: []string{"write"}, Sizes: []int{1 << 19}, Count: 64, Depth: 2, Seed: 2})
	for i, h := range to {
		p, m := received(h)
		p, m = p-packets[i], m-messages[i]
		t.Logf("%s got %d packets in %d messages", h.Name, p, m)
		if p < 8*m {
			t.Errorf("%s got %d packets in %d messages", h.Name, p, m)
		}
	}

	// Groups are created and closed next to one with traffic, of which a receiver is killed.
	h3 := l.Host("h3")
	res, err := m.ruin(t, func() {
		for i := range 10 {
			x := gather(t, l.Host("h2"), []*lab.HostNode{h1, l.Host("h4")}, orders.CreateArgs{Name: fmt.Sprint("x", i), Service: "small", Mode: "require", Regions: []uint64{1 << 20}}).on(t, "switch")
			x.work(t, orders.WorkArgs{Kinds: allKinds, Sizes: smallSizes, Count: 48, Depth: 8, Seed: uint64(i)})
			x.close(t)
		}
		h3.Member.Kill()
	})
	if err != nil {
		t.Fatal(err)
	}
	_, now = kernelOf(t, torA)
	t.Logf("%d operations, the longest took %v; torA %v", res.Done, res.Max, now)
	if err := m.compare(t.Context(), res, l.Host("h2"), l.Host("h4")); err != nil {
		t.Error(err)
	}
	m.told(t, "removed", h3)
	m.workFor(t, 100, l.Host("h2"), l.Host("h4"))
	m.close(t)

	// A switch is killed: its programs end with it. It is restarted, and with it the fast path. No
	// group waits for that: it takes longer than a host may be silent.
	torA.Switch.Kill()
	for _, port := range []string{"swp1", "swp2", "swp9"} {
		if there, err := torA.Space.HasXDP(port); err != nil || there {
			t.Errorf("%s has an XDP program after the switch was killed: %v, %v", port, there, err)
		}
	}
	start(t, torA.Switch)
	if there, err := torA.Space.HasXDP("swp1"); err != nil || !there {
		t.Errorf("what is there is not seen: %v, %v", there, err)
	}
	eventually(t, "torA has its tables again", 30*time.Second, func() bool {
		status, _ := kernelOf(t, torA)
		return strings.HasPrefix(status, "xdp")
	})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for _, h := range to {
		if err := h1.Reach(ctx, h.Addr); err != nil {
			t.Error(err)
		}
	}
	again := gather(t, h1, []*lab.HostNode{l.Host("h2"), l.Host("h4")}, orders.CreateArgs{Name: "again", Service: "small", Mode: "require", Regions: []uint64{1 << 20}}).on(t, "switch")
	again.work(t, args)
	if status, now := kernelOf(t, torA); now["Requests"] == 0 {
		t.Errorf("after the restart the kernel copies nothing: %s, %v", status, now)
	}
	again.close(t)

	// A host's interface stops accepting frames from the kernel during traffic, and later accepts
	// them again. The switch notices before the host counts as dead.
	for _, gro := range []bool{false, true} {
		x := gather(t, h1, []*lab.HostNode{l.Host("h2"), l.Host("h4")}, orders.CreateArgs{Name: fmt.Sprint("gro", gro), Service: "small", Mode: "require", Regions: []uint64{1 << 20}}).on(t, "switch")
		res, err := x.ruin(t, func() {
			if err := l.Host("h4").Space.SetGRO("eth0", gro); err != nil {
				t.Error(err)
			}
			eventually(t, "torB has noticed", 10*time.Second, func() bool {
				status, _ := kernelOf(t, l.Switch("torB"))
				return strings.HasPrefix(status, "xdp") == gro
			})
		})
		if err == nil {
			err = x.compare(t.Context(), res, l.Host("h2"), l.Host("h4"))
		}
		if info := ask[orders.GroupInfo](t, h1, orders.Info, orders.Name{Name: x.name}); err != nil || len(info.Members) != 2 || info.Formation != 1 {
			t.Errorf("%+v, %v", info, err)
		}
		t.Logf("GRO %v: %d operations, the longest took %v", gro, res.Done, res.Max)
		x.close(t)
	}
	nothingLeft(t, l, 15*time.Second)
	if err := torA.Switch.Stop(); err != nil {
		t.Error(err)
	}
	if there, err := torA.Space.HasXDP("swp1"); err != nil || there {
		t.Errorf("swp1 has an XDP program after the switch ended: %v, %v", there, err)
	}
}

// At full rate, no receiver is removed, and where nothing is lost everything arrives in order: no
// packet overtakes another in a switch or in a host's kernel, also while other groups are created
// and closed; and packets that receivers' kernels have coalesced are split again.
func TestNamespaceFastPathOrder(t *testing.T) {
	l := fastLab(t)
	dial(t, l.Hosts...)
	h1 := l.Host("h1")
	to := others(l, h1)
	listen(t, small, l.Hosts...)
	m := gather(t, h1, to, orders.CreateArgs{Name: "g", Service: "small", Mode: "require", Regions: []uint64{1 << 20, 1 << 20}}).on(t, "switch")
	const beside = 3 // the seed of the work during which other groups are created and closed
	for _, args := range []orders.WorkArgs{
		{Kinds: []string{"write"}, Sizes: []int{8 << 10}, Count: 10000, Depth: 64, Seed: 1},
		{Kinds: []string{"write", "writeimm"}, Sizes: []int{64, 100}, Count: 20000, Depth: 16, Seed: 2},
		{Kinds: []string{"write"}, Sizes: []int{8 << 10}, Count: 40000, Depth: 64, Seed: beside},
	} {
		before := countersOf(t, l)
		done := make(chan error, 1)
		go func() {
			res, err := m.try(t.Context(), args)
			if err == nil {
				err = m.compare(t.Context(), res, to...)
			}
			done <- err
		}()
		for n := 0; args.Seed == beside && len(done) == 0; n++ {
			gather(t, l.Host("h2"), []*lab.HostNode{h1, l.Host("h4")}, orders.CreateArgs{Name: fmt.Sprint("x", n), Service: "small", Mode: "require", Regions: []uint64{1 << 20}}).
				on(t, "switch").close(t)
		}
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		now := countersOf(t, l)
		grown := func(h *lab.HostNode, name string) uint64 { return now[h.Name][name] - before[h.Name][name] }
		for _, h := range to {
			if n := grown(h, "rx_drop_icrc"); n > 0 {
				t.Errorf("%v: %s has dropped %d packets for their ICRC", args.Sizes, h.Name, n)
			}
			lost := grown(h1, "tx_packets") - grown(h, "rx_packets")
			t.Logf("%v: %s: %d of %d packets are lost, %d NAKs", args.Sizes, h.Name, lost, grown(h1, "tx_packets"), grown(h, "rc_naks_sent"))
			if n := grown(h, "rc_naks_sent"); lost == 0 && n > 0 {
				t.Errorf("%v: nothing is lost, and %s has sent %d NAKs", args.Sizes, h.Name, n)
			}
		}
	}
	if info := ask[orders.GroupInfo](t, h1, orders.Info, orders.Name{Name: "g"}); len(info.Members) != len(to) || info.Formation != 1 {
		t.Errorf("%+v", info)
	}
	m.close(t)
}

// countersOf returns the counters of all hosts' devices.
func countersOf(t *testing.T, l *lab.Lab) map[string]map[string]uint64 {
	t.Helper()
	all := map[string]map[string]uint64{}
	for _, h := range l.Hosts {
		all[h.Name] = ask[map[string]uint64](t, h, orders.Counters, struct{}{})
	}
	return all
}
