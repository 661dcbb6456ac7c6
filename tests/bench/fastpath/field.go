package main

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/rlimit"
	"golang.org/x/sys/unix"

	"github.com/mcrdma/mcrdma/tests/bench/report"
	"github.com/mcrdma/mcrdma/tests/dataplane"
)

type options struct {
	rounds, size, window, sources int
	span                          time.Duration
}

// A result is the result of one run.
type result struct {
	rate, cpu float64 // packets per second, ns per packet
	lost      float64 // share of the sent packets
	in, out   float64 // ns in the programs, per arriving packet and per copy
}

// A field is the setup for measurements.
type field struct {
	o     options
	wires *dataplane.Wires
	seen  *ebpf.Map // packets that arrived at the far ends, by processor
	pass  *ebpf.Program
}

func newField(o options) (f *field, err error) {
	if err := rlimit.RemoveMemlock(); err != nil {
		return nil, fmt.Errorf("memory for maps: %w; run this as root", err)
	}
	f = &field{o: o}
	if f.seen, err = ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.PerCPUArray, KeySize: 4, ValueSize: 8, MaxEntries: 1}); err != nil {
		return nil, err
	}
	sink, err := dataplane.XDP(asm.Instructions{
		asm.StoreImm(asm.RFP, -4, 0, asm.Word), asm.Mov.Reg(asm.R2, asm.RFP), asm.Add.Imm(asm.R2, -4), asm.LoadMapPtr(asm.R1, f.seen.FD()), asm.FnMapLookupElem.Call(),
		asm.JEq.Imm(asm.R0, 0, "drop"),
		asm.LoadMem(asm.R1, asm.R0, 0, asm.DWord), asm.Add.Imm(asm.R1, 1), asm.StoreMem(asm.R0, 0, asm.R1, asm.DWord),
		asm.Mov.Imm(asm.R0, xdpDrop).WithSymbol("drop"), asm.Return()})
	if err != nil {
		return nil, err
	}
	defer sink.Close()
	if f.pass, err = dataplane.XDP(asm.Instructions{asm.Mov.Imm(asm.R0, xdpPass), asm.Return()}); err != nil {
		return nil, err
	}
	f.wires, err = dataplane.Connect(hosts, sink)
	return f, err
}

func (f *field) close() {
	f.wires.Close()
	f.pass.Close()
	f.seen.Close()
}

// The return values of programs.
const (
	xdpDrop = 1
	xdpPass = 2
	xdpTX   = 3
)

// source is a program that sends a frame. The kernel reuses live frames, whose headers change on
// the way, so the program writes the headers again. With many groups, each packet belongs to a
// random one.
func source(frame []byte, groups int) (*ebpf.Program, error) {
	head := frame[:min(len(frame), 72)]
	ins := asm.Instructions{
		asm.Mov.Reg(asm.R6, asm.R1),
		asm.LoadMem(asm.R7, asm.R6, 0, asm.Word), // data
		asm.LoadMem(asm.R8, asm.R6, 4, asm.Word), // data_end
		asm.Mov.Reg(asm.R1, asm.R7), asm.Add.Imm(asm.R1, int32(len(head))),
		asm.Mov.Imm(asm.R0, xdpDrop), asm.JGT.Reg(asm.R1, asm.R8, "end"),
	}
	at := 0
	for ; at+8 <= len(head); at += 8 {
		ins = append(ins, asm.LoadImm(asm.R1, int64(binary.LittleEndian.Uint64(head[at:])), asm.DWord), asm.StoreMem(asm.R7, int16(at), asm.R1, asm.DWord)) //nolint:gosec // the same bits
	}
	for ; at+2 <= len(head); at += 2 {
		ins = append(ins, asm.Mov.Imm(asm.R1, int32(binary.LittleEndian.Uint16(head[at:]))), asm.StoreMem(asm.R7, int16(at), asm.R1, asm.Half))
	}
	if groups > 1 {
		const mcID = 14 + 20 + 8 + 4 // a word
		ins = append(ins, asm.FnGetPrandomU32.Call(), asm.Mod.Imm(asm.R0, int32(groups)), asm.Add.Imm(asm.R0, firstMCID),
			asm.HostTo(asm.BE, asm.R0, asm.Word), asm.StoreMem(asm.R7, mcID, asm.R0, asm.Word))
	}
	return dataplane.XDP(append(ins, asm.Mov.Imm(asm.R0, xdpTX), asm.Return().WithSymbol("end")))
}

// make makes the program send n frames as host h to the switch.
func (f *field) make(p *ebpf.Program, h int, frame []byte, n, batch uint32) error {
	const liveFrames = 1 << 1                                                                                                                  // BPF_F_TEST_XDP_LIVE_FRAMES
	in := struct{ Data, DataEnd, DataMeta, Interface, Queue, Egress uint32 }{DataEnd: uint32(len(frame)), Interface: uint32(f.wires.Peers[h])} //nolint:gosec // small
	if _, err := p.Run(&ebpf.RunOptions{Data: frame, Context: in, Repeat: n, BatchSize: batch, Flags: liveFrames}); err != nil {
		return fmt.Errorf("frames made in the kernel, which takes Linux 5.18: %w", err)
	}
	return nil
}

