package fastpath

import (
	"bytes"
	"fmt"
	"log/slog"
	"maps"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/mcrdma/mcrdma/internal/softswitch/match"
	"github.com/mcrdma/mcrdma/internal/softswitch/pipeline"
	"github.com/mcrdma/mcrdma/internal/softswitch/pre"
	"github.com/mcrdma/mcrdma/internal/testenv"
	"github.com/mcrdma/mcrdma/pkg/rocev2"
	"github.com/mcrdma/mcrdma/tests/dataplane"
)

// A wired switch has four hosts on wires, a group, and the kernel at its ports. Packets that climb are lost.
type wired struct {
	testing.TB
	*dataplane.Switch
	*Fast
	wires *dataplane.Wires
	group dataplane.Group
}

const (
	hosts   = 4
	xdpPass = 2
)

func newWired(t *testing.T) *wired {
	t.Helper()
	w := newWiredTo(t, hosts)
	w.Install(w.group)
	w.Loaded(w.Pipeline, w.PRE)
	if w.Status() != whole {
		t.Fatal(w.Status())
	}
	return w
}

// newWiredTo has that many hosts and nothing of the group.
func newWiredTo(t *testing.T, hosts int) *wired {
	t.Helper()
	w := &wired{TB: t, wires: dataplane.NewWires(t, hosts, xdpPass), group: still(7)}
	w.start(t)
	return w
}

// start puts the kernel at the ports of a switch that has its wires.
func (w *wired) start(t *testing.T) {
	t.Helper()
	start := time.Now()
	c := Config{Now: func() time.Duration { return time.Since(start) }, Log: slog.New(slog.NewTextHandler(t.Output(), nil))}
	for n, index := range w.wires.Ports {
		c.Ports = append(c.Ports, Port{Number: uint16(n), Name: fmt.Sprintf("s%d", n), Index: int(index)}) //nolint:gosec // few
	}
	var err error
	if w.Fast, err = New(c); err != nil {
		testenv.Skip(t, "%v", err)
	}
	t.Cleanup(func() {
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	})
	if w.Switch, err = dataplane.NewRack(); err != nil {
		t.Fatal(err)
	}
	w.SetICRC(dataplane.Neutral)
}

// whole is the status when nothing is left to the switch itself.
const whole = "xdp at 4 ports: unicast, answers, requests to all groups (1)"

// TestVethStatus: the status says what the kernel does not process, and why; the log says it when the ICRC's mode changes, too.
func TestVethStatus(t *testing.T) {
	w := newWired(t)
	var log bytes.Buffer
	w.log = slog.New(slog.NewTextHandler(&log, nil))
	says := func(want string) {
		t.Helper()
		w.Changed()
		if got := w.Status(); got != want {
			t.Errorf("%s; expected %s", got, want)
		}
	}
	w.SetICRC(dataplane.CheckOff)
	says("xdp at 4 ports: unicast, answers; the switch itself: requests to groups, since the ICRC's mode is not neutral")
	w.SetICRC(dataplane.Recompute)
	says("xdp at 4 ports: unicast but for RoCE's requests, answers; the switch itself: RoCE's requests, of groups too, since the ICRC's mode is not neutral")
	w.SetICRC(dataplane.Neutral)
	moved := w.group
	moved.Index, moved.MCID, moved.SenderQPN, moved.Targets = 8, moved.MCID+1, moved.SenderQPN+1, nil // regions whose addresses change
	w.Install(moved)
	says("xdp at 4 ports: unicast, answers, requests to 1 of 2 groups; the switch itself: requests to the others, of which some copy needs its ICRC computed anew or shares its port with another")
	w.rules(true)
	says("off: 1 rules of fault injection")
	w.rules(false)
	w.SetICRC(dataplane.CheckOff)
	w.Changed()
	log.Reset()
	w.SetICRC(dataplane.Neutral)
	w.Changed()
	w.Changed()
	if n := strings.Count(log.String(), "fast path"); n != 1 || !strings.Contains(log.String(), "1 of 2 groups") {
		t.Errorf("%d lines: %s", n, log.String())
	}
}

