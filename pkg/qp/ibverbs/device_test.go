//go:build ibverbs && cgo && linux

package ibverbs

import (
	"bytes"
	"context"
	"errors"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/mcrdma/mcrdma/pkg/qp"
)

// The tests of this file need an RDMA device whose GID is reachable from
// itself, for example soft-RoCE. The interoperability tests run them in a guest
// that has one; anywhere else they run if deviceEnv names a device.
const deviceEnv = "MCRDMA_IBVERBS_DEVICE"

func openTest(t *testing.T) qp.Device {
	t.Helper()
	name := os.Getenv(deviceEnv)
	if name == "" {
		t.Skipf("%s names no RDMA device to test with", deviceEnv)
	}
	t.Cleanup(func() { goleak.VerifyNone(t) })
	dev, err := qp.Open("ibverbs:" + name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := dev.Close(); err != nil && !errors.Is(err, qp.ErrClosed) {
			t.Error(err)
		}
	})
	return dev
}

func must[T any](v T, err error) func(t *testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// An end is one of two queue pairs that are connected to each other.
type end struct {
	qp             qp.QP
	sendCQ, recvCQ qp.CQ
	mr             qp.MR
}

const testMem = 64 << 10

func newEnd(t *testing.T, dev qp.Device, pd qp.PD, recvDepth int) *end {
	t.Helper()
	e := &end{
		sendCQ: must(dev.CreateCQ(128))(t),
		recvCQ: must(dev.CreateCQ(recvDepth))(t),
		mr:     must(pd.RegMR(make([]byte, testMem), qp.AccessRemoteWrite|qp.AccessRemoteRead))(t),
	}
	e.qp = must(pd.CreateQP(qp.Init{SendCQ: e.sendCQ, RecvCQ: e.recvCQ}))(t)
	return e
}

// bringUp takes e to the state next, connected to peer.
func (e *end) bringUp(t *testing.T, dev qp.Device, peer *end, next qp.State) {
	t.Helper()
	a := qp.Attr{Access: qp.AccessRemoteWrite | qp.AccessRemoteRead, DestAddr: dev.Attr().Addr, DestQPN: peer.qp.QPN(), PathMTU: 1024,
		SQPSN: 7, RQPSN: 7, Timeout: 15, RetryCnt: 7, RNRRetry: 7, MinRNRTimer: 12, MaxRdAtomic: 2, MaxDestRdAtomic: 4}
	for _, step := range []struct {
		state qp.State
		mask  qp.AttrMask
	}{{qp.StateInit, qp.MaskInit}, {qp.StateRTR, qp.MaskRTR | qp.MaskMaxDestRdAtomic}, {qp.StateRTS, qp.MaskRTS | qp.MaskMaxRdAtomic}} {
		if step.state > next {
			return
		}
		a.State = step.state
		if err := e.qp.Modify(&a, step.mask); err != nil {
			t.Fatal(err)
		}
		if got := e.qp.State(); got != step.state {
			t.Fatalf("state is %v after modifying to %v", got, step.state)
		}
	}
}

func newPair(t *testing.T, dev qp.Device, recvDepth int) (a, b *end) {
	t.Helper()
	pd := must(dev.AllocPD())(t)
	a, b = newEnd(t, dev, pd, recvDepth), newEnd(t, dev, pd, recvDepth)
	a.bringUp(t, dev, b, qp.StateRTS)
	b.bringUp(t, dev, a, qp.StateRTS)
	return a, b
}

// one waits for one completion.
func one(t *testing.T, cq qp.CQ) qp.WC {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	var wc [1]qp.WC
	for {
		n, err := cq.Poll(wc[:])
		if err != nil {
			t.Fatal(err)
		}
		if n == 1 {
			return wc[0]
		}
		if err := cq.Wait(ctx); err != nil {
			t.Fatal(err)
		}
	}
}

func TestOpenFinds(t *testing.T) {
	dev := openTest(t)
	a := dev.Attr()
	if a.Driver != "ibverbs" || !a.Addr.Is4() || !qp.ValidMTU(a.ActiveMTU) || a.MaxSGE < 1 || a.MaxQPWR < 1 || a.MaxCQE < 1 {
		t.Errorf("attributes %+v", a)
	}
	name, _, _ := strings.Cut(dev.Name(), "?")
	if !strings.HasPrefix(name, "ibverbs:") {
		t.Errorf("name %q", name)
	}
	if len(dev.Counters()) == 0 {
		t.Error("no counters")
	}
	for arg, says := range map[string]string{
		"nosuch0":          "have [",
		"?port=9":          "port 9",
		"?gid=0":           "RoCEv2 with an IPv4 address", // index 0 is the link-local IPv6 address
		"?gid=65535":       "no index 65535",
		"nosuch0?gid=late": "gid=late",
	} {
		if _, err := Open(arg); !errors.Is(err, qp.ErrDevice) || !strings.Contains(err.Error(), says) {
			t.Errorf("Open(%q): %v, want one that says %q", arg, err, says)
		}
	}
}

func TestLoopback(t *testing.T) {
	dev := openTest(t)
	a, b := newPair(t, dev, 128)
	for i := range a.mr.Bytes() {
		a.mr.Bytes()[i] = byte(i * 7)
	}
	// Garbage collection, so that a region that is not pinned would be caught.
	stop := make(chan struct{})
	var churn sync.WaitGroup
	churn.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				runtime.GC()
				_ = make([]byte, 1<<20)
			}
		}
	})
	defer churn.Wait()
	defer close(stop)

	if err := b.qp.PostRecv(&qp.RecvWR{ID: 5, SGEs: []qp.SGE{b.mr.SGE(100, 1000), b.mr.SGE(5000, 3000)}}); err != nil {
		t.Fatal(err)
	}
	if err := a.qp.PostSend(&qp.SendWR{ID: 6, Opcode: qp.OpSendImm, Flags: qp.FlagSignaled | qp.FlagSolicited, Imm: 0xfeedbeef,
		SGEs: []qp.SGE{a.mr.SGE(1, 1999), a.mr.SGE(2000, 1001)}}); err != nil {
		t.Fatal(err)
	}
	if wc := one(t, a.sendCQ); wc.ID != 6 || wc.Status != qp.StatusSuccess || wc.Opcode != qp.WCSend || wc.QPN != a.qp.QPN() {
		t.Errorf("send completion %+v", wc)
	}
	want := qp.WC{ID: 5, Opcode: qp.WCRecv, QPN: b.qp.QPN(), ByteLen: 3000, HasImm: true, Imm: 0xfeedbeef}
	if wc := one(t, b.recvCQ); wc != want {
		t.Errorf("receive completion %+v, want %+v", wc, want)
	}
	got := append(bytes.Clone(b.mr.Bytes()[100:1100]), b.mr.Bytes()[5000:7000]...)
	if !bytes.Equal(got, a.mr.Bytes()[1:3001]) {
		t.Error("data differ")
	}

	if err := a.qp.PostSend(&qp.SendWR{ID: 7, Opcode: qp.OpWrite, Flags: qp.FlagSignaled, SGEs: []qp.SGE{a.mr.SGE(3, 10001)},
		RemoteAddr: b.mr.Addr() + 20001, RKey: b.mr.RKey()}); err != nil {
		t.Fatal(err)
	}
	if wc := one(t, a.sendCQ); wc.ID != 7 || wc.Status != qp.StatusSuccess || wc.Opcode != qp.WCWrite {
		t.Errorf("write completion %+v", wc)
	}
	if !bytes.Equal(b.mr.Bytes()[20001:30002], a.mr.Bytes()[3:10004]) {
		t.Error("written data differ")
	}
	if err := a.qp.PostSend(&qp.SendWR{ID: 8, Opcode: qp.OpRead, Flags: qp.FlagSignaled | qp.FlagFence, SGEs: []qp.SGE{a.mr.SGE(40000, 10001)},
		RemoteAddr: b.mr.Addr() + 20001, RKey: b.mr.RKey()}); err != nil {
		t.Fatal(err)
	}
	if wc := one(t, a.sendCQ); wc.ID != 8 || wc.Status != qp.StatusSuccess || wc.Opcode != qp.WCRead {
		t.Errorf("read completion %+v", wc)
	}
	if !bytes.Equal(b.mr.Bytes()[20001:30002], a.mr.Bytes()[40000:50001]) {
		t.Error("read data differ")
	}
}

