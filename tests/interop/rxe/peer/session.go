package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/mcrdma/mcrdma/pkg/qp"
	"github.com/mcrdma/mcrdma/tests/interop/rxe/peerproto"
)

const (
	bufSize = 4 << 20
	depth   = 64 // work requests for each queue
	maxSGE  = 3
	reads   = 4 // outstanding
	// patience is how long one operation may take; under emulation and loss
	// this is seconds.
	patience = 90 * time.Second
)

// access is what peers may do.
const access = qp.AccessLocalWrite | qp.AccessRemoteWrite | qp.AccessRemoteRead

// A session is a device with at most one queue pair at a time.
type session struct {
	dev        qp.Device
	pd         qp.PD
	send, recv qp.MR
	conn       *conn
	listener   net.Listener
}

// A conn is a queue pair with its completion queues.
type conn struct {
	qp             qp.QP
	sendCQ, recvCQ qp.CQ
	psn            peerproto.Create
	peer           peerproto.Endpoint
}

func newSession(dev qp.Device) (*session, error) {
	s := &session{dev: dev}
	var err error
	if s.pd, err = dev.AllocPD(); err != nil {
		return nil, err
	}
	if s.send, err = s.pd.RegMR(make([]byte, bufSize), qp.AccessLocalWrite); err != nil {
		return nil, err
	}
	s.recv, err = s.pd.RegMR(make([]byte, bufSize), access)
	return s, err
}

// close closes everything in the order that the API asks for, and reports what
// that finds wrong.
func (s *session) close() error {
	err := s.drop()
	if s.listener != nil {
		err = errors.Join(err, s.listener.Close())
	}
	return errors.Join(err, s.send.Close(), s.recv.Close(), s.pd.Close(), s.dev.Close())
}

// drop destroys the present queue pair, if any.
func (s *session) drop() error {
	c := s.conn
	if c == nil {
		return nil
	}
	s.conn = nil
	return errors.Join(c.qp.Close(), c.sendCQ.Close(), c.recvCQ.Close())
}

func (s *session) handle(req *peerproto.Request) (resp peerproto.Response, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if req.Create == nil && req.Listen == nil && req.Counters == nil && s.conn == nil {
		return resp, errors.New("no queue pair")
	}
	switch {
	case req.Create != nil:
		resp.Endpoint, err = s.create(req.Create)
	case req.Connect != nil:
		err = s.conn.connect(req.Connect)
	case req.Prepare != nil:
		err = s.prepare(req.Prepare)
	case req.Send != nil:
		resp.Messages, err = s.sendBatch(ctx, req.Send)
	case req.Collect != nil:
		resp.Messages, err = s.collect(ctx, req.Collect)
	case req.Listen != nil:
		s.listener, err = net.Listen("tcp4", fmt.Sprintf(":%d", req.Listen.Port))
	case req.Pingpong != nil:
		err = s.pingpong(ctx, req.Pingpong)
	case req.State != nil:
		resp.State = s.conn.qp.State().String()
	case req.Counters != nil:
		resp.Counters = s.dev.Counters()
	default:
		err = errors.New("empty request")
	}
	return resp, err
}

func (s *session) create(req *peerproto.Create) (*peerproto.Endpoint, error) {
	if err := s.drop(); err != nil {
		return nil, err
	}
	c := &conn{psn: *req}
	var err error
	if c.sendCQ, err = s.dev.CreateCQ(2 * depth); err != nil {
		return nil, err
	}
	if c.recvCQ, err = s.dev.CreateCQ(2 * depth); err != nil {
		return nil, err
	}
	c.qp, err = s.pd.CreateQP(qp.Init{SendCQ: c.sendCQ, RecvCQ: c.recvCQ, MaxSendWR: depth, MaxRecvWR: depth, MaxSGE: maxSGE})
	if err != nil {
		return nil, err
	}
	s.conn = c
	attr := qp.Attr{State: qp.StateInit, Access: access}
	if err := c.qp.Modify(&attr, qp.MaskInit); err != nil {
		return nil, err
	}
	return &peerproto.Endpoint{
		Addr: s.dev.Attr().Addr, QPN: c.qp.QPN(), PSN: req.PSN,
		VA: s.recv.Addr(), RKey: s.recv.RKey(), ActiveMTU: s.dev.Attr().ActiveMTU,
	}, nil
}

// sges cuts n bytes at off of mr into up to maxSGE pieces, more for longer
// messages, so that gather and scatter lists are tried as well.
func sges(mr qp.MR, off, n int) []qp.SGE {
	switch {
	case n == 0:
		return nil
	case n < 100:
		return []qp.SGE{mr.SGE(off, n)}
	}
	a, b := n/3, n/2
	return []qp.SGE{mr.SGE(off, a), mr.SGE(off+a, b-a), mr.SGE(off+b, n-b)}
}

