package fastpath

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"sync"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/rlimit"
	"golang.org/x/sys/unix"

	"github.com/mcrdma/mcrdma/bpf"
)

// counterCells is the maximum number of entries with counters; each takes 16 bytes.
const counterCells = 1 << 17

// placeCells is the maximum number of ports in all sets together: there are as many copies, and each
// port may have a set to flood.
const placeCells = 1 << 18

// kernel holds the programs and their maps, by file descriptors only: when this process ends for
// any reason, the kernel detaches the programs from the ports.
type kernel struct {
	*ebpf.Collection
	*prober
	links []link.Link

	setsMu sync.Mutex
	inner  *ebpf.MapSpec      // template of a port set
	sets   map[uint32]portSet // that are in the kernel
}

// load loads programs and maps, without attaching them to ports.
func load() (*kernel, error) {
	spec, err := ebpf.LoadCollectionSpecFromReader(bytes.NewReader(bpf.Object))
	if err != nil {
		return nil, err
	}
	spec.Maps["counters"].MaxEntries = counterCells
	spec.Maps["port_sets"].MaxEntries, spec.Maps["places"].MaxEntries = maxSets, placeCells
	if err := rlimit.RemoveMemlock(); err != nil {
		return nil, advised(fmt.Errorf("memory for maps: %w", err))
	}
	c, err := ebpf.NewCollection(spec)
	if err != nil {
		return nil, advised(err)
	}
	p, err := newProber()
	if err != nil {
		c.Close()
		return nil, advised(err)
	}
	return &kernel{Collection: c, prober: p, inner: spec.Maps["port_sets"].InnerMap, sets: map[uint32]portSet{}}, nil
}

// capabilities are those needed without root. CAP_PERFMON allows subtracting pointers.
const capabilities = "CAP_BPF, CAP_PERFMON, CAP_NET_ADMIN and CAP_NET_RAW"

// advised adds to an error of loading a program what to do about it.
func advised(err error) error {
	var refused *ebpf.VerifierError
	switch {
	case errors.As(err, &refused):
		return fmt.Errorf("the kernel's verifier refuses the program, which is tested with Linux 6.1 and 6.18, as root and with %s: %w", capabilities, err)
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("%w (run as root or with %s)", err, capabilities)
	}
	return fmt.Errorf("%w (it takes Linux 6.1)", err)
}

// attach attaches the program to an interface, in its driver.
func (k *kernel) attach(ifindex int) error {
	l, err := link.AttachXDP(link.XDPOptions{Program: k.Programs["ingress"], Interface: ifindex, Flags: link.XDPDriverMode})
	switch {
	case errors.Is(err, os.ErrExist), errors.Is(err, unix.EBUSY):
		return fmt.Errorf("another XDP program is there already; \"ip link\" shows it: %w", err)
	case errors.Is(err, unix.ERANGE):
		return fmt.Errorf("its MTU, or that of a veth's other end, is larger than its driver takes with XDP: %w", err)
	case err != nil:
		return fmt.Errorf("its driver takes no XDP program: %w", err)
	}
	k.links = append(k.links, l)
	return nil
}

// programs returns the kernel's IDs of the programs.
func (k *kernel) programs() (ids []uint32) {
	for _, p := range k.Programs {
		if info, err := p.Info(); err == nil {
			if id, known := info.ID(); known {
				ids = append(ids, uint32(id))
			}
		}
	}
	return ids
}

// close detaches the programs from the ports.
func (k *kernel) close() error {
	var errs []error
	for _, l := range k.links {
		errs = append(errs, l.Close())
	}
	k.links = nil
	k.Collection.Close()
	return errors.Join(append(errs, k.prober.close())...)
}

func (k *kernel) put(table string, key, value any) error {
	if err := k.Maps[table].Put(key, value); err != nil {
		return fmt.Errorf("map %s: %w", table, err)
	}
	return nil
}

func (k *kernel) remove(table string, key any) error {
	if m := k.Maps[table]; m.Type() == ebpf.Array { // an array always has all keys
		return k.put(table, key, make([]byte, m.ValueSize()))
	} else if err := m.Delete(key); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return fmt.Errorf("map %s: %w", table, err)
	}
	return nil
}

// count returns the count of a cell of a counter map, summed over all processors.
func (k *kernel) count(table string, number uint32) (sum bpf.Count, err error) {
	all, m := make([]bpf.Count, 1), k.Maps[table]
	if m.Type() == ebpf.Array {
		err = m.Lookup(number, &all[0])
	} else {
		err = m.Lookup(number, &all)
	}
	if err != nil {
		return sum, fmt.Errorf("map %s: %w", table, err)
	}
	for _, c := range all {
		sum.Packets, sum.Bytes = sum.Packets+c.Packets, sum.Bytes+c.Bytes
	}
	return sum, nil
}

// slot returns the state of a group, including all answers whose merging has begun.
func (k *kernel) slot(n uint32) (s bpf.Slot, err error) {
	if err := k.Maps["merge_slots"].LookupWithFlags(n, &s, ebpf.LookupLock); err != nil {
		return s, fmt.Errorf("map merge_slots: %w", err)
	}
	return s, nil
}