func TestQuery(t *testing.T) {
	dev := openTest(t)
	a, b := newPair(t, dev, 128)
	got := must(a.qp.Query())(t)
	want := qp.Attr{State: qp.StateRTS, Access: qp.AccessRemoteWrite | qp.AccessRemoteRead, DestAddr: dev.Attr().Addr, DestQPN: b.qp.QPN(),
		PathMTU: 1024, SQPSN: 7, RQPSN: 7, Timeout: 15, RetryCnt: 7, RNRRetry: 7, MinRNRTimer: 12, MaxRdAtomic: 2, MaxDestRdAtomic: 4}
	if got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	// And one that is set up with a DSCP, which becomes the traffic class.
	pd := must(dev.AllocPD())(t)
	c := newEnd(t, dev, pd, 16)
	c.bringUp(t, dev, a, qp.StateInit)
	attr := want
	attr.State, attr.DSCP, attr.PathMTU, attr.RQPSN = qp.StateRTR, 46, 256, 0xabcdef
	if err := c.qp.Modify(&attr, qp.MaskRTR|qp.MaskDSCP); err != nil {
		t.Fatal(err)
	}
	if got := must(c.qp.Query())(t); got.DSCP != 46 || got.PathMTU != 256 || got.RQPSN != 0xabcdef {
		t.Errorf("got %+v", got)
	}
}

