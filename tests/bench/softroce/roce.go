package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"time"

	"github.com/mcrdma/mcrdma/pkg/qp"
	"github.com/mcrdma/mcrdma/pkg/qp/softroce"
	"github.com/mcrdma/mcrdma/pkg/rocev2"
)

const (
	writeBytes = 1 << 20
	inFlight   = 16 // WRITEs in flight
	signalEach = 4  // one in this many has a completion, as in perftest
	pathMTU    = 4096
)

// A side is one process's queue pair.
type side struct {
	dev  *softroce.Device
	scq  qp.CQ
	rcq  qp.CQ
	mr   qp.MR
	qp   qp.QP
	peer hello
}

func openSide(j job, exchange func(hello) (hello, error)) (*side, error) {
	dev, err := softroce.Open(j.Local + "?" + j.Options)
	if err != nil {
		return nil, err
	}
	s := &side{dev: dev}
	pd, err := dev.AllocPD()
	if err != nil {
		return nil, err
	}
	if s.mr, err = pd.RegMR(make([]byte, writeBytes), qp.AccessLocalWrite|qp.AccessRemoteWrite); err != nil {
		return nil, err
	}
	if s.scq, err = dev.CreateCQ(256); err != nil {
		return nil, err
	}
	if s.rcq, err = dev.CreateCQ(256); err != nil {
		return nil, err
	}
	if s.qp, err = pd.CreateQP(qp.Init{SendCQ: s.scq, RecvCQ: s.rcq}); err != nil {
		return nil, err
	}
	if s.peer, err = exchange(hello{uint32(s.qp.QPN()), s.mr.Addr(), s.mr.RKey()}); err != nil {
		return nil, err
	}
	a := qp.Attr{Access: qp.AccessLocalWrite | qp.AccessRemoteWrite, DestAddr: netip.MustParseAddr(j.Peer),
		DestQPN: rocev2.QPN(s.peer.QPN), PathMTU: pathMTU, Timeout: 14, RetryCnt: 7, RNRRetry: 7, MinRNRTimer: 1}
	for _, m := range []struct {
		state qp.State
		mask  qp.AttrMask
	}{{qp.StateInit, qp.MaskInit}, {qp.StateRTR, qp.MaskRTR}, {qp.StateRTS, qp.MaskRTS}} {
		a.State = m.state
		if err := s.qp.Modify(&a, m.mask); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// next waits for a completion.
func next(ctx context.Context, cq qp.CQ, wcs []qp.WC) (int, error) {
	for {
		n, err := cq.Poll(wcs)
		if err != nil {
			return 0, err
		}
		for _, wc := range wcs[:n] {
			if wc.Status != qp.StatusSuccess {
				return 0, wc.Status.Err()
			}
		}
		if n > 0 {
			return n, nil
		}
		if err := cq.Wait(ctx); err != nil {
			return 0, err
		}
	}
}

func roceSend(j job, exchange func(hello) (hello, error), _ <-chan struct{}) (r sideResult, err error) {
	s, err := openSide(j, exchange)
	if err != nil {
		return r, err
	}
	defer s.dev.Close()
	ctx, cancel := context.WithTimeout(context.Background(), j.Span+10*time.Second)
	defer cancel()
	wr := qp.SendWR{Opcode: qp.OpWrite, SGEs: []qp.SGE{s.mr.SGE(0, writeBytes)},
		RemoteAddr: s.peer.VA, RKey: s.peer.RKey}
	var wcs [inFlight]qp.WC
	meter := newMeter()
	end := meter.start.Add(j.Span)
	for open := 0; ; {
		more := time.Now().Before(end)
		if !more && open == 0 {
			break
		}
		for more && open+signalEach <= inFlight {
			for i := range signalEach {
				if wr.Flags = 0; i == signalEach-1 {
					wr.Flags = qp.FlagSignaled
				}
				if err := s.qp.PostSend(&wr); err != nil {
					return r, err
				}
			}
			open += signalEach
		}
		n, err := next(ctx, s.scq, wcs[:])
		if err != nil {
			return r, err
		}
		open -= n * signalEach
		r.Bytes += uint64(n) * signalEach * writeBytes
	}
	meter.read(&r)
	c := s.dev.Counters()
	r.Packets = c["tx_packets"]
	r.Note = fmt.Sprint("send ", nonZero(c))
	return r, nil
}

func nonZero(c map[string]uint64) map[string]uint64 {
	maps.DeleteFunc(c, func(_ string, n uint64) bool { return n == 0 })
	return c
}

// roceRecv has nothing to do while the device places arriving data. It measures from the first
// packet that it notices until the sender has stopped.
func roceRecv(j job, exchange func(hello) (hello, error), stop <-chan struct{}) (r sideResult, err error) {
	s, err := openSide(j, exchange)
	if err != nil {
		return r, err
	}
	defer s.dev.Close()
	for s.dev.Counters()["rx_packets"] == 0 {
		select {
		case <-stop:
			return r, fmt.Errorf("no packet came: %v", nonZero(s.dev.Counters()))
		case <-time.After(time.Millisecond):
		}
	}
	before := s.dev.Counters()
	meter := newMeter()
	select {
	case <-stop:
	case <-time.After(j.Span - 50*time.Millisecond):
	}
	meter.read(&r)
	c := s.dev.Counters()
	r.Packets = c["rx_packets"] - before["rx_packets"]
	r.Bytes = c["rx_bytes"] - before["rx_bytes"]
	<-stop
	r.Note = fmt.Sprint("recv ", nonZero(s.dev.Counters()))
	return r, nil
}

func rocePing(j job, exchange func(hello) (hello, error), _ <-chan struct{}) (r sideResult, err error) {
	s, err := openSide(j, exchange)
	if err != nil {
		return r, err
	}
	defer s.dev.Close()
	ctx, cancel := context.WithTimeout(context.Background(), j.Span+10*time.Second)
	defer cancel()
	t := s.thrower()
	if err := t.post(); err != nil {
		return r, err
	}
	r.RTT, err = j.pings(func() error {
		if err := t.throw(ctx); err != nil {
			return err
		}
		return t.catch(ctx)
	})
	return r, err
}

func rocePong(j job, exchange func(hello) (hello, error), stop <-chan struct{}) (r sideResult, err error) {
	s, err := openSide(j, exchange)
	if err != nil {
		return r, err
	}
	defer s.dev.Close()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		<-stop
		cancel()
	}()
	t := s.thrower()
	if err := t.post(); err != nil {
		return r, err
	}
	for {
		if err := t.catch(ctx); errors.Is(err, context.Canceled) {
			return r, nil
		} else if err != nil {
			return r, err
		}
		if err := t.throw(ctx); err != nil {
			return r, err
		}
	}
}

// A thrower WRITEs 64 bytes with immediate data, whose completion notifies the other side.
type thrower struct {
	s    *side
	wr   qp.SendWR
	rwr  qp.RecvWR
	wcs  [16]qp.WC
	open int
}

func (s *side) thrower() *thrower {
	return &thrower{s: s, wr: qp.SendWR{Opcode: qp.OpWriteImm, Flags: qp.FlagSignaled,
		SGEs: []qp.SGE{s.mr.SGE(0, pingBytes)}, RemoteAddr: s.peer.VA, RKey: s.peer.RKey}}
}

func (t *thrower) post() error { return t.s.qp.PostRecv(&t.rwr) }

func (t *thrower) throw(ctx context.Context) error {
	if t.open == 32 { // make room in the send queue
		n, err := next(ctx, t.s.scq, t.wcs[:])
		if err != nil {
			return err
		}
		t.open -= n
	}
	t.open++
	return t.s.qp.PostSend(&t.wr)
}

func (t *thrower) catch(ctx context.Context) error {
	if _, err := next(ctx, t.s.rcq, t.wcs[:1]); err != nil {
		// The completion that explains the failure is in the other queue.
		_, reason := next(ctx, t.s.scq, t.wcs[:])
		return fmt.Errorf("%w; sends: %w; counters %v", err, reason, nonZero(t.s.dev.Counters()))
	}
	return t.post()
}