func (s *session) prepare(req *peerproto.Prepare) error {
	offs, total := req.Layout()
	if total > bufSize || len(req.Sizes) > depth {
		return fmt.Errorf("batch of %d messages, %d bytes is too much", len(req.Sizes), total)
	}
	if !req.NoClear {
		clearTo(s.recv.Bytes(), peerproto.Guard)
	}
	if req.Opcode == qp.OpRead {
		req.Fill(s.recv.Bytes()[:total])
	}
	if req.NoPost || !req.Receives() {
		return nil
	}
	for i, n := range req.Sizes {
		wr := qp.RecvWR{ID: uint64(i)}
		if !req.Opcode.IsWrite() {
			wr.SGEs = sges(s.recv, offs[i], max(0, n-req.Short))
		}
		if err := s.conn.qp.PostRecv(&wr); err != nil {
			return fmt.Errorf("receive %d: %w", i, err)
		}
	}
	return nil
}

func clearTo(b []byte, v byte) {
	for i := range b {
		b[i] = v
	}
}

// sendBatch posts all messages, every third unsignaled unless it is the last,
// and waits for their completions.
func (s *session) sendBatch(ctx context.Context, req *peerproto.Send) ([]peerproto.Message, error) {
	offs, total := req.Layout()
	if total > bufSize || len(req.Sizes) > depth {
		return nil, fmt.Errorf("batch of %d messages, %d bytes is too much", len(req.Sizes), total)
	}
	buf := s.send.Bytes()
	if clearTo(buf, peerproto.Guard); req.Opcode != qp.OpRead {
		req.Fill(buf[:total])
	}
	msgs := make([]peerproto.Message, len(req.Sizes))
	signaled := 0
	for i, n := range req.Sizes {
		wr := qp.SendWR{ID: uint64(i), Opcode: req.Opcode, SGEs: sges(s.send, offs[i], n)}
		if i%3 != 1 || i == len(req.Sizes)-1 {
			wr.Flags |= qp.FlagSignaled
			signaled++
		}
		if req.Opcode.IsWrite() || req.Opcode == qp.OpRead {
			wr.RemoteAddr = s.conn.peer.VA + uint64(offs[i]) + req.VAOffset
			wr.RKey = s.conn.peer.RKey ^ req.RKeyXor
		}
		if req.Opcode.HasImm() {
			wr.Imm = req.Imm(i)
		}
		if err := s.conn.qp.PostSend(&wr); err != nil {
			return nil, fmt.Errorf("send %d: %w", i, err)
		}
		msgs[i].Len = n
	}
	want := signaled
	for want > 0 {
		wcs, err := s.next(ctx, s.conn.sendCQ)
		if err != nil {
			return msgs, fmt.Errorf("%d of %d send completions are missing: %w", want, signaled, err)
		}
		for _, wc := range wcs {
			if wc.ID >= uint64(len(msgs)) {
				return msgs, fmt.Errorf("send completion of a stranger: %+v", wc)
			}
			m := &msgs[wc.ID]
			m.Status, m.Text, m.Opcode = wc.Status, wc.Status.String(), wc.Opcode.String()
			if wc.QPN != s.conn.qp.QPN() {
				m.Trouble = fmt.Sprintf("completion names queue pair %#x", wc.QPN)
			}
			if want--; wc.Status != qp.StatusSuccess {
				return msgs, nil // what follows is flushed
			}
		}
	}
	return msgs, look(buf, &req.Batch, msgs)
}

// collect waits for the receive completions, if the batch has such, and
// describes what arrived. It stops at the first that failed.
func (s *session) collect(ctx context.Context, b *peerproto.Batch) ([]peerproto.Message, error) {
	msgs := make([]peerproto.Message, len(b.Sizes))
	for i := 0; b.Receives() && i < len(msgs); {
		wcs, err := s.next(ctx, s.conn.recvCQ)
		if err != nil {
			return nil, fmt.Errorf("receive completion %d of %d: %w", i, len(msgs), err)
		}
		for _, wc := range wcs {
			if wc.ID != uint64(i) {
				return msgs, fmt.Errorf("receive completions out of order: %+v instead of %d", wc, i)
			}
			msgs[i] = peerproto.Message{Status: wc.Status, Text: wc.Status.String(), Opcode: wc.Opcode.String(), Len: int(wc.ByteLen)}
			if wc.HasImm {
				msgs[i].Imm = &wc.Imm
			}
			if wc.Status != qp.StatusSuccess {
				return msgs[:i+1], nil
			}
			i++
		}
	}
	for i, n := range b.Sizes {
		if !b.Receives() {
			msgs[i].Len = n
		}
	}
	return msgs, look(s.recv.Bytes(), b, msgs)
}

// look fills in what the buffer holds of a batch.
func look(buf []byte, b *peerproto.Batch, msgs []peerproto.Message) error {
	offs, total := b.Layout()
	clean := bytes.Repeat([]byte{peerproto.Guard}, 8)
	for i, n := range b.Sizes {
		m := &msgs[i]
		m.Hash = peerproto.Hash(buf[offs[i]:][:n])
		end := total
		if i+1 < len(offs) {
			end = offs[i+1]
		}
		if gap := buf[offs[i]+n : end]; !bytes.Equal(gap, clean[:len(gap)]) {
			m.Trouble = fmt.Sprintf("the %d bytes after the message were overwritten: % x", len(gap), gap)
		}
	}
	if rest := bytes.Count(buf[total:], []byte{peerproto.Guard}); rest != len(buf)-total {
		return fmt.Errorf("%d bytes after the batch were overwritten", len(buf)-total-rest)
	}
	return nil
}