func TestStates(t *testing.T) {
	dev := openTest(t)
	pd := must(dev.AllocPD())(t)
	e := newEnd(t, dev, pd, 16)
	send := &qp.SendWR{Opcode: qp.OpSend, Flags: qp.FlagSignaled}
	recv := &qp.RecvWR{ID: 3}
	if err := e.qp.PostRecv(recv); !errors.Is(err, qp.ErrState) {
		t.Errorf("receive in RESET: %v", err)
	}
	if err := e.qp.Modify(&qp.Attr{State: qp.StateRTS}, qp.MaskState); !errors.Is(err, qp.ErrState) {
		t.Errorf("RESET → RTS: %v", err)
	}
	e.bringUp(t, dev, e, qp.StateInit)
	if err := e.qp.PostRecv(recv); err != nil {
		t.Errorf("receive in INIT: %v", err)
	}
	if err := e.qp.PostSend(send); !errors.Is(err, qp.ErrState) {
		t.Errorf("send in INIT: %v", err)
	}
	if err := e.qp.Modify(&qp.Attr{State: qp.StateRTR}, qp.MaskState); !errors.Is(err, qp.ErrAttr) {
		t.Errorf("RTR without attributes: %v", err)
	}
	if err := e.qp.Modify(&qp.Attr{State: qp.StateError}, qp.MaskState); err != nil {
		t.Fatal(err)
	}
	if wc := one(t, e.recvCQ); wc.ID != 3 || wc.Status != qp.StatusWRFlushErr {
		t.Errorf("receive in ERROR completes as %+v", wc)
	}
	if err := e.qp.Modify(&qp.Attr{State: qp.StateReset}, qp.MaskState); err != nil {
		t.Fatal(err)
	}
	if got := e.qp.State(); got != qp.StateReset {
		t.Errorf("state %v", got)
	}
}

