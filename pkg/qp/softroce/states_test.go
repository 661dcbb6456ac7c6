package softroce

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/mcrdma/mcrdma/pkg/qp"
	"github.com/mcrdma/mcrdma/pkg/rocev2"
)

// in brings a queue pair on to state st.
func (s *station) in(st qp.State) {
	s.t.Helper()
	if st == qp.StateError {
		modify(s.t, s.end, qp.StateError, qp.MaskState)
		return
	}
	s.attr.DestAddr, s.attr.DestQPN = peerAddr, peerQPN
	for _, step := range []struct {
		to   qp.State
		mask qp.AttrMask
	}{{qp.StateInit, qp.MaskInit}, {qp.StateRTR, qp.MaskRTR}, {qp.StateRTS, qp.MaskRTS}, {qp.StateSQD, qp.MaskState}} {
		if now := s.qp.State(); now < step.to && now < st {
			modify(s.t, s.end, step.to, step.mask)
		}
	}
}

func newFresh(t testing.TB, init qp.Init) *station {
	t.Helper()
	w := newWire()
	return newStationOn(t, w, onLink(t, w, Options{}), init)
}

// What Modify refuses changes nothing: the queue pair goes on from the state
// that it was in.
func TestModifyRefuses(t *testing.T) {
	small := netip.MustParseAddr("10.9.0.9")
	for _, c := range []struct {
		name   string
		in     qp.State
		change func(*qp.Attr)
		mask   qp.AttrMask
		err    error
		says   string
	}{
		{"skip INIT", qp.StateReset, func(a *qp.Attr) { a.State = qp.StateRTR }, qp.MaskRTR, qp.ErrState, "RESET → RTR"},
		{"skip RTR", qp.StateInit, func(a *qp.Attr) { a.State = qp.StateRTS }, qp.MaskRTS, qp.ErrState, "INIT → RTS"},
		{"back to INIT", qp.StateRTS, func(a *qp.Attr) { a.State = qp.StateInit }, qp.MaskInit, qp.ErrState, "RTS → INIT"},
		{"out of ERR", qp.StateError, func(a *qp.Attr) { a.State = qp.StateInit }, qp.MaskInit, qp.ErrState, "ERR → INIT"},
		{"drain from RTR", qp.StateRTR, func(a *qp.Attr) { a.State = qp.StateSQD }, qp.MaskState, qp.ErrState, "RTR → SQD"},
		{"no destination", qp.StateInit, func(a *qp.Attr) { a.State = qp.StateRTR }, qp.MaskRTR &^ qp.MaskDestAddr,
			qp.ErrAttr, "DestAddr"},
		{"PSN in RTS", qp.StateRTS, func(a *qp.Attr) { a.SQPSN = 1 }, qp.MaskSQPSN, qp.ErrAttr, "SQPSN"},
		{"attributes of RESET", qp.StateRTS, func(a *qp.Attr) { a.State = qp.StateReset }, qp.MaskState | qp.MaskDSCP,
			qp.ErrAttr, "DSCP"},
		{"multicast address", qp.StateInit, func(a *qp.Attr) {
			a.State, a.DestAddr = qp.StateRTR, netip.MustParseAddr("224.0.0.1")
		}, qp.MaskRTR, qp.ErrAttr, "224.0.0.1"},
		{"path MTU of none", qp.StateInit, func(a *qp.Attr) { a.State, a.PathMTU = qp.StateRTR, 1500 }, qp.MaskRTR, qp.ErrAttr, "1500"},
		{"path MTU of the link", qp.StateInit, func(a *qp.Attr) {
			a.State, a.PathMTU, a.DestAddr = qp.StateRTR, 2048, small
		}, qp.MaskRTR, qp.ErrAttr, "allows 1024"},
		{"timeout", qp.StateRTR, func(a *qp.Attr) { a.State, a.Timeout = qp.StateRTS, 32 }, qp.MaskRTS, qp.ErrAttr, "Timeout"},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWire()
			w.mtu = 1500
			s := newStationOn(t, w, onLink(t, w, Options{}), qp.Init{})
			s.in(c.in)
			before := must(s.qp.Query())(t)
			a := s.attr
			a.State = c.in
			c.change(&a)
			err := s.qp.Modify(&a, c.mask)
			if !errors.Is(err, c.err) || !strings.Contains(err.Error(), c.says) {
				t.Errorf("error %v, want %v that says %q", err, c.err, c.says)
			}
			if after := must(s.qp.Query())(t); after != before {
				t.Errorf("the queue pair has changed from %+v to %+v", before, after)
			}
			if c.in != qp.StateError && c.in != qp.StateSQD {
				s.in(qp.StateRTS)
				s.works()
			}
		})
	}
}