// TestVethLong: a frame of more than a page climbs whole.
func TestVethLong(t *testing.T) {
	w := newWired(t)
	long := w.group.Data(rocev2.SendOnly, 1, make([]byte, 8000)).Frame()
	w.wires.Send(t, 1, long)
	w.wires.Send(t, 1, w.group.Data(rocev2.SendOnly, 2, make([]byte, 3000)).Frame())
	w.until("copies", func(s Stats) uint64 { return s.Copies }, 3)
	if got := w.wires.Climbs(1, 0); !bytes.Equal(got, long) {
		t.Errorf("%d bytes climb, expected %d", len(got), len(long))
	}
}

// TestVethFloods: answers to a MAC that the bridge does not know are merged in the kernel, and go to its other ports, as many times as there are such
// answers; where nothing is bridged they are dropped. Who answers to a MAC that no host has disturbs no other.
func TestVethFloods(t *testing.T) {
	w := newWired(t)
	unknown := func(i int, psn rocev2.PSN) {
		t.Helper()
		p := w.group.Answer(i, rocev2.AckNoLimit, psn, uint32(psn))
		p.Eth.Dst = dataplane.HostMAC(9)
		s := w.Stats()
		w.wires.Send(t, w.group.Receivers[i], p.Frame())
		w.until("answers", func(now Stats) uint64 { return now.Answers + now.Dropped }, s.Answers+s.Dropped+1)
		w.looks(whole)
	}
	come := func(want ...int) {
		t.Helper()
		for host := 1; host <= hosts; host++ {
			if f := w.wires.Next(host, unix.MSG_DONTWAIT); (f != nil) != slices.Contains(want, host) {
				t.Errorf("host %d: % x", host, f)
			} else if p, err := (dataplane.Frame{Data: f}).Parse(); f != nil && (err != nil || p.Eth.Dst != dataplane.HostMAC(9) || p.H.DestQP != w.group.SenderQPN ||
				!(dataplane.Frame{Data: f}).GoodICRC()) {
				t.Errorf("host %d: % x, %v", host, f, err)
			}
		}
	}
	unknown(0, 4) // nothing is bridged
	come()
	flood := func(ports ...uint16) (list []pre.Replica) {
		for _, n := range ports {
			list = append(list, pre.Replica{Port: n})
		}
		return list
	}
	for n := 1; n <= hosts; n++ {
		w.Add("ingress.bridge_ports", []any{n}, "ingress.bridge_port", 500)
	}
	if err := w.PRE.InsertGroup(500, flood(1, 2, 3, 4)); err != nil {
		t.Fatal(err)
	}
	w.Changed()
	unknown(0, 5)
	unknown(1, 5)
	come() // absorbed: one member is silent
	unknown(2, 5)
	come(1, 2, 3)
	if err := w.PRE.ModifyGroup(500, flood(1, 2, 4)); err != nil {
		t.Fatal(err)
	}
	w.Changed()
	unknown(0, 6)
	unknown(2, 6)
	unknown(1, 6)
	come(1, 2, 4)
	if d := w.Dropped(); d["unknown_mac"] != 1 || d["absorbed"] != 4 {
		t.Errorf("dropped: %v", d)
	}
}

// until waits until the kernel has counted that many packets.
func (w *wired) until(what string, count func(Stats) uint64, want uint64) {
	w.Helper()
	for end := time.Now().Add(30 * time.Second); ; runtime.Gosched() {
		if n := count(w.Stats()); n == want {
			return
		} else if n > want || time.Now().After(end) {
			w.Fatalf("%s: %d, expected %d", what, n, want)
		}
	}
}

// ack is an ACK of member i.
func (w *wired) ack(i int, psn rocev2.PSN) []byte {
	return w.group.Answer(i, rocev2.AckNoLimit, psn, uint32(psn)).Frame()
}