func TestBadRequests(t *testing.T) {
	dev := openTest(t)
	a, b := newPair(t, dev, 16)
	five := []qp.SGE{a.mr.SGE(0, 1), a.mr.SGE(0, 1), a.mr.SGE(0, 1), a.mr.SGE(0, 1), a.mr.SGE(0, 1)}
	for _, tc := range []struct {
		wr   qp.SendWR
		want error
	}{
		{qp.SendWR{Opcode: qp.OpFetchAdd}, qp.ErrOpcode},
		{qp.SendWR{Opcode: 77}, qp.ErrOpcode},
		{qp.SendWR{Opcode: qp.OpSend, SGEs: five}, qp.ErrSGE},
		{qp.SendWR{Opcode: qp.OpSend, SGEs: []qp.SGE{{Length: 1<<32 - 1}}}, qp.ErrSGE},
	} {
		if err := a.qp.PostSend(&tc.wr); !errors.Is(err, tc.want) {
			t.Errorf("%+v: %v, want %v", tc.wr, err, tc.want)
		}
	}
	if err := a.qp.PostRecv(&qp.RecvWR{SGEs: five}); !errors.Is(err, qp.ErrSGE) {
		t.Errorf("receive with five SGEs: %v", err)
	}
	// An invalid rkey: the responder refuses, both queue pairs fail.
	if err := a.qp.PostSend(&qp.SendWR{ID: 1, Opcode: qp.OpWrite, SGEs: five[:1], RemoteAddr: b.mr.Addr(),
		RKey: b.mr.RKey() ^ 0xff}); err != nil {
		t.Fatal(err)
	}
	if wc := one(t, a.sendCQ); wc.ID != 1 || wc.Status != qp.StatusRemAccessErr {
		t.Errorf("WRITE with a wrong rkey completes as %+v", wc)
	}
	if got := a.qp.State(); got != qp.StateError {
		t.Errorf("state %v afterwards", got)
	}
}

// TestPollInPieces takes completions out in other portions than libibverbs
// hands them over.
func TestPollInPieces(t *testing.T) {
	dev := openTest(t)
	a, b := newPair(t, dev, 128)
	const n = 70 // more than two of Poll's own batches
	for i := range n {
		if err := b.qp.PostRecv(&qp.RecvWR{ID: uint64(i)}); err != nil {
			t.Fatal(err)
		}
		if err := a.qp.PostSend(&qp.SendWR{ID: uint64(i), Opcode: qp.OpSend, Flags: qp.FlagSignaled}); err != nil {
			t.Fatal(err)
		}
	}
	// The last send has completed, so all receives have.
	for i := range n {
		if wc := one(t, a.sendCQ); wc.ID != uint64(i) || wc.Status != qp.StatusSuccess {
			t.Fatalf("send completion %d is %+v", i, wc)
		}
	}
	next := 0
	for size := 1; next < n; size++ {
		wc := make([]qp.WC, size)
		got, err := b.recvCQ.Poll(wc)
		if err != nil || got != min(size, n-next) {
			t.Fatalf("polling %d of %d left: %d, %v", size, n-next, got, err)
		}
		for _, w := range wc[:got] {
			if w.ID != uint64(next) {
				t.Fatalf("receive completion %d is %+v", next, w)
			}
			next++
		}
	}
}

func TestQueueFull(t *testing.T) {
	dev := openTest(t)
	pd := must(dev.AllocPD())(t)
	e := newEnd(t, dev, pd, 16)
	e.bringUp(t, dev, e, qp.StateInit)
	const plenty = 64 * qp.DefaultWR
	for n := range plenty {
		err := e.qp.PostRecv(&qp.RecvWR{})
		if errors.Is(err, qp.ErrQueueFull) && n >= qp.DefaultWR {
			return
		}
		if err != nil {
			t.Fatalf("receive %d: %v", n, err)
		}
	}
	t.Errorf("%d receives fit into a queue of %d", plenty, qp.DefaultWR)
}

func TestLimits(t *testing.T) {
	dev := openTest(t)
	pd := must(dev.AllocPD())(t)
	a := dev.Attr()
	for _, n := range []int{0, -1, a.MaxCQE + 1} {
		if _, err := dev.CreateCQ(n); !errors.Is(err, qp.ErrLimit) {
			t.Errorf("CQ of %d: %v", n, err)
		}
	}
	cq := must(dev.CreateCQ(4))(t)
	for _, init := range []qp.Init{{MaxSendWR: a.MaxQPWR + 1}, {MaxRecvWR: -1}, {MaxSGE: a.MaxSGE + 1}} {
		init.SendCQ, init.RecvCQ = cq, cq
		if _, err := pd.CreateQP(init); !errors.Is(err, qp.ErrLimit) {
			t.Errorf("%+v: %v", init, err)
		}
	}
	if _, err := pd.CreateQP(qp.Init{SendCQ: cq}); !errors.Is(err, qp.ErrAttr) {
		t.Errorf("without receive CQ: %v", err)
	}
	if _, err := pd.RegMR(nil, 0); !errors.Is(err, qp.ErrAttr) {
		t.Errorf("empty region: %v", err)
	}
	if _, err := pd.RegMR(make([]byte, 1), 0x80); !errors.Is(err, qp.ErrAttr) {
		t.Errorf("unknown access: %v", err)
	}
	mr := must(pd.RegMR(make([]byte, 10), 0))(t)
	defer func() {
		if recover() == nil {
			t.Error("an SGE outside of its region did not panic")
		}
	}()
	mr.SGE(5, 6)
}

