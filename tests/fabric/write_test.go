package fabric

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mcrdma/mcrdma/pkg/qp"
	"github.com/mcrdma/mcrdma/pkg/qp/softroce"
	"github.com/mcrdma/mcrdma/pkg/rocev2"
)

// An endpoint is one queue pair with one region on a host's device.
type endpoint struct {
	name string
	dev  *softroce.Device
	cq   qp.CQ
	mr   qp.MR
	qp   qp.QP
}

func (f *Fabric) endpoint(name string, region int) *endpoint {
	f.t.Helper()
	return f.endpointOn(name, f.Device(name, softroce.Options{}), region)
}

// regionVA is where all endpoints have their memory, as their peers address it.
const regionVA = 0x1000_0000

// endpointOn is one more on a host's device.
func (f *Fabric) endpointOn(name string, dev *softroce.Device, region int) *endpoint {
	f.t.Helper()
	e := &endpoint{name: name, dev: dev}
	pd, err := e.dev.AllocPD()
	f.must(err)
	e.cq, err = e.dev.CreateCQ(256)
	f.must(err)
	e.mr, err = pd.(qp.Mapper).RegMRAt(make([]byte, region), regionVA, qp.AccessLocalWrite|qp.AccessRemoteWrite)
	f.must(err)
	e.qp, err = pd.CreateQP(qp.Init{SendCQ: e.cq, RecvCQ: e.cq, MaxSendWR: 64, MaxRecvWR: 64, MaxSGE: 1})
	f.must(err)
	return e
}

func (e *endpoint) connect(peer netip.Addr, qpn rocev2.QPN, psn uint32, timeout uint8) error {
	return errors.Join(
		e.qp.Modify(&qp.Attr{State: qp.StateInit, Access: qp.AccessRemoteWrite}, qp.MaskInit),
		e.qp.Modify(&qp.Attr{State: qp.StateRTR, DestAddr: peer, DestQPN: qpn, PathMTU: 1024, RQPSN: rocev2.PSN(psn), MinRNRTimer: 5}, qp.MaskRTR),
		e.qp.Modify(&qp.Attr{State: qp.StateRTS, SQPSN: rocev2.PSN(psn), Timeout: timeout, RetryCnt: 7, RNRRetry: 7}, qp.MaskRTS))
}

// wait returns when a completion has come.
func (e *endpoint) wait(ctx context.Context) error {
	var wc [1]qp.WC
	for {
		if n, err := e.cq.Poll(wc[:]); err != nil || n > 0 {
			return errors.Join(err, wc[0].Status.Err())
		}
		if err := e.cq.Wait(ctx); err != nil {
			return err
		}
	}
}

// TestWrites: a device writes to three others through the switches while wires are
// cut and mended under it, and when a WRITE completes, all have it.
func TestWrites(t *testing.T) {
	const region, piece = 2 << 20, 16 << 10
	f := Start(t, Figure3())
	sender := f.endpoint("A1", region)
	receivers := []*endpoint{f.endpoint("A2", region), f.endpoint("B1", region), f.endpoint("D2", region)}
	g := f.Group("A1")
	g.SenderQPN, g.RKey, g.VA, g.Length = uint32(sender.qp.QPN()), 0x5eed, regionVA, region
	for _, r := range receivers {
		g.Receivers = append(g.Receivers, Receiver{Host: r.name, QPN: uint32(r.qp.QPN()), RKey: r.mr.RKey(), VA: r.mr.Addr()})
		f.must(r.connect(f.host("A1").Addr, rocev2.QPN(g.MCID), g.InitialPSN, 16))
	}
	f.must(sender.connect(f.address(g), rocev2.QPN(g.MCID), g.InitialPSN, 18)) // 8.6 s to converge, on a busy machine
	f.Install(g)

	// Wires of the tree are cut and mended until the writer is done.
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	done := make(chan error, 1)
	src := sender.mr.Bytes()
	rng := rand.New(rand.NewPCG(3, 4))
	for i := range src {
		src[i] = byte(rng.Uint32())
	}
	enough := make(chan struct{})
	var written atomic.Int64 // pieces
	go func() { done <- writeAll(ctx, sender, receivers, g, piece, enough, &written) }()
	wires := f.Wires("torA", "core")
	var carrying atomic.Pointer[Wire] // the one of them that the last piece came through
	see := tap(func(w *Wire, _ int, frame []byte) {
		if len(frame) > 1024 && slices.Contains(wires, w) {
			carrying.Store(w)
		}
	})
	f.tap.Store(&see)
	defer f.tap.Store(nil)
	lost := func() uint64 { return sender.dev.Counters()["tx_retransmits"] }
	for range wires {
		f.flows(&written, done)
		w, again := carrying.Load(), lost()
		f.Cut(w)
		until := written.Load() + 8
		f.eventually("the cut is felt, or the tree turned to another wire just before", func() error {
			if lost() > again || written.Load() >= until || len(done) > 0 {
				return nil
			}
			return fmt.Errorf("%d pieces are written", written.Load())
		})
		f.Links()
		f.Converged()
		f.Mend(w)
		f.Links()
		f.Converged()
	}
	close(enough)
	if err := <-done; err != nil {
		t.Fatalf("%v; problems: %v", err, f.Problems(g))
	}
	c := sender.dev.Counters()
	t.Logf("%d KiB written to %d receivers while %d wires were cut and mended; %d packets, %d of them again",
		written.Load()*piece>>10, len(receivers), len(wires), c["tx_packets"], c["tx_retransmits"])
	if c["tx_retransmits"] == 0 {
		t.Error("nothing was ever lost")
	}
	f.Remove(g)
	f.CheckLeftovers(0)
}

// flows waits until some more pieces have been written, or the writer has ended.
func (f *Fabric) flows(written *atomic.Int64, done chan error) {
	f.t.Helper()
	until := written.Load() + 8
	f.eventually("writing goes on", func() error {
		if n := written.Load(); n < until && len(done) == 0 {
			return fmt.Errorf("%d more pieces", until-n)
		}
		return nil
	})
}

// writeAll writes the sender's whole region to the receivers, over and over until it
// is enough, and compares after each completion.
func writeAll(ctx context.Context, s *endpoint, receivers []*endpoint, g *Group, piece int, enough <-chan struct{}, written *atomic.Int64) error {
	src := s.mr.Bytes()
	for {
		posted := 0
		for at := 0; at < len(src); at += piece {
			for ; posted < len(src) && posted-at < 4*piece; posted += piece {
				wr := qp.SendWR{ID: uint64(posted), Opcode: qp.OpWrite, Flags: qp.FlagSignaled, RKey: g.RKey,
					SGEs: []qp.SGE{s.mr.SGE(posted, piece)}, RemoteAddr: g.VA + uint64(posted)}
				if err := s.qp.PostSend(&wr); err != nil {
					return err
				}
			}
			if err := s.wait(ctx); err != nil {
				return err
			}
			for _, r := range receivers {
				// What came over a network the race detector cannot see; this
				// passes the queue pair's lock, under which it was written.
				if _, err := r.qp.Query(); err != nil {
					return err
				}
				if !bytes.Equal(r.mr.Bytes()[at:at+piece], src[at:at+piece]) {
					return errors.New("a WRITE is complete, and " + r.name + " has not got it")
				}
			}
			written.Add(1)
		}
		select {
		case <-enough:
			return nil
		default:
		}
		for i := range src { // something else the next time
			src[i] ^= byte(i>>12) | 1
		}
	}
}
