package embedded

import (
	"context"
	"errors"
	"testing"

	"google.golang.org/grpc"
)

type openStream struct {
	grpc.ServerStream
	ctx context.Context
}

func (s openStream) Context() context.Context { return s.ctx }

// TestStreamsEnd: a stream that its client keeps open ends when the member is closed.
func TestStreamsEnd(t *testing.T) {
	open, end := context.WithCancel(t.Context())
	started, ended := make(chan struct{}), make(chan error)
	go func() {
		ended <- endWith(open)(nil, openStream{ctx: t.Context()}, nil, func(_ any, s grpc.ServerStream) error {
			close(started)
			<-s.Context().Done()
			return s.Context().Err()
		})
	}()
	<-started
	end()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
}
