package bpf_test

import (
	"errors"
	"testing"

	"github.com/cilium/ebpf"

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
	*dataplane.Bytecode
}

// load returns a kernel, or skips the test with the reason.
func load(t testing.TB) *kernel {
	t.Helper()
	b, err := dataplane.LoadBytecode()
	var refused *ebpf.VerifierError
	switch {
	case errors.As(err, &refused):
		t.Fatalf("%+v", refused)
	case err != nil:
		testenv.Skip(t, "%v", err)
	}
	t.Cleanup(b.Close)
	return &kernel{t, b}
}

func (k *kernel) count(table string, number uint32) (packets uint64) {
	k.Helper()
	all, m := make([]bpf.Count, 1), k.Maps[table]
	var into any = &all
	if m.Type() == ebpf.Array {
		into = &all[0]
	}
	if err := m.Lookup(number, into); err != nil {
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

// still is a group whose regions are where the sender's packets say.
func still() dataplane.Group {
	g := dataplane.Group{Index: 77, Sender: 1, SenderQPN: 0x51, MCID: 0xe00007, Receivers: []int{2, 3, 4}, Epoch: 1}
	for i := range g.Receivers {
		g.Targets = append(g.Targets, dataplane.Target{QPN: dataplane.ReceiverQPN(i), RKey: dataplane.ReceiverRKey(i), VA: dataplane.SenderVA})
	}
	return g
}

// neutral is what keeps the ICRC, as the two fields of a packet.
func neutral(c rocev2.HeaderChange) (id, srcPort [2]byte) {
	n := dataplane.Wire(rocev2.NeutralOf(c))
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
		if err := set.Put(uint32(i), k.Out(interfaces[n])); err != nil {
			k.Fatal(err)
		}
		k.Put("places", bpf.PlaceKey{Set: 1, Interface: interfaces[n]}, uint32(i))
	}
	k.Put("port_sets", uint32(1), uint32(set.FD()))
}

// replicate has the kernel copy a group's requests to the interfaces of its receivers' ports.
func (k *kernel) replicate(g *dataplane.Group, interfaces map[int]uint32) {
	k.Helper()
	index := uint32(g.Index)
	for i, n := range g.Receivers {
		to := g.Targets[i]
		c := bpf.Copy{Dst: dataplane.HostIP(n), QPN: dataplane.Wire(to.QPN), Last: 1, Known: 1, PREGroup: uint16(index), Interface: interfaces[n],
			Number: uint32(i + 1), Counter: uint32(i + 1), Port: uint32(n), Regions: 1, RKey: dataplane.Wire(uint32(dataplane.SenderRKey)), EthDst: dataplane.HostMAC(n), EthSrc: dataplane.RouterMAC}
		change := rocev2.HeaderChange{Dst: dataplane.HostIP(n), QPN: g.MCID ^ to.QPN}
		for j, b := range dataplane.HostIP(g.Receivers[0]) {
			change.Dst[j] ^= b
		}
		c.ID, c.SrcPort = neutral(change)
		c.Region.RKey, c.Region.Counter = dataplane.Wire(to.RKey), uint32(i+17)
		c.Region.ID, c.Region.SrcPort = neutral(rocev2.HeaderChange{RKey: dataplane.SenderRKey ^ to.RKey})
		k.Put("copies", firstCopy+uint32(i), c)
	}
	k.Put("pre_groups", index, bpf.PREGroup{Set: 1, N: uint16(len(g.Receivers)), First: firstCopy})
	k.Put("groups", bpf.GroupKey{Src: dataplane.HostIP(g.Sender), Dst: dataplane.HostIP(g.Receivers[0]), MCID: dataplane.Wire(g.MCID)},
		multicast(index))
}

// secondRegion adds one to a group that replicate has made.
func (k *kernel) secondRegion(g *dataplane.Group) {
	k.Helper()
	index, rkey := uint32(g.Index), uint32(dataplane.SenderRKey+1)
	for i, to := range g.Targets {
		r := bpf.Region{RKey: dataplane.Wire(to.RKey + 1), Counter: uint32(i + 49)}
		r.ID, r.SrcPort = neutral(rocev2.HeaderChange{RKey: rkey ^ (to.RKey + 1)})
		k.Put("regions", bpf.RegionKey{Copy: uint32(i + 1), RKey: dataplane.Wire(rkey)}, r)
	}
	m := multicast(index)
	k.Put("group_regions", bpf.GroupRegion{Group: index, RKey: dataplane.Wire(rkey)}, m.Span)
	m.Regions = 2
	k.Put("groups", bpf.GroupKey{Src: dataplane.HostIP(g.Sender), Dst: dataplane.HostIP(g.Receivers[0]), MCID: dataplane.Wire(g.MCID)}, m)
}

// firstCopy is the cell of a group's first copy.
const firstCopy = 5

// multicast is a group with one region.
func multicast(index uint32) bpf.Multicast {
	return bpf.Multicast{Group: index, FirstPREGroup: index, PREGroups: 1, Regions: 1, Counter: 33, RKey: dataplane.Wire(uint32(dataplane.SenderRKey)),
		Span: bpf.Span{First: dataplane.SenderVA, Last: dataplane.SenderVA + dataplane.RegionLen - 1}}
}
