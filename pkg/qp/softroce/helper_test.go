package softroce

import (
	"context"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/mcrdma/mcrdma/internal/testenv"
	"github.com/mcrdma/mcrdma/pkg/qp"
	"github.com/mcrdma/mcrdma/pkg/qp/softroce/link"
	"github.com/mcrdma/mcrdma/pkg/rocev2"
)

func TestMain(m *testing.M) {
	if runAsPeer != nil && runAsPeer() {
		return
	}
	goleak.VerifyTestMain(m)
}

// runAsPeer, if there is one, makes this process something other than a test
// when it was started as that.
var runAsPeer func() bool

// must is for results that cannot fail in a working test.
func must[T any](v T, err error) func(t testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// open opens a device on a loopback address and closes it with the test.
func open(t testing.TB, options string) *Device {
	t.Helper()
	name := "softroce:" + testenv.Loopback().String()
	if options != "" {
		name += "?" + options
	}
	d, err := qp.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	closeWith(t, d.(*Device))
	return d.(*Device)
}

func closeWith(t testing.TB, d *Device) {
	t.Cleanup(func() {
		if err := d.Close(); err != nil && !d.closing() {
			t.Errorf("close %s: %v", d.Name(), err)
		}
	})
}

// onLink makes a device on l and closes it with the test.
func onLink(t testing.TB, l link.Link, opt Options) *Device {
	t.Helper()
	d := must(New(l, opt))(t)
	closeWith(t, d)
	return d
}

// An end is one queue pair with what belongs to it.
type end struct {
	t      testing.TB
	dev    *Device
	pd     qp.PD
	cq     qp.CQ // for both directions
	mr     qp.MR
	buf    []byte
	qp     qp.QP
	attr   qp.Attr // what connect uses
	ctx    context.Context
	cancel context.CancelFunc
	peer   *end // if it is another end
}

// newEnd makes a queue pair in RESET with a region of size bytes.
func newEnd(t testing.TB, d *Device, size int, init qp.Init) *end {
	t.Helper()
	e := &end{t: t, dev: d, buf: make([]byte, size)}
	e.ctx, e.cancel = context.WithTimeout(t.Context(), 20*time.Second)
	t.Cleanup(e.cancel)
	e.pd = must(d.AllocPD())(t)
	e.mr = must(e.pd.RegMR(e.buf, qp.AccessLocalWrite|qp.AccessRemoteWrite|qp.AccessRemoteRead))(t)
	depth := 1 << 10
	if init.SendCQ == nil {
		e.cq = must(d.CreateCQ(depth))(t)
		init.SendCQ, init.RecvCQ = e.cq, e.cq
	} else {
		e.cq = init.SendCQ
	}
	e.qp = must(e.pd.CreateQP(init))(t)
	e.attr = qp.Attr{
		Access: qp.AccessLocalWrite | qp.AccessRemoteWrite | qp.AccessRemoteRead, PathMTU: 4096,
		SQPSN: 0xfffff0, RQPSN: 0xfffff0, Timeout: 16, RetryCnt: 7, RNRRetry: 7, MinRNRTimer: 1, // 2 s: machines are busy
		MaxRdAtomic: 4, MaxDestRdAtomic: 4,
	}
	return e
}

// up brings the queue pair to RTS, connected to the queue pair qpn at addr.
func (e *end) up(addr netip.Addr, qpn rocev2.QPN) {
	e.t.Helper()
	e.attr.DestAddr, e.attr.DestQPN = addr, qpn
	for _, s := range []struct {
		state qp.State
		mask  qp.AttrMask
	}{{qp.StateInit, qp.MaskInit}, {qp.StateRTR, qp.MaskRTR | qp.MaskDSCP | qp.MaskMaxDestRdAtomic}, {qp.StateRTS, qp.MaskRTS | qp.MaskMaxRdAtomic}} {
		e.attr.State = s.state
		if err := e.qp.Modify(&e.attr, s.mask); err != nil {
			e.t.Fatal(err)
		}
	}
}

func connect(a, b *end) {
	a.t.Helper()
	a.peer, b.peer = b, a
	a.up(b.dev.Attr().Addr, b.qp.QPN())
	b.up(a.dev.Attr().Addr, a.qp.QPN())
}

// pair returns two connected queue pairs on two loopback devices.
func pair(t testing.TB, options string, size int) (a, b *end) {
	t.Helper()
	a, b = newEnd(t, open(t, options), size, qp.Init{}), newEnd(t, open(t, options), size, qp.Init{})
	connect(a, b)
	return a, b
}

// wc waits for the next completion.
func (e *end) wc() qp.WC {
	e.t.Helper()
	var wc [1]qp.WC
	for {
		n, err := e.cq.Poll(wc[:])
		if err != nil {
			e.t.Fatal(err)
		}
		if n == 1 {
			return wc[0]
		}
		if err := e.cq.Wait(e.ctx); err != nil {
			e.t.Fatalf("waiting for a completion: %v; %s", err, e.counters())
		}
	}
}

// want waits for the next completion, which must have this id and status.
func (e *end) want(id uint64, s qp.Status) qp.WC {
	e.t.Helper()
	wc := e.wc()
	if wc.ID != id || wc.Status != s {
		e.t.Fatalf("completion %d %q, want %d %q; %s", wc.ID, wc.Status, id, s, e.counters())
	}
	return wc
}

func (e *end) send(wr qp.SendWR) {
	e.t.Helper()
	wr.Flags |= qp.FlagSignaled
	if err := e.qp.PostSend(&wr); err != nil {
		e.t.Fatal(err)
	}
}

func (e *end) recv(id uint64, sges ...qp.SGE) {
	e.t.Helper()
	if err := e.qp.PostRecv(&qp.RecvWR{ID: id, SGEs: sges}); err != nil {
		e.t.Fatal(err)
	}
}

// event waits for the next event.
func (e *end) event() qp.Event {
	e.t.Helper()
	return must(e.dev.Event(e.ctx))(e.t)
}

// counters describes e's device and the peer's.
func (e *end) counters() string {
	s := "counters " + nonZero(e.dev)
	if e.peer != nil {
		s += ", the peer's " + nonZero(e.peer.dev)
	}
	return s
}

func nonZero(d *Device) string {
	m := d.Counters()
	for k, v := range m {
		if v == 0 {
			delete(m, k)
		}
	}
	return fmt.Sprint(m)
}

// until polls until ok, or fails the test.
func until(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !ok(); {
		if time.Now().After(deadline) {
			t.Fatalf("timed out waiting until %s", what)
		}
		time.Sleep(time.Millisecond)
	}
}

// fillPattern fills b with bytes that depend on position and seed.
func fillPattern(b []byte, seed int) {
	x := uint32(seed)*2654435761 + 1
	for i := range b {
		x = x*1664525 + 1013904223
		b[i] = byte(x >> 24)
	}
}

// modify changes e's queue pair to state s with e's attributes.
func modify(t testing.TB, e *end, s qp.State, mask qp.AttrMask) {
	t.Helper()
	a := e.attr
	a.State = s
	if err := e.qp.Modify(&a, mask); err != nil {
		t.Fatal(err)
	}
}