// merges has a member acknowledge, in the kernel, and waits for what becomes of it.
func (w *wired) merges(i int, psn rocev2.PSN) {
	w.Helper()
	s := w.Stats()
	w.wires.Send(w, w.group.Receivers[i], w.ack(i, psn))
	w.until("answers", func(now Stats) uint64 { return now.Answers + now.Dropped }, s.Answers+s.Dropped+1)
}

// told is the PSN of the next ACK that the sender receives.
func (w *wired) told() rocev2.PSN {
	w.Helper()
	f := w.wires.Next(w.group.Sender, 0)
	p, err := dataplane.Frame{Data: f}.Parse()
	if err != nil {
		w.Fatalf("the sender receives % x: %v; %+v", f, err, w.Stats())
	}
	return p.H.PSN
}

func (w *wired) get(name string, i int) uint64 {
	w.Helper()
	v, err := w.Register("egress.ack_merge." + name).Get(i)
	if err != nil {
		w.Fatal(err)
	}
	return v.Uint()
}

// rules inserts or removes a rule of fault injection. It matches nothing.
func (w *wired) rules(there bool) {
	const table = "ingress.fault_in.rules"
	port := dataplane.Exactly(99, 9)
	key := []any{port, dataplane.Masked{}, dataplane.Masked{}, dataplane.Masked{}, dataplane.Masked{}, dataplane.Masked{}}
	if there {
		w.Add(table, key, "ingress.fault_in.fault", 1, 1, 0, 1000, 1)
	} else if err := w.Table(table).Delete(first(w.Table(table)).Key, 1); err != nil {
		w.Fatal(err)
	}
	w.Changed()
}

func first(t *pipeline.Table) *pipeline.Entry {
	for e := range t.All() {
		return e
	}
	return nil
}

// TestVethOwner: the merging state is the kernel's or the pipeline's, and moves with all that is in it.
func TestVethOwner(t *testing.T) {
	w := newWired(t)
	at := w.group.Index * 16
	word := func(psn uint64) uint64 { return 1<<48 | psn<<24 | psn }
	w.merges(0, 5)
	w.merges(1, 7)
	if got := w.get("acked", at); got != word(5) {
		t.Errorf("member 0 has %#x", got)
	}
	if !w.Mine(w.ack(2, 6)) || w.Stats().Strays != 1 {
		t.Error("an answer that is the kernel's is processed by the switch")
	}

	w.rules(true)
	if w.Status() != "off: 1 rules of fault injection" {
		t.Error(w.Status())
	}
	if w.Mine(w.ack(2, 6)) {
		t.Error("no side merges an answer")
	}
	if got := w.get("acked", at+1); got != word(7) {
		t.Errorf("member 1 has %#x at the pipeline", got)
	}
	before := w.Stats()
	out := w.Send(4, w.ack(2, 6)) // the pipeline continues with the kernel's state
	if len(out) != 1 {
		t.Fatalf("%v; drops %v", out, w.Dropped())
	}
	if p, err := out[0].Parse(); err != nil || p.H.PSN != 5 {
		t.Errorf("the sender is told %d, %v", p.H.PSN, err)
	}
	w.wires.Send(w, 3, w.ack(1, 8)) // it climbs
	if now := w.Stats(); now != before {
		t.Errorf("the kernel processes what is the pipeline's: %+v, before %+v", now, before)
	}

	w.rules(false)
	w.merges(0, 9)
	if psn := w.told(); psn != 6 {
		t.Errorf("the sender is told %d, and the pipeline had 6 of member 2", psn)
	}
	if got := w.get("passed", w.group.Index); got != word(6) {
		t.Errorf("the sender was told %#x", got)
	}
	for i, want := range []uint64{2, 1, 1} { // member 2's was counted by the pipeline
		if n, _ := w.Counter("egress.ack_merge.acks").Get(at + i); n.Packets != want {
			t.Errorf("member %d has sent %d ACKs, expected %d", i, n.Packets, want)
		}
	}
	if n := w.Table("egress.ack_merge.merge_groups").Exactly(uint64(w.group.Index)).Counted(); n.Packets != 4 {
		t.Errorf("%d answers of the group", n.Packets)
	}
	if d := w.Dropped(); d["absorbed"] != 2 || len(d) != 1 {
		t.Errorf("dropped: %v", d)
	}

	// What the control plane writes is the kernel's; what it does not stays.
	w.merges(2, 20)
	if err := w.Register("egress.ack_merge.acked").Set(at, match.Value{word(30)}); err != nil {
		t.Fatal(err)
	}
	if a := w.get("acked", at); a != word(30) {
		t.Errorf("member 0 has %#x before the kernel does", a)
	}
	w.Changed()
	if a, b, c := w.get("acked", at), w.get("acked", at+1), w.get("acked", at+2); a != word(30) || b != word(7) || c != word(20) {
		t.Errorf("members have %#x, %#x, %#x", a, b, c)
	}
	if psn := w.told(); psn != 7 { // member 1 is behind
		t.Fatalf("the sender is told %d", psn)
	}
	w.merges(1, 40)
	if psn := w.told(); psn != 20 {
		t.Errorf("the sender is told %d", psn)
	}
}

