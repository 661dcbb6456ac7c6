package softroce

import (
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcrdma/mcrdma/pkg/qp"
	"github.com/mcrdma/mcrdma/pkg/qp/softroce/framelink"
	"github.com/mcrdma/mcrdma/pkg/qp/softroce/link"
	"github.com/mcrdma/mcrdma/pkg/rocev2"
	"github.com/mcrdma/mcrdma/tests/pipe"
)

// inBubble runs f with a clock that jumps: time-outs cost no time.
func inBubble(t *testing.T, f func(*testing.T)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { f(t) })
}

// A receiver that posts late, in both directions, loses nothing.
func TestReceiverNotReady(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		a, b := piped(t, pipe.Config{}, Options{}, 64<<10, qp.Init{}, func(x *qp.Attr) { x.MinRNRTimer = 14 }) // 1 ms
		for _, dir := range [][2]*end{{a, b}, {b, a}} {
			from, to := dir[0], dir[1]
			before := to.dev.Counters()["rc_rnr_naks_sent"]
			fillPattern(from.buf, 1)
			clear(to.buf)
			from.send(qp.SendWR{ID: 1, Opcode: qp.OpSend, SGEs: []qp.SGE{from.mr.SGE(0, 10000)}})
			from.send(qp.SendWR{ID: 2, Opcode: qp.OpWriteImm, SGEs: []qp.SGE{from.mr.SGE(10000, 10000)},
				RemoteAddr: to.mr.Addr() + 10000, RKey: to.mr.RKey()})
			time.Sleep(20 * time.Millisecond)
			to.recv(1, to.mr.SGE(0, 10000))
			to.want(1, qp.StatusSuccess)
			time.Sleep(20 * time.Millisecond)
			to.recv(2)
			to.want(2, qp.StatusSuccess)
			from.want(1, qp.StatusSuccess)
			from.want(2, qp.StatusSuccess)
			if string(from.buf[:20000]) != string(to.buf[:20000]) {
				t.Error("data differ")
			}
			naks := to.dev.Counters()["rc_rnr_naks_sent"] - before
			if naks < 20 || naks > 60 {
				t.Errorf("%d RNR NAKs in 40 ms with a timer of 1 ms", naks)
			}
		}
	})
}

func TestRNRRetryExceeded(t *testing.T) {
	for _, retries := range []uint8{0, 3} {
		inBubble(t, func(t *testing.T) {
			a, b := piped(t, pipe.Config{}, Options{}, 4096, qp.Init{}, func(x *qp.Attr) { x.RNRRetry = retries })
			for id := range uint64(3) {
				a.send(qp.SendWR{ID: id, Opcode: qp.OpSend})
			}
			a.want(0, qp.StatusRNRRetryExcErr)
			a.want(1, qp.StatusWRFlushErr)
			a.want(2, qp.StatusWRFlushErr)
			if n := b.dev.Counters()["rc_rnr_naks_sent"]; n != uint64(retries)+1 {
				t.Errorf("%d RNR NAKs, want %d", n, retries+1)
			}
			if st := a.qp.State(); st != qp.StateError {
				t.Errorf("state %v", st)
			}
			if st := b.qp.State(); st != qp.StateRTS { // the receiver has done nothing wrong
				t.Errorf("receiver's state %v", st)
			}
		})
	}
}

// A peer that is gone is found out after Timeout × (RetryCnt + 1).
func TestRetryExceeded(t *testing.T) {
	for _, retries := range []uint8{0, 2, 7} {
		inBubble(t, func(t *testing.T) {
			a, b := piped(t, pipe.Config{}, Options{}, 64<<10, qp.Init{}, func(x *qp.Attr) { x.Timeout, x.RetryCnt = 8, retries })
			b.recv(1)
			a.send(qp.SendWR{ID: 1, Opcode: qp.OpSend})
			a.want(1, qp.StatusSuccess)
			if err := b.dev.Close(); err != nil {
				t.Fatal(err)
			}
			start := time.Now()
			for id := range uint64(2) {
				a.recv(10 + id)
				a.send(qp.SendWR{ID: 2 + id, Opcode: qp.OpSend, SGEs: []qp.SGE{a.mr.SGE(0, 10000)}})
			}
			first := a.wc() // of either queue
			want := qp.AckTimeout(8) * time.Duration(retries+1)
			if d := time.Since(start); d < want || d > want+want/4 {
				t.Errorf("it took %v, want %v", d, want)
			}
			a.wantEach([]qp.WC{first}, map[uint64]qp.Status{2: qp.StatusRetryExcErr, 3: qp.StatusWRFlushErr, 10: qp.StatusWRFlushErr, 11: qp.StatusWRFlushErr})
			if n := a.dev.Counters()["rc_timeouts"]; n != uint64(retries)+1 {
				t.Errorf("%d time-outs, want %d", n, retries+1)
			}
			a.noEvent() // the completion tells it
		})
	}
}

