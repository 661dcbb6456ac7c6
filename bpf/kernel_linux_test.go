package bpf_test

import (
	"encoding/binary"
	"errors"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/rlimit"

	"github.com/mcrdma/mcrdma/bmv2"
	"github.com/mcrdma/mcrdma/bpf"
	"github.com/mcrdma/mcrdma/internal/testenv"
	"github.com/mcrdma/mcrdma/pkg/rocev2"
	"github.com/mcrdma/mcrdma/tests/dataplane"
)

// What the program says.
const (
	xdpDrop     = 1
	xdpPass     = 2
	xdpRedirect = 4
)

// lo is an interface that is there in every namespace, and that test runs come from.
const lo = uint32(1)

// A kernel is the programs and maps in the kernel, with the routes of a dataplane.NewRack.
type kernel struct {
	testing.TB
	*ebpf.Collection
	out []byte
}

// load returns a kernel, or skips the test with the reason.
func load(t testing.TB) *kernel {
	t.Helper()
	if err := rlimit.RemoveMemlock(); err != nil {
		testenv.Skip(t, "memory for maps: %v", err)
	}
	c, err := ebpf.NewCollection(spec(t))
	var refused *ebpf.VerifierError
	switch {
	case errors.As(err, &refused):
		t.Fatalf("%+v", refused)
	case err != nil:
		testenv.Skip(t, "the kernel does not load the program; it takes root, and Linux 6.1: %v", err)
	}
	t.Cleanup(c.Close)
	k := &kernel{t, c, make([]byte, 4096)}
	k.put("settings", uint32(0), bpf.Settings{ICRCMode: bpf.Neutral})
	k.put("router_macs", bpf.MAC{At: dataplane.RouterMAC}, uint32(0))
	for n := 1; n <= dataplane.RackHosts; n++ {
		k.put("routes", bpf.Prefix{Bits: 32, Dst: dataplane.HostIP(n)}, bpf.Route{NextHop: uint16(n)})
		k.put("next_hops", uint32(n), bpf.NextHop{Port: uint32(n), Known: 1, Dst: dataplane.HostMAC(n), Src: dataplane.RouterMAC})
	}
	return k
}

func (k *kernel) put(table string, key, value any) {
	k.Helper()
	if err := k.Maps[table].Put(key, value); err != nil {
		k.Fatalf("%s: %v", table, err)
	}
}

// only makes port the one that packets can leave by, and from the one that they come from.
func (k *kernel) only(from, port uint32) {
	for n := range uint32(dataplane.RackHosts + 1) {
		_ = k.Maps["ports_out"].Delete(n)
	}
	k.put("ports_out", port, lo)
	k.put("ports_in", lo, bpf.Port{Number: from})
}

// run gives the kernel a frame, and returns what it does with it.
func (k *kernel) run(frame []byte) (verdict uint32, out []byte) {
	o := ebpf.RunOptions{Data: frame, DataOut: k.out}
	verdict, err := k.Programs["ingress"].Run(&o)
	if err != nil {
		k.Fatal(err)
	}
	return verdict, o.DataOut
}

func (k *kernel) count(table string, number uint32) (packets uint64) {
	k.Helper()
	var all []bpf.Count
	if err := k.Maps[table].Lookup(number, &all); err != nil {
		k.Fatalf("%s: %v", table, err)
	}
	for _, c := range all {
		packets += c.Packets
	}
	return packets
}

// dropped is how many packets were dropped, by reason.
func (k *kernel) dropped() map[string]uint64 {
	m := map[string]uint64{}
	reasons := map[int]string{bpf.DropUpdate: "update"}
	for i, reason := range bmv2.DropReasons {
		reasons[i] = reason
	}
	for i, reason := range reasons {
		if n := k.count("drops", uint32(i)); n > 0 {
			m[reason] = n
		}
	}
	return m
}

// wire is a number as a word of the wire.
func wire[N ~uint32](n N) (b [4]byte) {
	binary.BigEndian.PutUint32(b[:], uint32(n))
	return b
}