// Query returns what was set, and the PSNs as they move on.
func TestQuery(t *testing.T) {
	s := newFresh(t, qp.Init{})
	s.attr.SQPSN, s.attr.RQPSN, s.attr.DSCP = 0xffffff, 7, 26
	s.psn = 7
	s.up(peerAddr, peerQPN)
	want := s.attr
	if got := must(s.qp.Query())(t); got != want {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	s.works()
	s.send(qp.SendWR{Opcode: qp.OpSend, SGEs: []qp.SGE{s.mr.SGE(0, 2500)}}) // three packets
	want.SQPSN, want.RQPSN = 3, 8
	if got := must(s.qp.Query())(t); got != want {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	for _, p := range s.wire.take() {
		if p.tos>>2 != 26 {
			t.Errorf("a packet has DSCP %d", p.tos>>2)
		}
	}
}

// In RTR requests are answered, sends are refused and the first packet is an
// event, once.
func TestRTR(t *testing.T) {
	s := newFresh(t, qp.Init{})
	s.in(qp.StateRTR)
	for range 2 {
		if got := s.request(rocev2.WriteOnly, []byte("data")); len(got) != 1 || !got[0].AETH.Syndrome.IsAck() {
			t.Fatalf("answered by %+v", got)
		}
	}
	if e := s.event(); e.Type != qp.EventCommEst || e.QPN != s.qp.QPN() {
		t.Errorf("event %+v", e)
	}
	if err := s.qp.PostSend(&qp.SendWR{Opcode: qp.OpSend}); !errors.Is(err, qp.ErrState) {
		t.Errorf("PostSend in RTR: %v", err)
	}
	s.in(qp.StateRTS)
	s.works()
	s.noEvent()
}

func (e *end) noEvent() {
	e.t.Helper()
	select {
	case ev := <-e.dev.events:
		e.t.Errorf("event %+v", ev)
	default:
	}
}

// In SQD messages that have begun go on and others wait for RTS.
func TestSendQueueDrain(t *testing.T) {
	w := newWire()
	s := newStationOn(t, w, onLink(t, w, Options{Window: 2}), qp.Init{})
	s.up(peerAddr, peerQPN)
	s.send(qp.SendWR{ID: 1, Opcode: qp.OpSend, SGEs: []qp.SGE{s.mr.SGE(0, 3*1024)}})
	if n := len(s.wire.take()); n != 2 {
		t.Fatalf("%d packets in a window of 2", n)
	}
	modify(t, s.end, qp.StateSQD, qp.MaskState)
	s.send(qp.SendWR{ID: 2, Opcode: qp.OpSend})
	s.respond(s.attr.SQPSN.Add(1), rocev2.AckNoLimit)
	if got := s.wire.take(); len(got) != 1 || got[0].Opcode != rocev2.SendLast {
		t.Fatalf("in SQD the rest of the message is %+v", got)
	}
	s.respond(s.attr.SQPSN.Add(2), rocev2.AckNoLimit)
	s.want(1, qp.StatusSuccess)
	if got := s.wire.take(); len(got) != 0 {
		t.Fatalf("in SQD another message began: %+v", got)
	}
	// The path may be adjusted meanwhile; the PSN goes on.
	s.attr.DSCP, s.attr.RNRRetry = 10, 3
	modify(t, s.end, qp.StateSQD, qp.MaskState|qp.MaskDSCP|qp.MaskRNRRetry)
	modify(t, s.end, qp.StateRTS, qp.MaskState)
	got := s.wire.take()
	if len(got) != 1 || got[0].Opcode != rocev2.SendOnly || got[0].PSN != s.attr.SQPSN.Add(3) || got[0].tos>>2 != 10 {
		t.Fatalf("in RTS the message is %+v", got)
	}
	s.respond(s.attr.SQPSN.Add(3), rocev2.AckNoLimit)
	s.want(2, qp.StatusSuccess)
	s.works()
}

// The peer's right to write follows the attribute, also in RTS.
func TestAccessInRTS(t *testing.T) {
	s := newStation(t, Options{}, qp.Init{})
	s.works()
	s.attr.Access = qp.AccessLocalWrite
	modify(t, s.end, qp.StateRTS, qp.MaskAccess)
	if got := s.request(rocev2.WriteOnly, []byte("data")); len(got) != 1 || got[0].AETH.Syndrome != rocev2.NakRemoteAccess {
		t.Errorf("answered by %+v", got)
	}
}

// RESET forgets what is queued without completions, and the queue pair can be
// used again with other numbers.
func TestReset(t *testing.T) {
	for _, from := range []qp.State{qp.StateInit, qp.StateRTR, qp.StateRTS, qp.StateSQD, qp.StateError} {
		t.Run(from.String(), func(t *testing.T) {
			s := newFresh(t, qp.Init{})
			s.in(qp.StateInit)
			s.recv(1, s.mr.SGE(0, 100))
			if from == qp.StateRTS || from == qp.StateSQD {
				s.in(qp.StateRTS)
				s.send(qp.SendWR{ID: 2, Opcode: qp.OpSend})
			}
			if from == qp.StateError {
				s.in(qp.StateRTS)
			}
			s.in(from)
			if from == qp.StateError {
				s.want(1, qp.StatusWRFlushErr)
			}
			modify(t, s.end, qp.StateReset, qp.MaskState)
			if a := must(s.qp.Query())(t); a != (qp.Attr{}) {
				t.Errorf("attributes after RESET: %+v", a)
			}
			if err := s.qp.PostRecv(&qp.RecvWR{}); !errors.Is(err, qp.ErrState) {
				t.Errorf("PostRecv in RESET: %v", err)
			}
			if err := s.qp.PostSend(&qp.SendWR{Opcode: qp.OpSend}); !errors.Is(err, qp.ErrState) {
				t.Errorf("PostSend in RESET: %v", err)
			}
			s.attr.SQPSN, s.attr.RQPSN, s.psn = 0x111111, 0x222222, 0x222222
			s.up(peerAddr, peerQPN)
			s.works()
			// The receive of before is gone: a SEND finds none.
			if got := s.request(rocev2.SendOnly, nil); len(got) != 1 || !got[0].AETH.Syndrome.IsRNR() {
				t.Errorf("a SEND is answered by %+v", got)
			}
			if n, err := s.cq.Poll(make([]qp.WC, 1)); n != 0 || err != nil {
				t.Errorf("%d completions, %v", n, err)
			}
		})
	}
}

// ERR completes everything that is queued, in order, and what is posted then.
func TestErrorFlushes(t *testing.T) {
	for _, from := range []qp.State{qp.StateInit, qp.StateRTR, qp.StateRTS, qp.StateSQD} {
		t.Run(from.String(), func(t *testing.T) {
			scq, rcq := 0, 1
			w := newWire()
			d := onLink(t, w, Options{})
			cqs := [2]qp.CQ{must(d.CreateCQ(16))(t), must(d.CreateCQ(16))(t)}
			s := newStationOn(t, w, d, qp.Init{SendCQ: cqs[scq], RecvCQ: cqs[rcq]})
			s.in(qp.StateInit)
			s.recv(1, s.mr.SGE(0, 100))
			s.recv(2)
			s.in(from)
			s.recv(3)
			sends := []uint64{}
			if from == qp.StateRTS || from == qp.StateSQD {
				for id := range uint64(3) {
					wr := qp.SendWR{ID: 10 + id, Opcode: qp.OpWrite} // unsignaled: failures complete all the same
					if err := s.qp.PostSend(&wr); err != nil {
						t.Fatal(err)
					}
					sends = append(sends, 10+id)
				}
			}
			modify(t, s.end, qp.StateError, qp.MaskState)
			s.recv(4, s.mr.SGE(0, 1))
			s.send(qp.SendWR{ID: 20, Opcode: qp.OpSend})
			s.cq = cqs[rcq]
			for id := range uint64(4) {
				if wc := s.want(1+id, qp.StatusWRFlushErr); wc.Opcode != qp.WCRecv || wc.QPN != s.qp.QPN() {
					t.Errorf("completion %+v", wc)
				}
			}
			s.cq = cqs[scq]
			for _, id := range append(sends, 20) {
				s.want(id, qp.StatusWRFlushErr)
			}
			for _, c := range cqs {
				if n, err := c.Poll(make([]qp.WC, 1)); n != 0 || err != nil {
					t.Errorf("%d more completions, %v", n, err)
				}
			}
			s.wire.take()
			s.wire.deliver(s.packet(rocev2.WriteOnly, []byte("data"), nil))
			if got := s.wire.take(); len(got) != 0 {
				t.Errorf("in ERR a WRITE is answered by %+v", got)
			}
			modify(t, s.end, qp.StateError, qp.MaskState) // again, without effect
			s.noEvent()                                   // the program did it and needs no event
		})
	}
}
