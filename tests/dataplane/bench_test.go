package dataplane

import (
	"fmt"
	"testing"

	"github.com/mcrdma/mcrdma/pkg/rocev2"
)

// The benchmarks run the compiled program on one core, with 1 KiB of payload
// where there is any. kpps counts packets that go in.

func kpps(b *testing.B) {
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds()/1e3, "kpps")
}

func BenchmarkUnicast(b *testing.B) {
	s := rack(b)
	in := Between(1, 2, rocev2.Headers{BTH: rocev2.BTH{Opcode: rocev2.SendMiddle, PKey: rocev2.DefaultPKey, DestQP: 0x11}},
		make([]byte, 1024)).Frame()
	b.SetBytes(int64(len(in)))
	b.ReportAllocs()
	out := 0
	for b.Loop() {
		s.Process(s.Now, 1, in, func(uint16, []byte) { out++ })
	}
	kpps(b)
	if out != b.N {
		b.Fatalf("%d in, %d out; drops %v", b.N, out, s.Dropped())
	}
}

func BenchmarkReplicate(b *testing.B) {
	for i := range 10 {
		n, mode := []int{1, 2, 3, 7, 16}[i/2], []uint64{Recompute, Neutral}[i%2]
		b.Run(fmt.Sprintf("copies=%d/neutral=%t", n, mode == Neutral), func(b *testing.B) {
			s := rack(b)
			s.SetICRC(mode)
			g := trio
			g.Receivers = nil
			for i := range n {
				g.Receivers = append(g.Receivers, 2+i)
				g.Targets = append(g.Targets, Target{ReceiverQPN(i), ReceiverRKey(i), SenderVA})
			}
			s.Install(g)
			in := g.Data(rocev2.WriteOnly, 0, make([]byte, 1024)).Frame()
			b.SetBytes(int64(len(in)))
			b.ReportAllocs()
			out := 0
			for b.Loop() {
				s.Process(s.Now, 1, in, func(uint16, []byte) { out++ })
			}
			kpps(b)
			if out != n*b.N {
				b.Fatalf("%d in, %d out; drops %v", b.N, out, s.Dropped())
			}
		})
	}
}

func BenchmarkMerge(b *testing.B) {
	for _, n := range []int{3, 16} {
		b.Run(fmt.Sprintf("members=%d", n), func(b *testing.B) {
			s := rack(b)
			g := trio
			g.Receivers = nil
			for i := range n {
				g.Receivers = append(g.Receivers, 2+i)
			}
			s.Install(g)
			const rounds = 256 // PSNs in turn: as in a run, one merged ACK for n
			var acks [][]byte
			for psn := range rounds {
				for i := range n {
					acks = append(acks, g.Answer(i, rocev2.AckNoLimit, rocev2.PSN(psn<<16), 1).Frame())
				}
			}
			b.ReportAllocs()
			out, k := 0, 0
			for b.Loop() {
				s.Process(s.Now, uint16(g.Receivers[k%n]), acks[k], func(uint16, []byte) { out++ })
				if k++; k == len(acks) {
					k = 0
				}
			}
			kpps(b)
			if out != b.N/n {
				b.Fatalf("%d in, %d out; drops %v", b.N, out, s.Dropped())
			}
		})
	}
}
