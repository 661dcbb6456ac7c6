package connmgr

import (
	"context"
	"sync"
	"testing"

	"google.golang.org/grpc"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
)

// A fakeHost is another daemon, which answers what tests want.
type fakeHost struct {
	mcrdmav1.UnimplementedHostsServer

	mu     sync.Mutex
	answer func() *mcrdmav1.PrepareResponse
	drops  int
}

func (f *fakeHost) serve(t *testing.T, h *host) {
	t.Helper()
	l := h.r.listen(h.process(), h.listen)
	s := grpc.NewServer(grpc.WaitForHandlers(true))
	mcrdmav1.RegisterHostsServer(s, f)
	done := make(chan struct{})
	go func() { defer close(done); _ = s.Serve(l) }()
	t.Cleanup(func() { s.Stop(); <-done })
}

func (f *fakeHost) set(answer func() *mcrdmav1.PrepareResponse) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.answer, f.drops = answer, 0
}

func (f *fakeHost) dropped() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.drops
}

func (f *fakeHost) Prepare(context.Context, *mcrdmav1.PrepareRequest) (*mcrdmav1.PrepareResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.answer(), nil
}

func (f *fakeHost) Commit(context.Context, *mcrdmav1.CommitRequest) (*mcrdmav1.CommitResponse, error) {
	return &mcrdmav1.CommitResponse{}, nil
}

func (f *fakeHost) Drop(context.Context, *mcrdmav1.DropRequest) (*mcrdmav1.DropResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.drops++
	return &mcrdmav1.DropResponse{}, nil
}

func (f *fakeHost) Beat(context.Context, *mcrdmav1.BeatRequest) (*mcrdmav1.BeatResponse, error) {
	return &mcrdmav1.BeatResponse{}, nil
}
