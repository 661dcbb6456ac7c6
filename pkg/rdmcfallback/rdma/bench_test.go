package rdma

import (
	"context"
	"encoding/binary"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/mcrdma/mcrdma/internal/testenv"
	"github.com/mcrdma/mcrdma/pkg/qp"
	"github.com/mcrdma/mcrdma/pkg/rdmcfallback"
	"github.com/mcrdma/mcrdma/pkg/rdmcfallback/schedule"
	"github.com/mcrdma/mcrdma/pkg/rocev2"
)

// BenchmarkReady takes the time from posting a buffer until the peer knows, and
// back again, once as the transport does it and once over the control connection.
func BenchmarkReady(b *testing.B) {
	b.Run("queue-pair", func(b *testing.B) {
		x, y := pair(b)
		link(b, x, y)
		link(b, y, x)
		var total time.Duration
		for b.Loop() {
			start := time.Now()
			check(b, x.x.PostRecv(1, nil))
			y.fetch(rdmcfallback.EventReady)
			check(b, y.x.PostRecv(0, nil))
			x.fetch(rdmcfallback.EventReady)
			total += time.Since(start)
			// Blocks without bytes return the buffers.
			check(b, x.x.Send(1, 0, nil))
			check(b, y.x.Send(0, 0, nil))
			for range 2 {
				x.fetch(0)
				y.fetch(0)
			}
		}
		b.ReportMetric(float64(total.Nanoseconds())/float64(b.N), "ns/turn")
	})
	b.Run("control", func(b *testing.B) {
		x, y := pair(b)
		var msg [4]byte
		start := time.Now()
		for b.Loop() {
			binary.BigEndian.PutUint32(msg[:], uint32(b.N))
			check(b, x.x.Tell(1, msg[:]))
			y.fetch(rdmcfallback.EventTold)
			check(b, y.x.Tell(0, msg[:]))
			x.fetch(rdmcfallback.EventTold)
		}
		b.ReportMetric(float64(time.Since(start).Nanoseconds())/float64(b.N), "ns/turn")
	})
}

// fetch fetches one event; 0 stands for any kind.
func (b *inbox) fetch(kind rdmcfallback.EventKind) {
	if _, err := b.x.Events(context.Background(), b.buf[:]); err != nil || kind != 0 && b.buf[0].Kind != kind {
		b.t.Fatalf("%+v, %v", b.buf[0], err)
	}
}

// A unicast writes a message from one device to another, as it would be sent
// without a group.
type unicast struct {
	dev [2]qp.Device
	cq  [2]qp.CQ
	mr  [2]qp.MR
	qp  [2]qp.QP
}

func newUnicast(t testing.TB, msg []byte) *unicast {
	u := &unicast{}
	bufs := [2][]byte{msg, make([]byte, len(msg))}
	for i := range u.dev {
		var err error
		u.dev[i], err = qp.Open("softroce:" + testenv.Loopback().String())
		check(t, err)
		t.Cleanup(func() { _ = u.dev[i].Close() })
		pd, err := u.dev[i].AllocPD()
		check(t, err)
		u.cq[i], err = u.dev[i].CreateCQ(256)
		check(t, err)
		u.mr[i], err = pd.RegMR(bufs[i], qp.AccessLocalWrite|qp.AccessRemoteWrite)
		check(t, err)
		u.qp[i], err = pd.CreateQP(qp.Init{SendCQ: u.cq[i], RecvCQ: u.cq[i], MaxSGE: 1, SignalAll: true})
		check(t, err)
	}
	for i, q := range u.qp {
		other := 1 - i
		check(t, q.Modify(&qp.Attr{State: qp.StateInit, Access: qp.AccessRemoteWrite}, qp.MaskInit))
		check(t, q.Modify(&qp.Attr{State: qp.StateRTR, DestAddr: u.dev[other].Attr().Addr, DestQPN: u.qp[other].QPN(),
			PathMTU: u.dev[0].Attr().ActiveMTU, RQPSN: rocev2.PSN(1), MinRNRTimer: minRNRTimer}, qp.MaskRTR))
		check(t, q.Modify(&qp.Attr{State: qp.StateRTS, SQPSN: rocev2.PSN(1), Timeout: ackTimeout, RetryCnt: retryCount, RNRRetry: rnrRetry}, qp.MaskRTS))
	}
	return u
}

// write writes the message by one WRITE for each MiB, all at once, and waits until
// it has been acknowledged.
func (u *unicast) write(t testing.TB) {
	const chunk = 1 << 20
	n := len(u.mr[0].Bytes())
	posted := 0
	for off := 0; off < n; off += chunk {
		wr := qp.SendWR{Opcode: qp.OpWrite, SGEs: []qp.SGE{u.mr[0].SGE(off, min(chunk, n-off))},
			RemoteAddr: u.mr[1].Addr() + uint64(off), RKey: u.mr[1].RKey()}
		check(t, u.qp[0].PostSend(&wr))
		posted++
	}
	var wcs [64]qp.WC
	for posted > 0 {
		check(t, u.cq[0].Wait(context.Background()))
		k, err := u.cq[0].Poll(wcs[:])
		check(t, err)
		for i := range k {
			check(t, wcs[i].Status.Err())
		}
		posted -= k
	}
}

// BenchmarkGroup sends 64 MB to all members of a group, by turns with one WRITE of
// the same message to one other device, and reports the ratio of the times.
func BenchmarkGroup(b *testing.B) {
	const size, block = 64 << 20, 1 << 20
	for _, n := range []int{2, 4, 8} {
		for _, a := range []schedule.Algorithm{schedule.BinomialPipeline, schedule.Chain, schedule.Sequential} {
			for _, ahead := range []int{0, 2} {
				b.Run(fmt.Sprintf("n=%d/%v/ahead=%d", n, a, ahead), func(b *testing.B) { benchmarkGroup(b, n, size, block, ahead, a) })
			}
		}
	}
}

func benchmarkGroup(b *testing.B, n, size, block, ahead int, a schedule.Algorithm) {
	ctx := limited(b)
	msg := make([]byte, size)
	for i := range msg {
		msg[i] = byte(i)
	}
	u := newUnicast(b, msg)
	ts, _ := connect(b, n)
	var done sync.WaitGroup
	members := join(b, rdmcfallback.Config{Algorithm: a, BlockSize: block, Ahead: ahead}, ts, func(_ int, c *rdmcfallback.Config) {
		buf := make([]byte, size)
		c.Incoming = func(int64) ([]byte, error) { return buf, nil }
		c.Complete = func([]byte) { done.Done() }
	})
	send := func() {
		done.Add(n)
		check(b, members[0].Send(ctx, msg))
		done.Wait()
	}
	send()
	u.write(b)
	var group, single time.Duration
	var mallocs uint64
	var before, after runtime.MemStats
	b.SetBytes(int64(size))
	for b.Loop() {
		runtime.ReadMemStats(&before)
		start := time.Now()
		send()
		group += time.Since(start)
		runtime.ReadMemStats(&after)
		mallocs += after.Mallocs - before.Mallocs
		b.StopTimer()
		start = time.Now()
		u.write(b)
		single += time.Since(start)
		b.StartTimer()
	}
	b.ReportMetric(float64(group)/float64(single), "x-unicast")
	b.ReportMetric(float64(mallocs)/float64(b.N*(n-1)*(size/block)), "allocs/block")
	for i, err := range closeAll(ctx, members) {
		if err != nil {
			b.Errorf("member %d: %v", i, err)
		}
	}
}