// TestVethCounts: counters of entries are exact, be it the kernel that counts or the pipeline, also when a group goes and comes.
func TestVethCounts(t *testing.T) {
	w := newWired(t)
	data := w.group.Data(rocev2.WriteOnly, 1, make([]byte, 100)).Frame()
	key := []uint64{dataplane.Addr(dataplane.HostIP(1)), uint64(w.group.MCID), dataplane.Addr(dataplane.HostIP(2))}
	groups := w.Table("ingress.replication.groups")
	check := func(want uint64) {
		t.Helper()
		g := groups.Exactly(key...).Counted()
		c := w.Table("egress.rewrite.replicas").Exactly(7, 2).Counted()
		var r pipeline.Counts
		for e := range w.Table("egress.rewrite.regions").All() {
			if n := e.Counted(); n.Packets > r.Packets {
				r = n
			}
		}
		all := pipeline.Counts{Packets: want, Bytes: want * uint64(len(data))}
		if g != all || c != all || r != all {
			t.Errorf("the group has %+v, a copy %+v, a region %+v; expected %+v", g, c, r, all)
		}
	}
	copied := uint64(0)
	send := func(n int) {
		t.Helper()
		for range n {
			w.wires.Send(t, 1, data)
		}
		copied += uint64(3 * n) //nolint:gosec // few
		w.until("copies", func(s Stats) uint64 { return s.Copies }, copied)
	}
	send(5)
	check(5)
	for range 2 {
		w.Alone(1, data) // one that climbed
	}
	check(7)
	w.rules(true)
	check(7)
	w.rules(false)
	send(3)
	check(10)
	e := groups.Exactly(key...)
	if err := groups.Delete(e.Key, 0); err != nil {
		t.Fatal(err)
	}
	send(2) // the kernel has not heard of it yet
	if err := groups.Insert(e); err != nil {
		t.Fatal(err)
	}
	w.Changed()
	check(12)
	if err := groups.Delete(e.Key, 0); err != nil {
		t.Fatal(err)
	}
	send(1)
	w.Changed()
	if e.Packets != 13 {
		t.Errorf("the group that is gone has %d packets", e.Packets)
	}
	fresh := &pipeline.Entry{Key: e.Key, Call: e.Call}
	if err := groups.Insert(fresh); err != nil {
		t.Fatal(err)
	}
	w.Changed()
	send(1)
	if n := fresh.Counted(); n.Packets != 1 {
		t.Errorf("a group that is new has %d packets", n.Packets)
	}
}

