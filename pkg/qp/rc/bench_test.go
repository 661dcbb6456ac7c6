package rc_test

import (
	"testing"
	"time"

	"github.com/mcrdma/mcrdma/pkg/qp"
	"github.com/mcrdma/mcrdma/pkg/qp/rc"
)

type flatMemory []byte

func (m flatMemory) Remote(_ uint32, va uint64, n int, _ qp.Access) ([]byte, bool) {
	return m[va:][:n], true
}

// loop joins two queue pairs back to back, without a network.
type loop struct {
	a, b *rc.QP
	out  rc.Out
	in   rc.In
	now  time.Duration
}

func newLoop(mtu int) *loop {
	cfg := rc.Config{PathMTU: mtu, Access: qp.AccessRemoteWrite | qp.AccessRemoteRead, MaxRdAtomic: 4, MaxDestRdAtomic: 4, Timeout: 14, RetryCnt: 7, SignalAll: true}
	mem := flatMemory(make([]byte, 1<<20))
	l := &loop{a: rc.NewQP(cfg, mem), b: rc.NewQP(cfg, mem)}
	l.a.StartSend(&cfg)
	l.b.StartSend(&cfg)
	return l
}

// move hands all packets of one side to the other.
func (l *loop) move(from, to *rc.QP) {
	for from.Next(l.now, &l.out) {
		l.in.Headers, l.in.Payload = l.out.Headers, nil
		if len(l.out.Payload) > 0 {
			l.in.Payload = l.out.Payload[0]
		}
		to.Handle(&l.in, l.now)
	}
}

func (l *loop) run(wr *qp.SendWR, gather [][]byte) {
	if err := l.a.PostSend(wr, gather); err != nil {
		panic(err)
	}
	var wc qp.WC
	for {
		l.now += time.Microsecond
		l.move(l.a, l.b)
		l.move(l.b, l.a)
		if l.a.NextSendWC(&wc) {
			return
		}
	}
}

func benchmark(b *testing.B, op qp.Opcode, size, mtu int) {
	l := newLoop(mtu)
	wr := &qp.SendWR{Opcode: op}
	gather := [][]byte{make([]byte, size)}
	l.run(wr, gather)
	b.SetBytes(int64(size))
	b.ReportAllocs()
	for b.Loop() {
		l.run(wr, gather)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*max(1, size/mtu)), "ns/packet")
}

func BenchmarkWrite1M(b *testing.B) { benchmark(b, qp.OpWrite, 1<<20, 4096) }
func BenchmarkWrite64(b *testing.B) { benchmark(b, qp.OpWrite, 64, 4096) }
func BenchmarkRead1M(b *testing.B)  { benchmark(b, qp.OpRead, 1<<20, 4096) }

func TestSteadyStateDoesNotAllocate(t *testing.T) {
	l := newLoop(4096)
	gather := [][]byte{make([]byte, 1<<20)}
	for _, op := range []qp.Opcode{qp.OpWrite, qp.OpRead} {
		wr := &qp.SendWR{Opcode: op}
		if n := testing.AllocsPerRun(20, func() { l.run(wr, gather) }); n != 0 {
			t.Errorf("%v allocations for a %v of 256 packets", n, op)
		}
	}
}