// A message longer than its receive fails on both sides.
func TestMessageTooLong(t *testing.T) {
	for _, n := range []int{101, 4096, 10000} {
		inBubble(t, func(t *testing.T) {
			a, b := piped(t, pipe.Config{}, Options{}, 64<<10, qp.Init{}, nil)
			b.recv(1, b.mr.SGE(0, 60), b.mr.SGE(100, 40))
			b.recv(2, b.mr.SGE(0, 60))
			fillPattern(a.buf, 3)
			a.send(qp.SendWR{ID: 1, Opcode: qp.OpSend, SGEs: []qp.SGE{a.mr.SGE(0, n)}})
			a.send(qp.SendWR{ID: 2, Opcode: qp.OpSend})
			a.want(1, qp.StatusRemInvReqErr)
			a.want(2, qp.StatusWRFlushErr)
			b.want(1, qp.StatusLocLenErr)
			b.want(2, qp.StatusWRFlushErr)
			if e := b.event(); e.Type != qp.EventQPRequestErr || e.QPN != b.qp.QPN() {
				t.Errorf("event %+v", e)
			}
			if a.qp.State() != qp.StateError || b.qp.State() != qp.StateError {
				t.Errorf("states %v and %v", a.qp.State(), b.qp.State())
			}
			for i, v := range b.buf {
				if v != 0 && i >= 60 && (i < 100 || i >= 140) {
					t.Fatalf("byte %d was written", i)
				}
			}
			a.noEvent()
		})
	}
}

// The first request that fails says why, those before it have succeeded, those
// behind it are flushed, all in order.
func TestFlushOrder(t *testing.T) {
	s := newStation(t, Options{}, qp.Init{})
	for id := range uint64(6) {
		wr := qp.SendWR{ID: id, Opcode: qp.OpWrite, SGEs: []qp.SGE{s.mr.SGE(0, 10)}}
		if id%2 == 0 {
			wr.Flags = qp.FlagSignaled
		}
		if err := s.qp.PostSend(&wr); err != nil {
			t.Fatal(err)
		}
		s.recv(100+id, s.mr.SGE(0, 10))
	}
	s.request(rocev2.SendOnly, []byte("data"))
	s.want(100, qp.StatusSuccess)
	s.respond(s.attr.SQPSN.Add(3), rocev2.NakRemoteAccess)
	s.wantEach(nil, map[uint64]qp.Status{0: qp.StatusSuccess, 2: qp.StatusSuccess, // 1 is not signaled, and has succeeded
		3: qp.StatusRemAccessErr, 4: qp.StatusWRFlushErr, 5: qp.StatusWRFlushErr,
		101: qp.StatusWRFlushErr, 102: qp.StatusWRFlushErr, 103: qp.StatusWRFlushErr, 104: qp.StatusWRFlushErr, 105: qp.StatusWRFlushErr})
}

// wantEach waits for completions with these statuses besides those it is given.
// Those of each queue must come in the order of their ids.
func (e *end) wantEach(got []qp.WC, want map[uint64]qp.Status) {
	e.t.Helper()
	var last [2]uint64 // of each queue
	for i := range len(want) {
		if i >= len(got) {
			got = append(got, e.wc())
		}
		wc := got[i]
		if s, ok := want[wc.ID]; !ok || wc.Status != s {
			e.t.Errorf("completion %d %q, want %v", wc.ID, wc.Status, want)
		}
		queue := 0
		if wc.Opcode == qp.WCRecv {
			queue = 1
		}
		if wc.ID < last[queue] {
			e.t.Errorf("completion %d after %d", wc.ID, last[queue])
		}
		last[queue] = wc.ID
	}
}

