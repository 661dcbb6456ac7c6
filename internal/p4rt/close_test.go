package p4rt

import (
	"net"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	p4 "github.com/p4lang/p4runtime/go/p4/v1"
)

// closes closes a session, which the switch has to end: Close need not give up.
func closes(t *testing.T, s *Session) {
	t.Helper()
	if s.Close(); status.Code(s.Err()) == codes.Canceled {
		t.Errorf("the switch has not ended it: %v", s.Err())
	}
}

// What was sent before Close still goes out.
func TestCloseFlushes(t *testing.T) {
	const frames = 48
	for range 20 {
		r := embedded(t)
		s := ready(t, r.target)
		for i := range frames {
			f := make([]byte, 60)
			f[12], f[13], f[14] = 0x88, 0xb5, byte(i)
			if err := s.PacketOut(1, f); err != nil {
				t.Fatal(err)
			}
		}
		closes(t, s)
		bufs := make([][]byte, frames)
		for i := range bufs {
			bufs[i] = make([]byte, 2048)
		}
		late := time.AfterFunc(5*time.Second, func() { _ = r.port.Close() })
		for got := 0; got < frames; {
			n, err := r.port.Recv(bufs)
			if err != nil {
				t.Fatalf("%d frames of %d have come: %v", got, frames, err)
			}
			got += n
		}
		late.Stop()
		r.close()
	}
}

// The switch of bmv2, too, ends a stream that is closed.
func TestCloseReal(t *testing.T) {
	s := ready(t, real(t))
	closes(t, s)
}

// A deaf switch answers once, and then never.
type deaf struct {
	p4.UnimplementedP4RuntimeServer
}

func (deaf) StreamChannel(g p4.P4Runtime_StreamChannelServer) error {
	m, err := g.Recv()
	if err != nil {
		return err
	}
	if err := g.Send(&p4.StreamMessageResponse{Update: &p4.StreamMessageResponse_Arbitration{Arbitration: m.GetArbitration()}}); err != nil {
		return err
	}
	<-g.Context().Done()
	return nil
}

// A switch that hangs does not keep a session from closing, not even if it reads
// nothing of what is sent.
func TestCloseDeaf(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	g := grpc.NewServer()
	p4.RegisterP4RuntimeServer(g, deaf{})
	served := make(chan struct{})
	go func() { defer close(served); _ = g.Serve(l) }()
	defer func() { g.Stop(); <-served }()
	s, err := client(t, Config{Target: l.Addr().String()}).Open(within(t))
	if err != nil {
		t.Fatal(err)
	}
	sent, begun := make(chan error, 1), make(chan struct{})
	go func() {
		for i := 0; ; i++ {
			if i == 1 {
				close(begun)
			}
			if err := s.PacketOut(1, make([]byte, 60000)); err != nil {
				sent <- err
				return
			}
		}
	}()
	<-begun // it will be stuck soon
	s.Close()
	if err := <-sent; err == nil {
		t.Error("a packet was sent by a closed session")
	}
}