// TestVethReload: a newly loaded pipeline starts without state of the previous one; another program
// ends the fast path.
func TestVethReload(t *testing.T) {
	w := newWired(t)
	w.merges(0, 5)
	w.wires.Send(t, 1, w.group.Data(rocev2.SendOnly, 1, nil).Frame())
	w.until("copies", func(s Stats) uint64 { return s.Copies }, 3)
	other, err := dataplane.NewRack()
	if err != nil {
		t.Fatal(err)
	}
	w.Loaded(other.Pipeline, other.PRE)
	w.Switch = other
	w.SetICRC(dataplane.Neutral)
	w.Install(w.group)
	w.Changed()
	if a, d := w.get("acked", w.group.Index*16), w.Dropped(); a != 0 || len(d) != 0 || w.Status() != whole {
		t.Errorf("of the pipeline before: %#x, %v; %s", a, d, w.Status())
	}
	if n, _ := w.Counter("egress.ack_merge.acks").Get(w.group.Index * 16); n.Packets != 0 {
		t.Errorf("%d ACKs", n.Packets)
	}
	w.merges(0, 5)
	if n, _ := w.Counter("egress.ack_merge.acks").Get(w.group.Index * 16); n.Packets != 1 {
		t.Errorf("%d ACKs", n.Packets)
	}
	w.wires.Send(t, 1, w.group.Data(rocev2.SendOnly, 1, nil).Frame())
	w.until("copies", func(s Stats) uint64 { return s.Copies }, 6)
	w.merges(1, 6)
	w.merges(2, 7)
	if psn := w.told(); psn != 5 {
		t.Errorf("the sender is told %d", psn)
	}
}

// TestVethAdds: updates that add learned MACs and routes, or new groups, even in a slot where
// others have merged, affect no packet and wait for nothing. An update by which a member moves or
// leaves waits until copies in flight have left.
func TestVethAdds(t *testing.T) {
	w := newWired(t)
	meets := func(what string, update bool) {
		t.Helper()
		before := maps.Clone(w.generations.of)
		wait := w.Ends()
		if w.Changed(); (wait != nil) != update || maps.Equal(w.generations.of, before) == update || w.generations.of[everything] != before[everything] {
			t.Errorf("%s: it waits: %t, generation %v, before %v", what, wait != nil, w.generations.of, before)
		}
		if w.Stats().Updates > 0 || w.Status()[:3] != "xdp" {
			t.Errorf("%s: %+v, %s", what, w.Stats(), w.Status())
		}
	}
	copies := func(g dataplane.Group) {
		t.Helper()
		before := w.Stats().Copies
		w.wires.Send(t, 1, g.Data(rocev2.SendOnly, 1, make([]byte, 64)).Frame())
		w.until("copies", func(s Stats) uint64 { return s.Copies }, before+3)
	}
	remove := func(e *pipeline.Entry) {
		t.Helper()
		if err := w.Table("egress.ack_merge.merge_groups").Delete(e.Key, e.Priority); err != nil {
			t.Fatal(err)
		}
	}
	other := still(8)
	w.Install(other)
	meets("another group", false)
	copies(other)
	copies(w.group)
	old := first(w.Table("egress.ack_merge.merge_groups"))
	n, call := old.Key[0].Value.Uint(), old.Call
	remove(old)
	meets("a group that merges no more", true)
	var args []uint64
	for _, a := range call.Args {
		args = append(args, a.Uint())
	}
	set := func() {
		t.Helper()
		if err := w.Register("egress.ack_merge.passed").Set(int(n), match.Value{0}); err != nil { //nolint:gosec // few
			t.Fatal(err)
		}
	}
	set()
	w.Add("egress.ack_merge.merge_groups", []any{int(n)}, "egress.ack_merge.merge", args...) //nolint:gosec // few
	meets("one that merges where another has", false)
	set()
	meets("the state of one that merges", true)
	if err := w.PRE.ModifyGroup(uint32(other.Index), []pre.Replica{{Port: 2, Instance: 1}}); err != nil { //nolint:gosec // few
		t.Fatal(err)
	}
	meets("members that leave", true)
	w.Add("ingress.unicast.bridge", []any{dataplane.MAC(dataplane.HostMAC(9))}, "ingress.unicast.to_port", 2)
	w.Add("ingress.unicast.next_hops", []any{900}, "ingress.unicast.to_port", 3)
	w.Add("ingress.unicast.routes", []any{dataplane.Prefix{Value: dataplane.Addr(dataplane.HostIP(200)), Len: 32}}, "ingress.unicast.to_next_hop", 900)
	meets("a MAC and a route", false)
}
