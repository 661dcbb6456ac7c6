package p4rtserver

import (
	"context"
	"testing"
	"time"

	p4 "github.com/p4lang/p4runtime/go/p4/v1"
	"google.golang.org/grpc/codes"
)

// a session is a controller's StreamChannel.
type session struct {
	t      testing.TB
	stream p4.P4Runtime_StreamChannelClient
	cancel context.CancelFunc
	in     chan *p4.StreamMessageResponse
	err    error // after in is closed
}

// channel opens a stream and sends nothing.
func (r *rig) channel() *session {
	r.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	stream, err := r.client.StreamChannel(ctx)
	if err != nil {
		r.t.Fatal(err)
	}
	s := &session{t: r.t, stream: stream, cancel: cancel, in: make(chan *p4.StreamMessageResponse, 4096)}
	go func() {
		defer close(s.in)
		for {
			m, err := stream.Recv()
			if err != nil {
				s.err = err
				return
			}
			s.in <- m
		}
	}()
	r.t.Cleanup(s.close)
	return s
}

// open opens a stream and arbitrates.
func (r *rig) open(election uint64) *session {
	r.t.Helper()
	s := r.channel()
	s.arbitrate(election)
	return s
}

func (s *session) send(m *p4.StreamMessageRequest) {
	s.t.Helper()
	if err := s.stream.Send(m); err != nil {
		s.t.Fatal(err)
	}
}

func arbitration(election uint64) *p4.MasterArbitrationUpdate {
	return &p4.MasterArbitrationUpdate{DeviceId: device, ElectionId: &p4.Uint128{Low: election}}
}

func (s *session) arbitrate(election uint64) { s.t.Helper(); s.update(arbitration(election)) }

func (s *session) update(m *p4.MasterArbitrationUpdate) {
	s.t.Helper()
	s.send(&p4.StreamMessageRequest{Update: &p4.StreamMessageRequest_Arbitration{Arbitration: m}})
}

// close ends the stream, and returns when the server has taken it out of the arbitration.
func (s *session) close() {
	_ = s.stream.CloseSend()
	for range s.in {
	}
	s.cancel()
}

// next is the next message.
func (s *session) next() *p4.StreamMessageResponse {
	s.t.Helper()
	select {
	case m, ok := <-s.in:
		if !ok {
			s.t.Fatalf("the stream has ended: %v", s.err)
		}
		return m
	case <-time.After(10 * time.Second):
		s.t.Fatal("no message")
	}
	return nil
}

func (s *session) expectArbitration(code codes.Code, election uint64) *p4.MasterArbitrationUpdate {
	s.t.Helper()
	m := s.next().GetArbitration()
	if m == nil || codes.Code(m.GetStatus().GetCode()) != code || m.GetElectionId().GetLow() != election || m.GetDeviceId() != device {
		s.t.Fatalf("got %v, want an arbitration update with status %v and election id %d", m, code, election)
	}
	return m
}

// expectEnd waits for the stream to end.
func (s *session) expectEnd(code codes.Code, text string) {
	s.t.Helper()
	deadline := time.After(10 * time.Second)
	for {
		select {
		case m, ok := <-s.in:
			if ok {
				s.t.Logf("before the end: %v", m)
				continue
			}
			expectError(s.t, s.err, code, text)
			return
		case <-deadline:
			s.t.Fatal("the stream does not end")
		}
	}
}

// expectSilence sends a message that is answered at once, and checks that
// nothing came before the answer.
func (s *session) expectSilence() {
	s.t.Helper()
	s.send(&p4.StreamMessageRequest{})
	if m := s.next(); m.GetError().GetOther() == nil {
		s.t.Fatalf("unexpected message %v", m)
	}
}
