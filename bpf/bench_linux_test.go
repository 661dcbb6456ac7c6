package bpf_test

import (
	"encoding/binary"
	"syscall"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"

	"github.com/mcrdma/mcrdma/pkg/rocev2"
)

// source is a program that sends a frame anew each time it runs, since frames of a live run keep what was made of them.
func source(b *testing.B, frame []byte) *ebpf.Program {
	b.Helper()
	const words = 9
	ins := asm.Instructions{
		asm.LoadMem(asm.R2, asm.R1, 0, asm.Word), // data
		asm.LoadMem(asm.R3, asm.R1, 4, asm.Word), // data_end
		asm.Mov.Reg(asm.R4, asm.R2),
		asm.Add.Imm(asm.R4, 8*words),
		asm.Mov.Imm(asm.R0, xdpDrop),
		asm.JGT.Reg(asm.R4, asm.R3, "end"),
	}
	for i := range words {
		ins = append(ins, asm.LoadImm(asm.R5, int64(binary.LittleEndian.Uint64(frame[8*i:])), asm.DWord), //nolint:gosec // the same bits
			asm.StoreMem(asm.R2, int16(8*i), asm.R5, asm.DWord))
	}
	ins = append(ins, asm.Mov.Imm(asm.R0, 3), asm.Return().WithSymbol("end")) // XDP_TX
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.XDP, License: "Apache-2.0", Instructions: ins})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { p.Close() })
	return p
}

// The benchmarks are of the way from veth to veth, for frames of 1,100 B. Processor time is that of this process,
// in which the kernel does most of the work: the making of frames, all ports' sending and receiving, and their
// dropping at the other ends.

func BenchmarkVethRouted(b *testing.B) {
	w := newWired(b, 5, xdpDrop)
	w.put("ecn_ports", uint32(5), uint32(1)) // so that what leaves there is counted
	w.measure(b, "ecn_seen", 5, ip(udp(1, 5, 99, make([]byte, 1040)), func(h []byte) { h[1] = 2 }))
}

func BenchmarkVethCopies(b *testing.B) { // to three ports
	w := newWired(b, 5, xdpDrop)
	g := still()
	w.portSet(&g, w.Ports)
	w.replicate(&g, w.Ports)
	w.measure(b, "counters", 3, g.Data(rocev2.SendOnly, 1, make([]byte, 1040)).Frame())
}

// measure sends frames from host 1, and reports how many a counter has counted.
func (w *wired) measure(b *testing.B, table string, number uint32, frame []byte) {
	p := source(b, frame)
	b.ResetTimer()
	start, used := time.Now(), processor()
	w.live(p, uint32(w.Peers[1]), frame, uint32(b.N), 64) //nolint:gosec // small enough
	took, used := time.Since(start), processor()-used
	n := w.count(table, number)
	if n == 0 {
		b.Fatalf("nothing leaves; dropped %v", w.dropped())
	}
	b.ReportMetric(float64(n)/took.Seconds(), "packets/s")
	b.ReportMetric(float64(used.Nanoseconds())/float64(n), "cpu-ns/packet")
	b.ReportMetric(100*float64(n)/float64(b.N), "%left")
}

// processor is the processor time of this process.
func processor() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
