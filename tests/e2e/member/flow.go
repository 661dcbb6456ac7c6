package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"time"

	"github.com/mcrdma/mcrdma/pkg/qp"
	"github.com/mcrdma/mcrdma/pkg/rocev2"
	"github.com/mcrdma/mcrdma/tests/e2e/orders"
)

// A flow is one end of an ordinary RC connection.
type flow struct {
	cq      qp.CQ
	qp      qp.QP
	own, to qp.MR // the region that the peer writes to, and the region to write from
	mirror  []byte
	peer    orders.FlowAddr
	sent    int
}

const maxFlowDepth = 64

func (a *app) flowEnd(args orders.FlowEndArgs) (addr orders.FlowAddr, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.dev == nil {
		return addr, errors.New("no device has been opened")
	}
	pd, err := a.dev.AllocPD()
	if err != nil {
		return addr, err
	}
	f := &flow{mirror: make([]byte, args.Size)}
	if f.cq, err = a.dev.CreateCQ(2 * maxFlowDepth); err != nil {
		return addr, err
	}
	source := make([]byte, args.Size)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(source)
	if f.own, err = pd.RegMR(make([]byte, args.Size), qp.AccessLocalWrite|qp.AccessRemoteWrite); err != nil {
		return addr, err
	}
	if f.to, err = pd.RegMR(source, qp.AccessLocalWrite); err != nil {
		return addr, err
	}
	if f.qp, err = pd.CreateQP(qp.Init{SendCQ: f.cq, RecvCQ: f.cq, MaxSendWR: maxFlowDepth, MaxRecvWR: 1, MaxSGE: 1}); err != nil {
		return addr, err
	}
	a.flows[args.Name] = f
	return orders.FlowAddr{Addr: a.dev.Attr().Addr.String(), QPN: uint32(f.qp.QPN()), VA: f.own.Addr(), RKey: f.own.RKey()}, nil
}

func (a *app) flow(name string) (*flow, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if f := a.flows[name]; f != nil {
		return f, nil
	}
	return nil, fmt.Errorf("no flow %q", name)
}

func (a *app) flowJoin(args orders.FlowJoinArgs) (any, error) {
	f, err := a.flow(args.Name)
	if err != nil {
		return nil, err
	}
	addr, err := netip.ParseAddr(args.Peer.Addr)
	if err != nil {
		return nil, err
	}
	f.peer = args.Peer
	psn := rocev2.PSN(args.PSN)
	for _, m := range []struct {
		a qp.Attr
		m qp.AttrMask
	}{
		{qp.Attr{State: qp.StateInit, Access: qp.AccessRemoteWrite}, qp.MaskInit},
		{qp.Attr{State: qp.StateRTR, DestAddr: addr, DestQPN: rocev2.QPN(args.Peer.QPN), PathMTU: args.MTU, RQPSN: psn, MinRNRTimer: 5}, qp.MaskRTR},
		{qp.Attr{State: qp.StateRTS, SQPSN: psn, Timeout: 16, RetryCnt: 7, RNRRetry: 7}, qp.MaskRTS},
	} {
		if err := f.qp.Modify(&m.a, m.m); err != nil {
			return nil, err
		}
	}
	return nil, nil
}

func (a *app) flowRun(args orders.FlowRunArgs) (res orders.FlowResult, err error) {
	f, err := a.flow(args.Name)
	if err != nil {
		return res, err
	}
	ctx, cancel := within(args.Millis+30_000, 0)
	defer cancel()
	start := time.Now()
	end := time.Duration(args.Millis) * time.Millisecond
	posted, done := 0, 0
	for over := false; !over || done < posted; {
		for !over && posted-done < min(args.Depth, maxFlowDepth) {
			if err := f.post(args.Size); err != nil {
				return res, err
			}
			posted++
			over = args.Count > 0 && posted >= args.Count || end > 0 && time.Since(start) >= end
		}
		n, err := f.completions(ctx)
		if err != nil {
			return res, fmt.Errorf("after %d of %d WRITEs: %w", done, posted, err)
		}
		done += n
	}
	return orders.FlowResult{Bytes: uint64(done) * uint64(args.Size), Took: time.Since(start), Sum: digest(f.mirror)}, nil
}

func (f *flow) post(size int) error {
	at := f.sent * 104729 % (len(f.mirror) - size + 1)
	from := f.sent * 7919 % (len(f.mirror) - size + 1)
	f.sent++
	copy(f.mirror[at:], f.to.Bytes()[from:from+size])
	return f.qp.PostSend(&qp.SendWR{Opcode: qp.OpWrite, Flags: qp.FlagSignaled, SGEs: []qp.SGE{f.to.SGE(from, size)},
		RemoteAddr: f.peer.VA + uint64(at), RKey: f.peer.RKey})
}

func (f *flow) completions(ctx context.Context) (int, error) {
	var wcs [maxFlowDepth]qp.WC
	for {
		n, err := f.cq.Poll(wcs[:])
		for i := range n {
			err = errors.Join(err, wcs[i].Status.Err())
		}
		if n > 0 || err != nil {
			return n, err
		}
		if err := f.cq.Wait(ctx); err != nil {
			return 0, err
		}
	}
}

func (a *app) flowSum(args orders.Name) (string, error) {
	f, err := a.flow(args.Name)
	if err != nil {
		return "", err
	}
	return digest(f.own.Bytes()), nil
}
