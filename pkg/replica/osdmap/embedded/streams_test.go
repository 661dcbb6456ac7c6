package embedded

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

type openStream struct {
	grpc.ServerStream
	ctx context.Context
}

func (s openStream) Context() context.Context { return s.ctx }

// TestCloseSoon: a member that stops waits for a second at most until another has the lead.
func TestCloseSoon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begun, forced := time.Now(), make(chan struct{})
		closeSoon(func() { <-forced }, func() { close(forced) }) // the other one stops, too, and never takes it
		if took := time.Since(begun); took != handover {
			t.Errorf("it took %v", took)
		}
		closeSoon(func() {}, func() { t.Error("it is stopped hard, and has ended") })
		time.Sleep(2 * handover)
	})
}

// TestStreamsEnd: a stream that its client keeps open ends when the member is closed, and so that
// the client goes on at another member.
func TestStreamsEnd(t *testing.T) {
	open, end := context.WithCancel(t.Context())
	started, ended := make(chan struct{}), make(chan error)
	go func() {
		ended <- endWith(open)(nil, openStream{ctx: t.Context()}, nil, func(_ any, s grpc.ServerStream) error {
			close(started)
			<-s.Context().Done()
			return rpctypes.ErrGRPCWatchCanceled // as etcd says now and then
		})
	}()
	<-started
	end()
	if err := <-ended; status.Code(err) != codes.Unavailable {
		t.Fatal(err)
	}
}