// still is a group whose regions are where the sender's packets say.
func still() dataplane.Group {
	g := dataplane.Group{Index: 77, Sender: 1, SenderQPN: 0x51, MCID: 0xe00007, Receivers: []int{2, 3, 4}, Epoch: 1}
	for i := range g.Receivers {
		g.Targets = append(g.Targets, dataplane.Target{QPN: dataplane.ReceiverQPN(i), RKey: dataplane.ReceiverRKey(i), VA: dataplane.SenderVA})
	}
	return g
}

// merge has the kernel merge the answers of a group.
func (k *kernel) merge(g *dataplane.Group) {
	for i, n := range g.Receivers {
		k.put("merge_members", bpf.MemberKey{Src: dataplane.HostIP(n), Dst: dataplane.HostIP(g.Sender), DestQP: wire(g.MCID)},
			bpf.Member{Slot: uint32(g.Index), Index: uint16(i)})
	}
	k.put("merge_members", bpf.MemberKey{Src: dataplane.HostIP(g.Receivers[0]), Dst: dataplane.HostIP(g.Sender), DestQP: wire(g.SenderQPN)},
		bpf.Member{Bypass: 1})
	k.put("merge_groups", uint32(g.Index), bpf.Group{InitialPSN: uint32(g.InitialPSN), Members: 1<<len(g.Receivers) - 1, Epoch: uint16(g.Epoch),
		Source: dataplane.HostIP(g.Receivers[0]), SenderQPN: wire(g.SenderQPN)})
}

// neutral is what keeps the ICRC, as the two fields of a packet.
func neutral(c rocev2.HeaderChange) (id, srcPort [2]byte) {
	n := wire(rocev2.NeutralOf(c))
	return [2]byte(n[:2]), [2]byte(n[2:])
}

// portSet makes set 1 the ports of a group's receivers. It must be called in the namespace that has them.
func (k *kernel) portSet(g *dataplane.Group, interfaces map[int]uint32) {
	k.Helper()
	set, err := ebpf.NewMap(spec(k).Maps["port_sets"].InnerMap)
	if err != nil {
		k.Fatal(err)
	}
	defer set.Close()
	for i, n := range g.Receivers {
		if err := set.Put(uint32(i), struct{ Interface, Program uint32 }{interfaces[n], uint32(k.Programs["copy_out"].FD())}); err != nil {
			k.Fatal(err)
		}
	}
	k.put("port_sets", uint32(1), uint32(set.FD()))
}

// replicate has the kernel copy a group's requests to the interfaces of its receivers' ports.
func (k *kernel) replicate(g *dataplane.Group, interfaces map[int]uint32) {
	k.Helper()
	index := uint32(g.Index)
	for i, n := range g.Receivers {
		to := g.Targets[i]
		c := bpf.Copy{Dst: dataplane.HostIP(n), QPN: wire(to.QPN), Last: 1, Number: uint32(i + 1), Counter: uint32(i + 1), Port: uint32(n), Known: 1,
			EthDst: dataplane.HostMAC(n), EthSrc: dataplane.RouterMAC}
		change := rocev2.HeaderChange{Dst: dataplane.HostIP(n), QPN: g.MCID ^ to.QPN}
		for j, b := range dataplane.HostIP(g.Receivers[0]) {
			change.Dst[j] ^= b
		}
		c.ID, c.SrcPort = neutral(change)
		k.put("copies", bpf.CopyKey{PREGroup: index, Interface: interfaces[n]}, c)
		r := bpf.Region{RKey: wire(to.RKey), Counter: uint32(i + 17)}
		r.ID, r.SrcPort = neutral(rocev2.HeaderChange{RKey: dataplane.SenderRKey ^ to.RKey})
		k.put("regions", bpf.RegionKey{Copy: c.Number, RKey: wire(uint32(dataplane.SenderRKey))}, r)
	}
	k.put("pre_groups", index, uint32(1))
	k.put("group_regions", bpf.GroupRegion{Group: index, RKey: wire(uint32(dataplane.SenderRKey))},
		bpf.Span{First: dataplane.SenderVA, Last: dataplane.SenderVA + dataplane.RegionLen - 1})
	k.put("groups", bpf.GroupKey{Src: dataplane.HostIP(g.Sender), Dst: dataplane.HostIP(g.Receivers[0]), MCID: wire(g.MCID)},
		bpf.Multicast{Group: index, FirstPREGroup: index, PREGroups: 1, Regions: 1, Counter: 33})
}
