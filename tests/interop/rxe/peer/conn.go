package main

import (
	"context"
	"fmt"

	"github.com/mcrdma/mcrdma/pkg/qp"
	"github.com/mcrdma/mcrdma/tests/interop/rxe/peerproto"
)

func (c *conn) connect(req *peerproto.Connect) error {
	c.peer = req.Peer
	attr := qp.Attr{
		State: qp.StateRTR, DestAddr: req.Peer.Addr, DestQPN: req.Peer.QPN, PathMTU: req.MTU,
		RQPSN: req.Peer.PSN, MinRNRTimer: req.MinRNRTimer, DSCP: req.DSCP, MaxDestRdAtomic: reads,
	}
	if err := c.qp.Modify(&attr, qp.MaskRTR|qp.MaskDSCP|qp.MaskMaxDestRdAtomic); err != nil {
		return err
	}
	attr = qp.Attr{State: qp.StateRTS, SQPSN: c.psn.PSN, Timeout: req.Timeout, RetryCnt: req.RetryCnt, RNRRetry: req.RNRRetry, MaxRdAtomic: reads}
	if err := c.qp.Modify(&attr, qp.MaskRTS|qp.MaskMaxRdAtomic); err != nil {
		return err
	}
	got, err := c.qp.Query()
	if err != nil {
		return err
	}
	if got.State != qp.StateRTS || got.DestQPN != req.Peer.QPN || got.DestAddr != req.Peer.Addr || got.PathMTU != req.MTU ||
		got.SQPSN != c.psn.PSN || got.RQPSN != req.Peer.PSN || got.Timeout != req.Timeout || got.DSCP != req.DSCP {
		return fmt.Errorf("queried attributes %+v are not what was set: %+v", got, req)
	}
	return nil
}

// next returns at least one completion.
func (s *session) next(ctx context.Context, cq qp.CQ) ([]qp.WC, error) {
	wcs := make([]qp.WC, 8)
	for {
		n, err := cq.Poll(wcs)
		if n > 0 || err != nil {
			return wcs[:n], err
		}
		if err := cq.Wait(ctx); err != nil {
			return nil, err
		}
	}
}
