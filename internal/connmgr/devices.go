package connmgr

import (
	"context"
	"sync"
	"time"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/internal/failure"
	"github.com/mcrdma/mcrdma/internal/fanout"
)

// watched has the daemon's event streams for tools.
type watched struct {
	events fanout.Fanout[happening]

	mu        sync.Mutex
	calls     uint64 // the last of an asked
	questions map[uint64]asked
}

// An asked is a request for counters that an application has not answered yet.
type asked struct {
	of     *session
	answer chan<- *mcrdmav1.DeviceCounters // has room
}

const (
	// countersTime is how long an application may take to answer.
	countersTime = time.Second
	// maxCounters bounds an answer.
	maxCounters = 256
)

func (a *appsServer) ListDevices(ctx context.Context, _ *mcrdmav1.ListDevicesRequest) (*mcrdmav1.ListDevicesResponse, error) {
	u := userOf(ctx)
	ctx, cancel := context.WithTimeout(ctx, countersTime)
	defer cancel()
	m, out := a.m, &mcrdmav1.ListDevicesResponse{}
	var wg sync.WaitGroup
	for _, s := range m.sessions.seen(u) {
		r := s.record()
		d := &mcrdmav1.DeviceInfo{Program: r.Program, Uid: r.UID, Pid: r.PID}
		out.Devices = append(out.Devices, d)
		wg.Go(func() {
			if d.Device = m.watched.askCounters(ctx, s); d.Device == nil {
				d.Error = "the application has not answered: it is stopped, away, or of an earlier release"
			}
		})
	}
	wg.Wait()
	return out, nil
}

// askCounters asks an application for its device's counters; nil: it does not answer.
func (w *watched) askCounters(ctx context.Context, s *session) *mcrdmav1.DeviceCounters {
	answer := make(chan *mcrdmav1.DeviceCounters, 1)
	w.mu.Lock()
	w.calls++
	call := w.calls
	w.questions[call] = asked{s, answer}
	w.mu.Unlock()
	defer func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.questions, call)
		s.takeBack(func(q *mcrdmav1.OpenResponse) bool { return q.GetCountersRequested().GetCall() == call })
	}()
	s.push(&mcrdmav1.OpenResponse{Event: &mcrdmav1.OpenResponse_CountersRequested{CountersRequested: &mcrdmav1.CountersRequested{Call: call}}})
	select {
	case d := <-answer:
		return d
	case <-ctx.Done():
		return nil
	}
}

func (a *appsServer) AnswerCounters(ctx context.Context, req *mcrdmav1.AnswerCountersRequest) (*mcrdmav1.AnswerCountersResponse, error) {
	return &mcrdmav1.AnswerCountersResponse{}, a.with(ctx, req, func(s *session) error {
		d := req.GetDevice()
		if n := len(d.GetCounters()); d == nil || n > maxCounters {
			return failure.New(mcrdmav1.Reason_INVALID, "%d counters are not an answer of at most %d", n, maxCounters)
		}
		w := &a.m.watched
		w.mu.Lock()
		defer w.mu.Unlock()
		if q := w.questions[req.GetCall()]; q.of == s {
			delete(w.questions, req.GetCall())
			q.answer <- d
		}
		return nil
	})
}