// TestRegMRAt: a region is where its owner says, for peers and for its own SGEs, if the place within
// a page is that of the memory.
func TestRegMRAt(t *testing.T) {
	const at = 1 << 40
	dev := openTest(t)
	pd := must(dev.AllocPD())(t)
	a, b := newEnd(t, dev, pd, 16), newEnd(t, dev, pd, 16)
	a.bringUp(t, dev, b, qp.StateRTS)
	b.bringUp(t, dev, a, qp.StateRTS)
	buf := make([]byte, testMem) // begins with a page
	m := must(pd.(qp.Mapper).RegMRAt(buf, at, qp.AccessRemoteWrite))(t)
	if m.Addr() != at || m.SGE(5, 9).Addr != at+5 {
		t.Errorf("region at %#x, SGE %+v", m.Addr(), m.SGE(5, 9))
	}
	copy(a.mr.Bytes(), "written")
	if err := a.qp.PostSend(&qp.SendWR{ID: 1, Opcode: qp.OpWrite, RemoteAddr: at + 50, RKey: m.RKey(), SGEs: []qp.SGE{a.mr.SGE(0, 7)},
		Flags: qp.FlagSignaled}); err != nil {
		t.Fatal(err)
	}
	if wc := one(t, a.sendCQ); wc.Status != qp.StatusSuccess || string(buf[50:57]) != "written" {
		t.Errorf("%+v, %q", wc, buf[50:57])
	}
	if _, err := pd.(qp.Mapper).RegMRAt(buf, at+1, 0); !errors.Is(err, qp.ErrAttr) {
		t.Errorf("elsewhere within a page: %v", err)
	}
}

func TestCloseInOrder(t *testing.T) {
	dev := openTest(t)
	pd := must(dev.AllocPD())(t)
	e := newEnd(t, dev, pd, 16)
	for name, c := range map[string]interface{ Close() error }{"PD": pd, "send CQ": e.sendCQ, "receive CQ": e.recvCQ} {
		if err := c.Close(); !errors.Is(err, qp.ErrBusy) {
			t.Errorf("closing the %s in use: %v", name, err)
		}
	}
	for _, c := range []interface{ Close() error }{e.qp, e.mr, e.sendCQ, e.recvCQ, pd} {
		if err := c.Close(); err != nil {
			t.Errorf("%T: %v", c, err)
		}
		if err := c.Close(); !errors.Is(err, qp.ErrClosed) {
			t.Errorf("%T closed twice: %v", c, err)
		}
	}
	var wc [1]qp.WC
	_, err1 := e.sendCQ.Poll(wc[:])
	_, err2 := e.qp.Query()
	_, err3 := pd.RegMR(make([]byte, 1), 0)
	_, err4 := pd.CreateQP(qp.Init{SendCQ: e.sendCQ, RecvCQ: e.recvCQ})
	for i, err := range []error{err1, err2, err3, err4, e.sendCQ.Wait(t.Context()), e.qp.PostRecv(&qp.RecvWR{}),
		e.qp.Modify(&qp.Attr{}, qp.MaskState)} {
		if !errors.Is(err, qp.ErrClosed) && !errors.Is(err, qp.ErrState) {
			t.Errorf("use %d after closing: %v", i, err)
		}
	}
}

