package dataplane

import (
	"bytes"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/rlimit"

	"github.com/mcrdma/mcrdma/bpf"
)

// A Bytecode is the programs and maps of package bpf in the kernel, with the routes of a NewRack, in mode neutral.
type Bytecode struct{ *ebpf.Collection }

// LoadBytecode loads them. The error wraps an ebpf.VerifierError if the kernel refuses a program.
func LoadBytecode() (*Bytecode, error) {
	if err := rlimit.RemoveMemlock(); err != nil {
		return nil, fmt.Errorf("memory for maps: %w", err)
	}
	spec, err := ebpf.LoadCollectionSpecFromReader(bytes.NewReader(bpf.Object))
	if err != nil {
		return nil, fmt.Errorf("the committed object: %w", err)
	}
	c, err := ebpf.NewCollection(spec)
	if err != nil {
		return nil, fmt.Errorf("the kernel does not load the program; it takes root, and Linux 6.1: %w", err)
	}
	b := &Bytecode{c}
	b.Put("settings", uint32(0), bpf.Settings{ICRCMode: bpf.Neutral})
	b.Put("router_macs", bpf.MAC{At: RouterMAC}, uint32(0))
	for n := 1; n <= RackHosts; n++ {
		b.Put("routes", bpf.Prefix{Bits: 32, Dst: HostIP(n)}, bpf.Route{NextHop: uint16(n)})
		b.Put("next_hops", uint32(n), bpf.NextHop{Port: uint32(n), Known: 1, Dst: HostMAC(n), Src: RouterMAC})
	}
	return b, nil
}

// Out is what maps of ports hold of an interface.
func (b *Bytecode) Out(index uint32) bpf.Out {
	return bpf.Out{Interface: index, Program: uint32(b.Programs["copy_out"].FD())} //nolint:gosec // descriptors are small
}

// Put puts a value into a map. It panics where that cannot be, since that is a mistake of the test.
func (b *Bytecode) Put(table string, key, value any) {
	if err := b.Maps[table].Put(key, value); err != nil {
		panic(fmt.Sprintf("map %s: %v", table, err))
	}
}

// loopback is an interface that is there in every namespace, and that test runs come from.
const loopback = uint32(1)

// Only makes port the one that packets can leave by, and from the one that they come from.
func (b *Bytecode) Only(from, port uint32) {
	for n := range uint32(RackHosts + 1) {
		_ = b.Maps["ports_out"].Delete(n)
	}
	b.Put("ports_out", port, b.Out(loopback))
	b.Put("ports_in", loopback, bpf.Port{Number: from})
}

// Run gives the kernel a frame, and returns what it does with it, and what it makes of it.
func (b *Bytecode) Run(frame []byte) (verdict uint32, out []byte) {
	o := ebpf.RunOptions{Data: frame, DataOut: make([]byte, len(frame)+64)} // what copies carry lies before it
	verdict, err := b.Programs["ingress"].Run(&o)
	if err != nil {
		panic(err)
	}
	return verdict, o.DataOut
}

// Members has the kernel merge the answers of a group, by what Merge says.
func (b *Bytecode) Members(g *Group) {
	for i, n := range g.Receivers {
		b.Put("merge_members", bpf.MemberKey{Src: HostIP(n), Dst: HostIP(g.Sender), DestQP: Wire(g.MCID)}, bpf.Member{Slot: uint32(g.Index), Index: uint16(i)})
	}
	b.Put("merge_members", bpf.MemberKey{Src: HostIP(g.Receivers[0]), Dst: HostIP(g.Sender), DestQP: Wire(g.SenderQPN)}, bpf.Member{Bypass: 1})
	b.Merge(g)
}

// Merge replaces the group's merging configuration.
func (b *Bytecode) Merge(g *Group) {
	v := g.merge()
	b.Put("merge_groups", uint32(g.Index), bpf.Group{Members: uint16(v[0]), Epoch: uint16(v[1]), InitialPSN: uint32(v[2]), Learn: uint8(v[3]),
		Source: HostIP(g.Receivers[0]), SenderQPN: Wire(g.SenderQPN), CNPGap: 1000 * g.CNPGap})
}

// Wire is a number as a word of the wire.
func Wire[N ~uint32](n N) [4]byte {
	return [4]byte{byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)}
}