// out returns the number of frames that have arrived.
func (f *field) out() (sum uint64, err error) {
	var all []uint64
	err = f.seen.Lookup(uint32(0), &all)
	for _, n := range all {
		sum += n
	}
	return sum, err
}

// measure measures packets of a kind on a switch with that many groups for a while; inside measures
// the time in programs.
func (f *field) measure(k kind, by string, groups int, inside bool) (r result, err error) {
	for i := range sourceHosts {
		if by == byKernel {
			break // the switch adds its own
		}
		detach, err := f.wires.Attach(int(f.wires.Ports[sourceHosts[i]]), f.pass)
		if err != nil {
			return r, err
		}
		defer func() { _ = detach() }()
	}
	s, err := start(by, groups)
	if err != nil {
		return r, err
	}
	defer s.kill()
	frame := k.frame(f.o.size)
	for _, first := range k.first {
		p, err := source(first(), 1)
		if err != nil {
			return r, err
		}
		err = f.make(p, sourceHosts[0], first(), 1, 1)
		if err := errors.Join(err, p.Close()); err != nil {
			return r, err
		}
	}
	p, err := source(frame, groups)
	if err != nil {
		return r, err
	}
	defer p.Close()
	send := func(span time.Duration) (sent uint64, err error) { return f.kernelRun(p, frame, span) }
	if by != byKernel {
		window := f.o.window
		if s.own {
			window = bmv2Window
		}
		send = func(span time.Duration) (uint64, error) {
			return f.windowed(p, frame, uint64(k.out), uint64(window), span)
		} //nolint:gosec // few
	}
	if _, err := send(f.o.span / 5); err != nil {
		return r, err
	}
	if inside {
		stats, err := ebpf.EnableStats(unix.BPF_STATS_RUN_TIME)
		if err != nil {
			return r, fmt.Errorf("the time in programs: %w", err)
		}
		defer stats.Close()
	}
	before, err := f.look(s)
	if err != nil {
		return r, err
	}
	begin := time.Now()
	sent, err := send(f.o.span)
	if err != nil {
		return r, err
	}
	took := time.Since(begin)
	after, err := f.look(s)
	if err != nil {
		return r, err
	}
	n := float64(sent)
	if k.out > 0 {
		n = float64(after.out-before.out) / float64(k.out)
		r.lost = 1 - n/float64(sent)
	}
	if n == 0 {
		return r, fmt.Errorf("%s: nothing comes out", k.name)
	}
	r.rate, r.cpu = n/took.Seconds(), float64(after.cpu-before.cpu)/n
	each := func(a, b ran) float64 { return float64(b.time-a.time) / float64(cmp.Or(b.runs-a.runs, 1)) }
	r.in, r.out = each(before.in, after.in), each(before.copies, after.copies)
	return r, nil
}

// kernelRun makes frames at all sources for a while. The frames arrive before it returns or soon
// after, because the kernel delivers them in the threads that make them.
func (f *field) kernelRun(p *ebpf.Program, frame []byte, span time.Duration) (sent uint64, err error) {
	const burst = 1 << 17 // each call takes about 20 ms more
	errs, counts := make([]error, f.o.sources), make([]uint64, f.o.sources)
	var all sync.WaitGroup
	for i := range f.o.sources {
		all.Go(func() {
			errs[i] = f.wires.Join()
			for end := time.Now().Add(span); time.Now().Before(end) && errs[i] == nil; counts[i] += burst {
				errs[i] = f.make(p, sourceHosts[i], frame, burst, 64)
			}
		})
	}
	all.Wait()
	for _, n := range counts {
		sent += n
	}
	return sent, errors.Join(errs...)
}

// stalled is the time without arrivals after which frames count as lost.
const stalled = 200 * time.Millisecond

// windowed makes frames as long as fewer than the window are in flight.
func (f *field) windowed(p *ebpf.Program, frame []byte, each, window uint64, span time.Duration) (sent uint64, err error) {
	burst := uint32(window / 2) //nolint:gosec // small
	base, err := f.out()
	if err != nil {
		return 0, err
	}
	begin := time.Now()
	moved, last, missing := begin, uint64(0), uint64(0)
	for {
		out, err := f.out()
		if err != nil {
			return sent, err
		}
		now, got := time.Now(), (out-base)/each
		if got != last {
			moved, last = now, got
		}
		under := sent - min(got+missing, sent)
		switch over := now.Sub(begin) >= span; {
		case under > 0 && now.Sub(moved) > stalled:
			missing += under
		case over && under == 0:
			return sent, nil
		case over || under+uint64(burst) > window:
			time.Sleep(50 * time.Microsecond)
		default:
			if err := f.make(p, sourceHosts[0], frame, burst, 64); err != nil {
				return sent, err
			}
			sent += uint64(burst)
		}
	}
}

// A look is a snapshot of the counters.
type look struct {
	cpu        time.Duration
	out        uint64
	in, copies ran
}

func (f *field) look(s *process) (l look, err error) {
	if l.out, err = f.out(); err != nil {
		return l, err
	}
	own, err := report.Used()
	if err != nil {
		return l, err
	}
	child, err := s.CPU()
	if err != nil {
		return l, err
	}
	kernel, err := softirqd()
	if l.cpu = child; !s.own {
		l.cpu += own + kernel
	}
	l.in, l.copies = s.ran("ingress"), s.ran("copy_out")
	return l, err
}