func (k *kernel) putSlot(n uint32, s *bpf.Slot) error {
	if err := k.Maps["merge_slots"].Update(n, s, ebpf.UpdateExist|ebpf.UpdateLock); err != nil {
		return fmt.Errorf("map merge_slots: %w", err)
	}
	return nil
}

// putOut makes an interface one that packets leave by, unless it was removed.
func (k *kernel) putOut(m *ebpf.Map, key, index uint32) error {
	err := m.Put(key, bpf.Out{Interface: index, Program: uint32(k.Programs["copy_out"].FD())}) //nolint:gosec // descriptors are small
	if err == nil {
		return nil
	}
	if states, lost := lookAt(); lost == nil && states[int(index)].name == "" {
		return nil
	}
	return fmt.Errorf("interface %d: %w", index, err)
}

// putSets creates sets of ports, unless they are there. Each takes the kernel milliseconds, on a busy machine up to a
// second.
func (k *kernel) putSets(sets map[uint32]portSet) error {
	k.setsMu.Lock()
	defer k.setsMu.Unlock()
	for number, s := range sets {
		if k.sets[number] == s {
			continue
		}
		if err := k.putSet(number, k.sets[number].interfaces(), s.interfaces()); err != nil {
			return err
		}
		k.sets[number] = s
	}
	return nil
}

// putSet creates a set of ports, or replaces one that no packet meets any more.
func (k *kernel) putSet(number uint32, had, interfaces []uint32) error {
	for _, index := range had {
		if err := k.remove("places", bpf.PlaceKey{Set: number, Interface: index}); err != nil {
			return err
		}
	}
	spec := *k.inner
	spec.MaxEntries = uint32(len(interfaces)) //nolint:gosec // there are 512 ports
	set, err := ebpf.NewMap(&spec)
	if err != nil {
		return fmt.Errorf("a set of ports: %w", err)
	}
	defer set.Close()
	for i, index := range interfaces {
		if err := k.put("places", bpf.PlaceKey{Set: number, Interface: index}, uint32(i)); err != nil { //nolint:gosec // as above
			return err
		}
		if err := k.putOut(set, uint32(i), index); err != nil { //nolint:gosec // as above
			return fmt.Errorf("a set of ports: %w", err)
		}
	}
	return k.put("port_sets", number, uint32(set.FD())) //nolint:gosec // descriptors are small
}

// errRefuses is the error of a veth whose other end does not accept XDP frames.
var errRefuses = errors.New("the veth drops what the kernel sends to it until its other end has GRO or an XDP program: " +
	"in that end's namespace \"ethtool -K PEER gro on tx off\"")

// A prober tests whether veths send the frames redirected to them.
type prober struct {
	program *ebpf.Program
	*statistics

	mu     sync.Mutex
	seen   map[int]uint64 // frames redirected until the last look, by interface
	closed bool           // changes with the switch's lock held too, so either lock suffices to read it
}

// probeHeader starts a frame that no bridge forwards and no host answers: Ethernet's configuration
// testing protocol, to a link-local MAC address. The interface's number follows it.
var probeHeader = []byte{1, 0x80, 0xc2, 0, 0, 0x0e, 2, 'm', 'c', 'r', 'd', 'm', 0x90, 0}

func newProber() (*prober, error) {
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.XDP, License: "Apache-2.0", Instructions: asm.Instructions{
		asm.LoadMem(asm.R2, asm.R1, 0, asm.Word), asm.LoadMem(asm.R3, asm.R1, 4, asm.Word), // struct xdp_md
		asm.Mov.Reg(asm.R4, asm.R2), asm.Add.Imm(asm.R4, 18), asm.Mov.Imm(asm.R0, 1), asm.JGT.Reg(asm.R4, asm.R3, "out"), // XDP_DROP
		asm.LoadMem(asm.R1, asm.R2, 14, asm.Word), asm.Mov.Imm(asm.R2, 0), asm.FnRedirect.Call(), asm.Return().WithSymbol("out")}})
	if err != nil {
		return nil, fmt.Errorf("a program to try ports with: %w", err)
	}
	s, err := newStatistics()
	if err != nil {
		return nil, errors.Join(err, p.Close())
	}
	return &prober{program: p, statistics: s, seen: map[int]uint64{}}, nil
}

// takes reports whether a veth that is up sends what is redirected to it: it has done so since the
// last look, or a probe frame shows it.
func (p *prober) takes(index int, name string) (bool, error) {
	before, err := p.redirected(name)
	if err != nil {
		return false, err
	}
	seen, is := p.seen[index]
	p.seen[index] = before
	if is && seen != before {
		return true, nil
	}
	const liveFrames = 1 << 1                                                                                        // BPF_F_TEST_XDP_LIVE_FRAMES
	frame := append(binary.NativeEndian.AppendUint32(slices.Clone(probeHeader), uint32(index)), make([]byte, 42)...) //nolint:gosec // an interface's number
	if _, err := p.program.Run(&ebpf.RunOptions{Data: frame, Repeat: 1, Flags: liveFrames}); err != nil {
		return false, fmt.Errorf("a frame to try it with: %w", err)
	}
	after, err := p.redirected(name)
	p.seen[index] = after
	return after != before, err
}

// close waits for a look that is under way.
func (p *prober) close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	return errors.Join(p.program.Close(), p.statistics.close())
}
