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

// move hands all packets of one side to the other and returns how many.
func (l *loop) move(from, to *rc.QP) (n int) {
	for from.Next(l.now, &l.out) {
		l.in.Headers, l.in.Payload = l.out.Headers, nil
		if len(l.out.Payload) > 0 {
			l.in.Payload = l.out.Payload[0]
		}
		to.Handle(&l.in, l.now)
		n++
	}
	return n
}

func (l *loop) write(wr *qp.SendWR, gather [][]byte) (packets int) {
	if err := l.a.PostSend(wr, gather); err != nil {
		panic(err)
	}
	var wc qp.WC
	for {
		l.now += time.Microsecond
		packets += l.move(l.a, l.b)
		l.move(l.b, l.a)
		if l.a.NextSendWC(&wc) {
			return packets
		}
	}
}

func benchmarkWrite(b *testing.B, size, mtu int) {
	l := newLoop(mtu)
	wr := &qp.SendWR{Opcode: qp.OpWrite}
	gather := [][]byte{make([]byte, size)}
	l.write(wr, gather)
	b.SetBytes(int64(size))
	b.ReportAllocs()
	packets := 0
	for b.Loop() {
		packets += l.write(wr, gather)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(packets), "ns/packet")
}

func BenchmarkWrite1M(b *testing.B) { benchmarkWrite(b, 1<<20, 4096) }
func BenchmarkWrite64(b *testing.B) { benchmarkWrite(b, 64, 4096) }

func TestSteadyStateDoesNotAllocate(t *testing.T) {
	l := newLoop(4096)
	wr := &qp.SendWR{Opcode: qp.OpWrite}
	gather := [][]byte{make([]byte, 1<<20)}
	if n := testing.AllocsPerRun(20, func() { l.write(wr, gather) }); n != 0 {
		t.Errorf("%v allocations for a WRITE of 256 packets", n)
	}
}
