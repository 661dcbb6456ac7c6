package p4rtserver

import (
	"errors"
	"io"

	p4 "github.com/p4lang/p4runtime/go/p4/v1"
	"google.golang.org/grpc/codes"
)

// StreamChannel implements p4.v1.P4Runtime.
func (s *Server) StreamChannel(g p4.P4Runtime_StreamChannelServer) error {
	st := &stream{
		ctl:  make(chan *p4.StreamMessageResponse, controlQueue),
		data: make(chan *p4.StreamMessageResponse, s.opt.Queue),
		end:  make(chan error, 1),
	}
	s.mu.Lock()
	closed := s.closed
	if !closed {
		s.work.Add(3)
	}
	s.mu.Unlock()
	if closed {
		return errClosing()
	}
	defer s.work.Done()
	defer s.leave(st)
	// Receiving and sending have a goroutine each, so that a controller that does not read or write
	// cannot keep the stream from ending. Both end with the gRPC stream, that is, when this
	// function returns.
	done := make(chan struct{})
	defer close(done)
	go func() {
		defer s.work.Done()
		st.stop(s.receive(g, st))
	}()
	go func() {
		defer s.work.Done()
		st.stop(st.send(g, done))
	}()
	select {
	case err := <-st.end:
		return err
	case <-s.closing:
		return errClosing()
	}
}

func errClosing() error { return fail(codes.Unavailable, "the switch is shutting down") }

// receive handles the controller's messages, until it closes the stream or the stream must end.
func (s *Server) receive(g p4.P4Runtime_StreamChannelServer, st *stream) error {
	for {
		m, err := g.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		switch u := m.GetUpdate().(type) {
		case *p4.StreamMessageRequest_Arbitration:
			if err := s.arbitrate(st, u.Arbitration); err != nil {
				return err
			}
		case *p4.StreamMessageRequest_Packet:
			if err := s.packetOut(st, u.Packet); err != nil {
				s.stats.packetOutErrors.Add(1)
				st.offer(streamError(err, &p4.StreamError{
					Details: &p4.StreamError_PacketOut{PacketOut: &p4.PacketOutError{PacketOut: u.Packet}},
				}))
			}
		case *p4.StreamMessageRequest_DigestAck:
			if err := s.digestAck(st, u.DigestAck); err != nil {
				st.offer(streamError(err, &p4.StreamError{
					Details: &p4.StreamError_DigestListAck{DigestListAck: &p4.DigestListAckError{DigestListAck: u.DigestAck}},
				}))
			}
		case *p4.StreamMessageRequest_Other:
			st.offer(streamError(fail(codes.Unimplemented, "v1model has no stream messages of its own"), &p4.StreamError{
				Details: &p4.StreamError_Other{Other: &p4.StreamOtherError{Other: u.Other}},
			}))
		default:
			st.offer(streamError(invalid("the stream message is empty"), &p4.StreamError{
				Details: &p4.StreamError_Other{Other: &p4.StreamOtherError{}},
			}))
		}
	}
}

func streamError(err error, e *p4.StreamError) *p4.StreamMessageResponse {
	e.CanonicalCode, e.Message, e.Space = int32(codeOf(err)), err.Error(), errorSpace
	return &p4.StreamMessageResponse{Update: &p4.StreamMessageResponse_Error{Error: e}}
}

func (s *Server) packetOut(st *stream, p *p4.PacketOut) error {
	if err := s.mustBePrimary(st, "packet-out"); err != nil {
		return err
	}
	c := s.running.Load()
	if c == nil {
		return fail(codes.FailedPrecondition, "packet-out: no forwarding pipeline config has been set yet")
	}
	frame, err := c.packetOut.pack(p.GetMetadata(), p.GetPayload())
	if err != nil {
		return err
	}
	if err := s.target.Inject(frame); err != nil {
		return fail(codes.ResourceExhausted, "packet-out: %v", err)
	}
	s.stats.packetOuts.Add(1)
	return nil
}

// packetIn is called for each frame sent to the CPU port.
func (s *Server) packetIn(frame []byte) {
	primaries := *s.primaries.Load()
	c := s.running.Load()
	if len(primaries) == 0 || c == nil {
		s.stats.packetInDrops.Add(1)
		return
	}
	metadata, payload, err := c.packetIn.unpack(frame)
	if err != nil {
		s.stats.packetInDrops.Add(1)
		return
	}
	offerAll(primaries, 1, &s.stats.packetIns, &s.stats.packetInDrops, &p4.StreamMessageResponse{
		Update: &p4.StreamMessageResponse_Packet{Packet: &p4.PacketIn{
			Payload:  append([]byte(nil), payload...),
			Metadata: metadata,
		}},
	})
}
