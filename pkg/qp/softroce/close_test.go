package softroce

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"testing"

	"github.com/mcrdma/mcrdma/pkg/qp"
	"github.com/mcrdma/mcrdma/pkg/qp/softroce/link"
)

func TestCloseOrder(t *testing.T) {
	s := newStation(t, Options{}, qp.Init{})
	busy := func(what string, f func() error) {
		t.Helper()
		if err := f(); !errors.Is(err, qp.ErrBusy) {
			t.Errorf("close of a %s in use: %v", what, err)
		}
	}
	ok := func(what string, f func() error) {
		t.Helper()
		if err := f(); err != nil {
			t.Errorf("close of a %s: %v", what, err)
		}
		if err := f(); !errors.Is(err, qp.ErrClosed) {
			t.Errorf("second close of a %s: %v", what, err)
		}
	}
	busy("completion queue", s.cq.Close)
	busy("protection domain", s.pd.Close)
	s.works()
	ok("queue pair", s.qp.Close)
	busy("protection domain", s.pd.Close)
	ok("memory region", s.mr.Close)
	ok("protection domain", s.pd.Close)
	ok("completion queue", s.cq.Close)
	s.allClosed()
	if _, err := s.pd.CreateQP(qp.Init{SendCQ: must(s.dev.CreateCQ(1))(t), RecvCQ: must(s.dev.CreateCQ(1))(t)}); !errors.Is(err, qp.ErrClosed) {
		t.Errorf("CreateQP: %v", err)
	}
	pd := must(s.dev.AllocPD())(t)
	if _, err := pd.CreateQP(qp.Init{SendCQ: s.cq, RecvCQ: s.cq}); !errors.Is(err, qp.ErrClosed) {
		t.Errorf("CreateQP with a closed completion queue: %v", err)
	}
	ok("device", s.dev.Close)
	if _, err := s.dev.AllocPD(); !errors.Is(err, qp.ErrClosed) {
		t.Errorf("AllocPD: %v", err)
	}
	if _, err := s.dev.CreateCQ(1); !errors.Is(err, qp.ErrClosed) {
		t.Errorf("CreateCQ: %v", err)
	}
	if _, err := s.dev.Event(t.Context()); !errors.Is(err, qp.ErrClosed) {
		t.Errorf("Event: %v", err)
	}
}

// Each of a queue pair's uses alone keeps what it uses.
func TestCloseInUse(t *testing.T) {
	w := newWire()
	d := onLink(t, w, Options{})
	pd := must(d.AllocPD())(t)
	scq, rcq := must(d.CreateCQ(4))(t), must(d.CreateCQ(4))(t)
	q := must(pd.CreateQP(qp.Init{SendCQ: scq, RecvCQ: rcq}))(t)
	for what, f := range map[string]func() error{"send queue": scq.Close, "receive queue": rcq.Close, "domain": pd.Close} {
		if err := f(); !errors.Is(err, qp.ErrBusy) {
			t.Errorf("close of the %s: %v", what, err)
		}
	}
	if err := q.Close(); err != nil {
		t.Fatal(err)
	}
	for what, f := range map[string]func() error{"send queue": scq.Close, "receive queue": rcq.Close, "domain": pd.Close} {
		if err := f(); err != nil {
			t.Errorf("close of the %s: %v", what, err)
		}
	}
}

// allClosed checks what the methods of closed objects return.
func (e *end) allClosed() {
	e.t.Helper()
	for name, f := range map[string]func() error{
		"PostSend": func() error { return e.qp.PostSend(&qp.SendWR{Opcode: qp.OpSend}) },
		"PostRecv": func() error { return e.qp.PostRecv(&qp.RecvWR{}) },
		"Modify":   func() error { return e.qp.Modify(&qp.Attr{State: qp.StateReset}, qp.MaskState) },
		"Query":    func() error { _, err := e.qp.Query(); return err },
		"Poll":     func() error { _, err := e.cq.Poll(make([]qp.WC, 1)); return err },
		"Wait":     func() error { return e.cq.Wait(e.ctx) },
		"RegMR":    func() error { _, err := e.pd.RegMR(e.buf, 0); return err },
		"close QP": e.qp.Close, "close CQ": e.cq.Close, "close MR": e.mr.Close, "close PD": e.pd.Close,
	} {
		if err := f(); !errors.Is(err, qp.ErrClosed) {
			e.t.Errorf("%s: %v, want %v", name, err, qp.ErrClosed)
		}
	}
}

