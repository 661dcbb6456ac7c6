package p4rt

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"

	p4 "github.com/p4lang/p4runtime/go/p4/v1"
	"google.golang.org/grpc"

	"github.com/mcrdma/mcrdma/internal/switchspec"
)

// lost waits for the end of a session.
func lost(t *testing.T, s *Session) {
	t.Helper()
	select {
	case <-s.Done():
	case <-within(t).Done():
		t.Fatal("not noticed")
	}
	if !errors.Is(s.Err(), ErrStreamLost) {
		t.Errorf("%v", s.Err())
	}
}

// again opens a session after one was lost, and becomes the primary.
func again(t *testing.T, c *Client) *Session {
	t.Helper()
	s := open(t, c)
	if err := s.WaitPrimary(within(t)); err != nil {
		t.Fatal(err)
	}
	return s
}

func restarts(t *testing.T, target string, restart func()) {
	s := ready(t, target)
	for range 2 {
		reach(t, s, everything(t))
		restart()
		lost(t, s)
		s = again(t, s.c)
		if has, err := s.HasPipeline(within(t)); has || err != nil {
			t.Fatalf("a switch that has just started has a pipeline: %t, %v", has, err)
		}
		if _, err := s.Read(within(t)); err == nil {
			t.Error("a state without a pipeline")
		}
		pushed, err := s.EnsurePipeline(within(t))
		if !pushed || err != nil {
			t.Fatalf("pushed: %t, %v", pushed, err)
		}
		if err := s.EnableDigests(within(t)); err != nil {
			t.Fatal(err)
		}
	}
	reach(t, s, everything(t))
}

func TestSwitchRestarts(t *testing.T) {
	r := embedded(t)
	restarts(t, r.target, func() {
		r.close()
		r = embeddedAt(t, r.target)
	})
}

func TestBMv2Restarts(t *testing.T) {
	target := freePort(t)
	stop := realAt(t, target)
	restarts(t, target, func() {
		stop()
		stop = realAt(t, target)
	})
}

// A relay sits between client and switch, and cuts the connections through it.
type relay struct {
	target string
	mu     sync.Mutex
	conns  []net.Conn
}

func relayTo(t *testing.T, target string) *relay {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &relay{target: l.Addr().String()}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			near, err := l.Accept()
			if err != nil {
				return
			}
			far, err := net.Dial("tcp", target)
			if err != nil {
				near.Close()
				continue
			}
			r.mu.Lock()
			r.conns = append(r.conns, near, far)
			r.mu.Unlock()
			for _, way := range [][2]net.Conn{{near, far}, {far, near}} {
				wg.Go(func() { _, _ = io.Copy(way[0], way[1]) })
			}
		}
	})
	t.Cleanup(func() { l.Close(); r.cut(); wg.Wait() })
	return r
}

func (r *relay) cut() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range r.conns {
		c.Close()
	}
	r.conns = nil
}

// cuts: a switch keeps everything while its agent is away.
func cuts(t *testing.T, target string) {
	r := relayTo(t, target)
	s := ready(t, r.target)
	reach(t, s, everything(t))
	for range 3 {
		r.cut()
		lost(t, s)
		if err := s.Apply(within(t), switchspec.Diff(everything(t), &switchspec.State{})); !errors.Is(err, ErrStreamLost) {
			t.Errorf("a lost session writes: %v", err)
		}
		if err := s.PushPipeline(within(t)); !errors.Is(err, ErrStreamLost) {
			t.Errorf("a lost session pushes: %v", err)
		}
		s = again(t, s.c)
		pushed, err := s.EnsurePipeline(within(t))
		if pushed || err != nil {
			t.Fatalf("pushed: %t, %v", pushed, err)
		}
		have, err := s.Read(within(t))
		if err != nil {
			t.Fatal(err)
		}
		if d := switchspec.Diff(have, everything(t)); len(d) != 0 {
			t.Errorf("lost: %v", d)
		}
	}
	// In the middle of changes.
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	cut := make(chan struct{})
	go func() { defer close(cut); r.cut() }()
	err := s.Apply(ctx, switchspec.Diff(everything(t), &switchspec.State{}))
	<-cut
	// The connection may be up again before it is noticed that the stream is lost;
	// the embedded switch then says that there is no primary.
	if err != nil && !errors.Is(err, ErrStreamLost) && !errors.Is(err, ErrNotPrimary) {
		t.Errorf("%v", err)
	}
	lost(t, s)
	s = again(t, s.c)
	reach(t, s, &switchspec.State{})
	reach(t, s, everything(t))
}

func TestConnectionIsCut(t *testing.T) { cuts(t, embedded(t).target) }

func TestConnectionToBMv2IsCut(t *testing.T) { cuts(t, real(t)) }

// TestLostDuringWrite: that the session is lost is why a write under way ends.
func TestLostDuringWrite(t *testing.T) {
	begun, hang := make(chan struct{}, 1), &atomic.Bool{}
	r := embedded(t, grpc.ChainUnaryInterceptor(func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, h grpc.UnaryHandler) (any, error) {
		if _, ok := req.(*p4.WriteRequest); ok && hang.Load() {
			begun <- struct{}{}
			<-ctx.Done()
		}
		return h(ctx, req)
	}))
	s := ready(t, r.target)
	hang.Store(true)
	go func() {
		<-begun
		s.lose(ErrStreamLost)
		s.end()
	}()
	err := s.Apply(within(t), switchspec.Diff(&switchspec.State{}, everything(t)))
	var w *WriteError
	if !errors.Is(err, ErrStreamLost) || !errors.As(err, &w) || len(w.Unknown) == 0 {
		t.Errorf("%v", err)
	}
}