// When a failed completion can be polled, the queue pair is in the error state,
// also while the device is busy with something else.
func TestStateBeforeCompletion(t *testing.T) {
	ack := func(s *station, syn rocev2.Syndrome) link.Rx {
		s.send(qp.SendWR{ID: 1, Opcode: qp.OpSend})
		return s.packet(rocev2.Acknowledge, nil, func(h *rocev2.Headers) {
			h.PSN, h.AETH.Syndrome = s.attr.SQPSN, syn
		})
	}
	for name, fail := range map[string]func(*station) link.Rx{
		"the peer's NAK": func(s *station) link.Rx { return ack(s, rocev2.NakRemoteOperation) },
		"RNR retries":    func(s *station) link.Rx { return ack(s, rocev2.RNRSyndrome(1)) },
		"a message too long": func(s *station) link.Rx {
			s.recv(1)
			return s.packet(rocev2.SendOnly, []byte("data"), nil)
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				w := newWire()
				d := onLink(t, w, Options{})
				s, other := newStationOn(t, w, d, qp.Init{}), newStationOn(t, w, d, qp.Init{})
				s.attr.RNRRetry = 0
				s.up(peerAddr, peerQPN)
				other.up(peerAddr, peerQPN)

				// Whenever the device sends, it is stopped until the test has looked.
				var holding atomic.Bool
				release := make(chan struct{})
				w.setOnSend(func([]link.Tx) error {
					if holding.Load() {
						<-release
					}
					return nil
				})
				failed := false
				look := func() {
					synctest.Wait()
					var wc [4]qp.WC
					n := must(s.cq.Poll(wc[:]))(t)
					for _, c := range wc[:n] {
						failed = failed || c.Status != qp.StatusSuccess
					}
					if failed && s.qp.State() != qp.StateError {
						t.Errorf("completions %+v, but the state is %v", wc[:n], s.qp.State())
					}
				}
				// In the same batch another queue pair has something to send first.
				bad := fail(s)
				holding.Store(true)
				go w.deliver(other.packet(rocev2.WriteOnly, []byte("data"), nil), bad)
				look()
				for range 8 {
					select {
					case release <- struct{}{}:
					default:
					}
					look()
				}
				if !failed {
					t.Error("nothing has failed")
				}
				holding.Store(false)
				close(release)
			})
		})
	}
}

// A link that fails as a whole is an event; a packet that it cannot send is a
// lost packet and a counter.
func TestLinkErrors(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWire()
		s := newStationOn(t, w, onLink(t, w, Options{}), qp.Init{})
		s.attr.Timeout = 8
		s.up(peerAddr, peerQPN)
		var down atomic.Pointer[error]
		w.setOnSend(func([]link.Tx) error {
			if err := down.Load(); err != nil {
				return *err
			}
			return nil
		})
		one := error(&link.TxError{Index: 0, Err: framelink.ErrNoRoute})
		down.Store(&one)
		s.send(qp.SendWR{ID: 1, Opcode: qp.OpSend})
		if n := s.dev.Counters()["tx_errors"]; n != 1 {
			t.Errorf("tx_errors is %d", n)
		}
		s.noEvent()
		down.Store(nil)
		time.Sleep(2 * qp.AckTimeout(8)) // it is sent once more
		if got := s.wire.take(); len(got) == 0 {
			t.Fatal("nothing was sent again")
		}
		s.respond(s.attr.SQPSN, rocev2.AckNoLimit)
		s.want(1, qp.StatusSuccess)

		broken := errors.New("cable cut")
		down.Store(&broken)
		s.send(qp.SendWR{ID: 2, Opcode: qp.OpSend})
		if e := s.event(); e.Type != qp.EventDeviceFatal || !errors.Is(e.Err, broken) {
			t.Errorf("event %+v", e)
		}
	})
}