// A device closes with everything open, while packets come and go and others
// wait.
func TestCloseUnderLoad(t *testing.T) {
	for _, mode := range []string{"rx=udp", "rx=auto"} {
		t.Run(mode, func(t *testing.T) {
			a, b := pair(t, mode, 1<<20)
			var wg sync.WaitGroup
			wait := func(f func(context.Context) error) {
				wg.Go(func() {
					for {
						switch err := f(context.Background()); {
						case errors.Is(err, qp.ErrClosed):
							return
						case err != nil:
							t.Errorf("error %v", err)
							return
						}
						runtime.Gosched()
					}
				})
			}
			idle := must(b.dev.CreateCQ(1))(t)
			for _, d := range []*Device{a.dev, b.dev} {
				wait(func(ctx context.Context) error { _, err := d.Event(ctx); return err })
			}
			wait(idle.Wait)
			wait(idle.Wait)
			for _, pair := range [][2]*end{{a, b}, {b, a}} {
				from, to := pair[0], pair[1]
				wait(func(context.Context) error {
					err := from.qp.PostSend(&qp.SendWR{Opcode: qp.OpWrite, Flags: qp.FlagSignaled,
						SGEs: []qp.SGE{from.mr.SGE(0, 1<<19)}, RemoteAddr: to.mr.Addr() + 1<<19, RKey: to.mr.RKey()})
					if errors.Is(err, qp.ErrQueueFull) {
						return nil
					}
					return err
				})
				wait(func(ctx context.Context) error {
					if err := from.cq.Wait(ctx); err != nil {
						return err
					}
					_, err := from.cq.Poll(make([]qp.WC, 8))
					return err
				})
			}
			until(t, "packets flow", func() bool {
				return a.dev.Counters()["rx_packets"] > 1000 && b.dev.Counters()["rx_packets"] > 1000
			})
			for _, e := range []*end{b, a} { // the second has a peer that is gone
				if err := e.dev.Close(); err != nil {
					t.Error(err)
				}
				e.allClosed()
			}
			wg.Wait()
		})
	}
}

// Closing a queue pair waits until the link reads its memory no more, and so do
// Reset and the close of a region.
func TestCloseWaitsForTransmission(t *testing.T) {
	for name, f := range map[string]func(*station) error{
		"queue pair":    func(s *station) error { return s.qp.Close() },
		"reset":         func(s *station) error { return s.qp.Modify(&qp.Attr{State: qp.StateReset}, qp.MaskState) },
		"memory region": func(s *station) error { return s.mr.Close() },
		"device":        func(s *station) error { return s.dev.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			s := newStation(t, Options{}, qp.Init{})
			inSend, release, posted := make(chan struct{}), make(chan struct{}), make(chan struct{})
			s.wire.setOnSend(func([]link.Tx) error {
				inSend <- struct{}{}
				<-release
				return nil
			})
			go func() {
				defer close(posted)
				s.send(qp.SendWR{Opcode: qp.OpWrite, SGEs: []qp.SGE{s.mr.SGE(0, 1024)}})
			}()
			<-inSend
			closed := make(chan error, 1)
			go func() { closed <- f(s) }()
			q := s.qp.(*QP)
			until(t, "a caller waits for the transmission", func() bool {
				q.mu.Lock()
				defer q.mu.Unlock()
				return q.hold > 0
			})
			select {
			case err := <-closed:
				t.Errorf("returned %v while the link was sending", err)
			default:
			}
			close(release)
			if err := <-closed; err != nil {
				t.Error(err)
			}
			<-posted
		})
	}
}