// TestCloseDevice leaves all to the device, with waits outstanding.
func TestCloseDevice(t *testing.T) {
	dev := openTest(t)
	a, _ := newPair(t, dev, 16)
	results := make(chan error, 3)
	for range 2 {
		go func() { results <- a.recvCQ.Wait(context.Background()) }()
	}
	go func() {
		_, err := dev.Event(context.Background())
		results <- err
	}()
	if err := dev.Close(); err != nil {
		t.Error(err)
	}
	for range cap(results) {
		select {
		case err := <-results:
			if !errors.Is(err, qp.ErrClosed) {
				t.Errorf("a wait ended with %v", err)
			}
		case <-time.After(20 * time.Second):
			t.Fatal("a wait outlived its device")
		}
	}
	if err := dev.Close(); !errors.Is(err, qp.ErrClosed) {
		t.Errorf("closed twice: %v", err)
	}
	if _, err := dev.AllocPD(); !errors.Is(err, qp.ErrClosed) {
		t.Errorf("PD of a closed device: %v", err)
	}
	if err := a.mr.Close(); !errors.Is(err, qp.ErrClosed) {
		t.Errorf("region of a closed device: %v", err)
	}
}

func TestWait(t *testing.T) {
	dev := openTest(t)
	a, b := newPair(t, dev, 16)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := b.recvCQ.Wait(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("waiting for nothing: %v", err)
	}
	if err := b.recvCQ.Wait(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("waiting with an ended context: %v", err)
	}
	// One completion wakes all who wait, and those who come later.
	results := make(chan error, 3)
	for range cap(results) {
		go func() { results <- b.recvCQ.Wait(t.Context()) }()
	}
	if err := b.qp.PostRecv(&qp.RecvWR{ID: 9}); err != nil {
		t.Fatal(err)
	}
	if err := a.qp.PostSend(&qp.SendWR{Opcode: qp.OpSend, Flags: qp.FlagSignaled}); err != nil {
		t.Fatal(err)
	}
	for range cap(results) {
		select {
		case err := <-results:
			if err != nil {
				t.Error(err)
			}
		case <-time.After(20 * time.Second):
			t.Fatal("a waiter was not woken")
		}
	}
	if err := b.recvCQ.Wait(t.Context()); err != nil {
		t.Error(err)
	}
	if wc := one(t, b.recvCQ); wc.ID != 9 {
		t.Errorf("got %+v", wc)
	}
	if wc := one(t, a.sendCQ); wc.Status != qp.StatusSuccess {
		t.Errorf("got %+v", wc)
	}
}

func TestEvents(t *testing.T) {
	dev := openTest(t)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	short, end := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer end()
	if ev, err := dev.Event(short); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("event %+v, %v out of nothing", ev, err)
	}
	// More receives complete than the queue has room for.
	a, b := newPair(t, dev, 1)
	go func() {
		for range 64 {
			if b.qp.PostRecv(&qp.RecvWR{}) != nil || a.qp.PostSend(&qp.SendWR{Opcode: qp.OpSend}) != nil {
				return
			}
		}
	}()
	for {
		ev, err := dev.Event(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if ev.Type == qp.EventCQError {
			break
		}
	}
	if err := b.recvCQ.Wait(ctx); err != nil {
		t.Error(err)
	}
	var wc [8]qp.WC
	if _, err := b.recvCQ.Poll(wc[:]); !errors.Is(err, qp.ErrOverrun) {
		t.Errorf("polling an overrun queue: %v", err)
	}
}

func TestNothingAllocates(t *testing.T) {
	dev := openTest(t)
	a, b := newPair(t, dev, 128)
	var wc [4]qp.WC
	send := qp.SendWR{Opcode: qp.OpSend, Flags: qp.FlagSignaled, SGEs: []qp.SGE{a.mr.SGE(0, 8)}}
	recv := qp.RecvWR{SGEs: []qp.SGE{b.mr.SGE(0, 8)}}
	n := testing.AllocsPerRun(50, func() {
		if b.qp.PostRecv(&recv) != nil || a.qp.PostSend(&send) != nil {
			t.Fatal("posting failed")
		}
		for left := 2; left > 0; {
			n1, err1 := a.sendCQ.Poll(wc[:])
			n2, err2 := b.recvCQ.Poll(wc[:])
			if err1 != nil || err2 != nil {
				t.Fatal(err1, err2)
			}
			left -= n1 + n2
			runtime.Gosched()
		}
	})
	if n > 0 {
		t.Errorf("%v allocations per message", n)
	}
}
