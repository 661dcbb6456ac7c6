//go:build interop

package multicast

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/mcrdma/mcrdma/pkg/rocev2"
	"github.com/mcrdma/mcrdma/tests/e2e/lab"
	"github.com/mcrdma/mcrdma/tests/e2e/orders"
	"github.com/mcrdma/mcrdma/tests/interop/rxe/vm"
)

var (
	kinds = []string{"write", "sendimm", "send", "writeimm"}
	// sizes are around nothing, a word, the path MTU, and more.
	sizes = []int{0, 1, 3, 1023, 1024, 1025, 65_537, 1<<20 + 1}
	// each kind with each size
	everything = orders.WorkArgs{Kinds: kinds, Sizes: sizes, Count: len(kinds) * len(sizes), Depth: 8, Patience: 100_000}
	// The longest, of which a bad network and emulation make half a minute, is left to two kinds.
	most = orders.WorkArgs{Kinds: kinds, Sizes: sizes, Count: len(kinds)*(len(sizes)-1) + 2, Depth: 8, Patience: 100_000}
)

// A team is a group with its sender and receivers.
type team struct {
	*bed
	from  *lab.HostNode
	to    []*lab.HostNode
	info  orders.GroupInfo // when it was made
	ended bool             // its applications have ended
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

// gather starts applications, whose receivers offer a service.
func (b *bed) gather(t *testing.T, from string, to ...string) *team {
	t.Helper()
	m := &team{bed: b, from: b.Host(from)}
	for _, name := range to {
		m.to = append(m.to, b.Host(name))
	}
	t.Cleanup(func() {
		if t.Failed() {
			m.impair(vm.Impairment{})
			m.dismiss(t)
		}
	})
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
		ask[any](t, h, orders.Listen, service)
	}
	return m
}

// service is what receivers offer.
var service = orders.ListenArgs{Service: "s", Receives: 8, ReceiveSize: slices.Max(sizes)}

// form makes the group, which is to go that way.
func (m *team) form(t *testing.T, mode, path string) *team {
	t.Helper()
	args := orders.CreateArgs{Name: "g", Service: "s", Mode: mode, Regions: []uint64{1<<20 + 1, 2 << 20}}
	for _, h := range m.to {
		args.Receivers = append(args.Receivers, h.Addr.String())
	}
	m.info = ask[orders.GroupInfo](t, m.from, orders.Create, args)
	if m.info.Path != path || path == "switch" && m.info.MTU != 1024 {
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

// impair has the cables of all guests do so to packets, and returns what has happened
// since the last time on each, by the host's name.
func (m *team) impair(imp vm.Impairment) map[string]vm.Stats {
	each := map[string]vm.Stats{}
	for i, h := range m.Hosts {
		if g := m.guests[h.Name]; g != nil && g.vm != nil {
			imp.Seed = uint64(i + 1)
			each[h.Name] = g.vm.Impair(imp)
		}
	}
	return each
}

func sum(each map[string]vm.Stats) (all vm.Stats) {
	for _, s := range each {
		all.Frames += s.Frames
		all.Lost += s.Lost
		all.Corrupted += s.Corrupted
		all.SequenceNaks += s.SequenceNaks
		all.RNRNaks += s.RNRNaks
		all.Inward += s.Inward
		all.Wrong += s.Wrong
	}
	return all
}

// received is how many packets each kernel has taken: those whose ICRC is right.
func (m *team) received(t *testing.T) map[string]uint64 {
	t.Helper()
	each := map[string]uint64{}
	for _, h := range append(m.to, m.from) {
		if g := m.guests[h.Name]; g == nil || g.vm == nil {
			continue
		}
		n, ok := ask[map[string]uint64](t, h, orders.Counters, nil)["rcvd_pkts"]
		if !ok {
			t.Fatalf("the kernel of %s does not count what it receives", h.Name)
		}
		each[h.Name] = n
	}
	return each
}

// on has f be done on such a network, and checks that the kernels have dropped all whose ICRC was wrong: each has
// taken so many fewer than have come.
func (m *team) on(t *testing.T, imp vm.Impairment, f func()) map[string]vm.Stats {
	t.Helper()
	m.impair(imp)
	before := m.received(t)
	f()
	after := m.received(t)
	each := m.impair(vm.Impairment{})
	for name, n := range after {
		s := each[name]
		if n -= before[name]; n+s.Wrong > s.Inward {
			t.Errorf("%s has taken %d packets of %d, of which %d had a wrong ICRC", name, n, s.Inward, s.Wrong)
		}
	}
	return each
}

// frames is how many packets one copy of the work is.
func frames(args orders.WorkArgs) (n uint64) {
	for i := range args.Count {
		size := args.Sizes[i/len(args.Kinds)%len(args.Sizes)]
		n += uint64(max(1, (size+1023)/1024))
	}
	return n
}

// networks are what is tried. Corruption is loss to those that check, and rarer because
// that takes its time in emulation.
var networks = []vm.Impairment{{}, {Loss: 0.01}, {Corrupt: 0.003}}

// copied is how many packets the kernel of the sender's switch has copied.
func (m *team) copied(t *testing.T) uint64 {
	t.Helper()
	_, counts, err := m.from.ToR().Kernel(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return counts["Requests"]
}

// matrix has the sender send everything, on each network. The switches' kernels copy it.
func (m *team) matrix(t *testing.T, networks []vm.Impairment) {
	t.Helper()
	copied := m.copied(t)
	defer func() {
		if n := m.copied(t) - copied; (n > frames(everything)*9/10) != (m.info.Path == "switch") {
			t.Errorf("the kernel of %s has copied %d packets", m.from.ToR().Name, n)
		}
	}()
	for i, imp := range networks {
		args := everything
		if i > 0 {
			args = most
		}
		args.Seed = uint64(i)
		var res orders.WorkResult
		each := m.on(t, imp, func() { res = m.work(t, args) })
		st, own := sum(each), each[m.from.Name]
		t.Logf("%+v: %d operations, %d bytes in %v (p50 %v, longest %v); frames on the guests' cables: %+v; on the sender's: %+v; once: %d",
			imp, res.Done, res.Bytes, res.Took.Round(time.Millisecond), res.P50.Round(time.Millisecond), res.Max.Round(time.Millisecond),
			st, own, frames(args))
		if st.Frames == 0 || (st.Lost > 0) != (imp.Loss > 0) || (st.Corrupted > 0) != (imp.Corrupt > 0) {
			t.Errorf("the network did not do as told: %+v", st)
		}
		if i == 0 && m.info.Path == "switch" && m.guests[m.from.Name] != nil && own.Frames > 2*frames(args) {
			t.Errorf("%d frames on the sender's cable, and one copy has %d", own.Frames, frames(args))
		}
	}
}

// spoils has the switches corrupt packets: of each opcode one before it is copied, and one copy behind that, and an
// answer behind the merging. As long as that is so, the switches themselves copy all packets. Copies go on as they are: it is their receivers that drop them, and then get them again.
func (m *team) spoils(t *testing.T) {
	t.Helper()
	from, first := m.from.Addr, netip.MustParseAddr(m.info.Members[0]) // whose address packets have until they are copied
	at := map[*lab.SwitchNode][]lab.Fault{}
	copies := map[string]uint64{} // that are corrupted, by receiver
	add := func(n *lab.SwitchNode, f lab.Fault) { at[n] = append(at[n], f) }
	add(m.from.ToR(), lab.Fault{Out: true, Src: first, Dst: from, Opcode: rocev2.Acknowledge, First: 1})
	for op := rocev2.SendFirst; op <= rocev2.WriteOnlyImm; op++ {
		add(m.from.ToR(), lab.Fault{Src: from, Dst: first, Opcode: op, First: 1})
		h := m.to[int(op)%len(m.to)]
		add(h.ToR(), lab.Fault{Out: true, Src: from, Dst: h.Addr, Opcode: op, First: 3})
		copies[h.Name]++
	}
	copied := m.copied(t)
	var there []*lab.Faults
	for n, list := range at {
		f, err := n.Corrupt(t.Context(), list)
		if err != nil {
			t.Fatal(err)
		}
		there = append(there, f)
	}
	args := orders.WorkArgs{Kinds: kinds, Sizes: []int{0, 1, 1023, 1025, 4095, 4096}, Depth: 8, Seed: 11, Patience: 100_000}
	args.Count = 2 * len(args.Kinds) * len(args.Sizes)
	var res orders.WorkResult
	each := m.on(t, vm.Impairment{}, func() { res = m.work(t, args) })
	t.Logf("corrupted in switches: %d operations in %v (longest %v); on the guests' cables: %+v", res.Done, res.Took.Round(time.Millisecond),
		res.Max.Round(time.Millisecond), each)
	if n := m.copied(t) - copied; n > 0 {
		t.Errorf("beside rules of fault injection the kernel has copied %d packets", n)
	}
	for name, s := range each {
		if _, receives := copies[name]; receives && s.Wrong <= copies[name] {
			t.Errorf("%d packets with a wrong ICRC have come to %s, of which %d are copies that were corrupted for it alone", s.Wrong, name, copies[name])
		}
	}
	for _, f := range there {
		missing, err := f.Missing(t.Context())
		if err = errors.Join(err, f.Close(t.Context())); err != nil || len(missing) > 0 {
			t.Errorf("switches have not corrupted %+v: %v", missing, err)
		}
	}
}

// close ends the group and the applications, which must find that all is in order.
func (m *team) close(t *testing.T) {
	ask[any](t, m.from, orders.Close, orders.Name{Name: "g"})
	m.nothingLeft(t)
	m.dismiss(t)
}

// dismiss ends the applications.
func (m *team) dismiss(t *testing.T) {
	if m.ended {
		return
	}
	m.ended = true
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for _, h := range append(m.to, m.from) {
		var err error
		if g := m.guests[h.Name]; g == nil {
			err = errors.Join(h.Member.Stop(), h.NewMember(ctx))
		} else if g.vm != nil && g.member != nil {
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
			Sizes: []int{1, 1023, 1025, 8000, 65_537}, Millis: 5000, Depth: 8, Seed: 7, Patience: 90_000})
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
	rest := m.but(victim.host)
	m.compare(t, o.res, rest)
	after := ask[orders.GroupInfo](t, m.from, orders.Info, orders.Name{Name: "g"})
	t.Logf("%s killed: %d operations, %d bytes in %v (p50 %v, longest %v); formation %d, by %s, %d members; events: %+v", name, o.res.Done, o.res.Bytes,
		o.res.Took.Round(time.Millisecond), o.res.P50.Round(time.Millisecond), o.res.Max.Round(time.Millisecond),
		after.Formation, after.Path, len(after.Members), events)
	if len(after.Members) != len(rest) || after.Path != m.info.Path {
		t.Errorf("afterwards the members are %q, by %s", after.Members, after.Path)
	}
	removed(t, events, victim.host)
}

// refuses has one receiver offer receives that are too short for what comes.
func (m *team) refuses(t *testing.T, name string) {
	one := m.Host(name)
	ask[any](t, one, orders.Unlisten, orders.Name{Name: service.Service})
	short := service
	short.ReceiveSize = 3000
	ask[any](t, one, orders.Listen, short)
	m.form(t, "require", "switch")
	args := orders.WorkArgs{Name: "g", Kinds: []string{"write", "send"}, Sizes: []int{3000, 3001, 1}, Count: 12, Depth: 4, Seed: 3}
	start := time.Now()
	res, err := lab.Ask[orders.WorkResult](t.Context(), m.from.Member, orders.Work, args)
	events := ask[[]orders.Event](t, m.from, orders.Events, orders.Name{Name: "g"})
	t.Logf("after %v: %+v", time.Since(start).Round(time.Millisecond), events)
	if err != nil {
		t.Fatal(err)
	}
	m.compare(t, res, m.but(one))
	removed(t, events, one)
	if got := ask[orders.ReplicaInfo](t, one, orders.Replica, orders.ReplicaArgs{Group: m.info.ID}); got.Open || got.Count != 1 {
		t.Errorf("%s has got %d messages, and not the one before that which was too long; it ended with %q", name, got.Count, got.Ended)
	} else {
		t.Logf("%s ended with %q", name, got.Ended)
	}
}

// fences has one receiver leave while its cable holds back what was written, which reaches it a second
// after it has left, and changes nothing.
func (m *team) fences(t *testing.T, name string) {
	one := m.Host(name)
	done := make(chan error, 1)
	go func() {
		_, err := lab.Ask[orders.WorkResult](t.Context(), m.from.Member, orders.Work, orders.WorkArgs{Name: "g", Kinds: []string{"write"},
			Sizes: []int{65_537}, Millis: 5000, Depth: 8, Seed: 9, Patience: 90_000})
		done <- err
	}()
	cable := m.guests[name].vm
	cable.Impair(vm.Impairment{Hold: true})
	time.Sleep(200 * time.Millisecond) // of writes that are held back
	ask[any](t, one, orders.Leave, orders.Name{Name: m.info.ID})
	regions := func(h *lab.HostNode) []string {
		return ask[orders.ReplicaInfo](t, h, orders.Replica, orders.ReplicaArgs{Group: m.info.ID}).Regions
	}
	before := regions(one)
	time.Sleep(time.Second)
	held := cable.Impair(vm.Impairment{}).Held
	time.Sleep(time.Second)
	if after := regions(one); !slices.Equal(before, after) {
		t.Errorf("%s has left with %.8q, and has %.8q after %d late frames", name, before, after, held)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	t.Logf("%d frames came late", held)
	if held == 0 || slices.Equal(before, regions(m.but(one)[0])) {
		t.Errorf("nothing could have changed: %d frames were held back", held)
	}
}

// but returns all receivers but one.
func (m *team) but(one *lab.HostNode) []*lab.HostNode {
	return slices.DeleteFunc(slices.Clone(m.to), func(h *lab.HostNode) bool { return h == one })
}

func removed(t *testing.T, events []orders.Event, h *lab.HostNode) {
	t.Helper()
	if !slices.ContainsFunc(events, func(e orders.Event) bool { return e.Type == "removed" && e.Address == h.Addr.String() }) {
		t.Errorf("no event says that %s was removed: %+v", h.Name, events)
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
	var wg sync.WaitGroup
	defer wg.Wait()
	for _, g := range b.guests {
		if g.vm != nil {
			wg.Go(func() {
				if err := g.nothingLeft(ctx, 10*time.Second); err != nil {
					t.Errorf("daemon of %s: %v", g.host.Name, err)
				}
			})
		}
	}
}

// The hosts relay, kernel to kernel: what groups fall back to where switches can't.
func TestKernelsRelay(t *testing.T) {
	m := getBed(t, "h1", "h2", "h3", "h4").gather(t, "h1", "h2", "h3", "h4").form(t, "off", "relay")
	m.matrix(t, networks[:1])
	m.close(t)
}

// The kernel sends: its data is replicated to three other kernels in two racks, and it
// gets one answer for all.
func TestKernelSends(t *testing.T) {
	m := getBed(t, "h1", "h2", "h3", "h4").gather(t, "h1", "h2", "h3", "h4").form(t, "require", "switch")
	m.matrix(t, networks)
	m.spoils(t)
	m.loses(t, "h4")
	m.close(t)
}

// A kernel refuses a message: its receive is too short. The sender, softroce or another
// kernel, learns it from the merged answers, and the group goes on without that one.
func TestKernelRefuses(t *testing.T) {
	b := getBed(t, "h1", "h2", "h3")
	t.Run("softroce", func(t *testing.T) {
		m := b.gather(t, "h4", "h1", "h2", "h3")
		m.refuses(t, "h1")
		m.close(t)
	})
	t.Run("another kernel", func(t *testing.T) {
		m := b.gather(t, "h1", "h2", "h3", "h4")
		m.refuses(t, "h3")
		m.close(t)
	})
}

// A kernel's member leaves: no byte changes afterward, whatever the network still holds.
func TestKernelFence(t *testing.T) {
	m := getBed(t, "h1", "h2", "h3").gather(t, "h4", "h1", "h2", "h3").form(t, "require", "switch")
	m.work(t, orders.WorkArgs{Kinds: kinds, Sizes: []int{65_537}, Count: len(kinds), Depth: 4, Seed: 1, Patience: 90_000})
	m.fences(t, "h1")
	m.close(t)
}

// Three kernels receive what softroce sends.
func TestKernelsReceive(t *testing.T) {
	m := getBed(t, "h1", "h2", "h3").gather(t, "h4", "h1", "h2", "h3").form(t, "require", "switch")
	m.matrix(t, networks)
	m.spoils(t)
	m.loses(t, "h2")
	m.close(t)
}
