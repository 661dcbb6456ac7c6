package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	replicav1 "github.com/mcrdma/mcrdma/api/replica/v1"
	"github.com/mcrdma/mcrdma/cmd/internal/cli"
	"github.com/mcrdma/mcrdma/cmd/mcblock/internal/config"
	"github.com/mcrdma/mcrdma/internal/grpcclient"
	"github.com/mcrdma/mcrdma/internal/identity"
	"github.com/mcrdma/mcrdma/pkg/replica"
	"github.com/mcrdma/mcrdma/pkg/replica/core"
	"github.com/mcrdma/mcrdma/pkg/replica/osdmap"
)

// statuses serves the status of the host.
type statuses struct {
	replicav1.UnimplementedStatusesServer
	cfg     *config.Config
	largest uint64                       // store.Largest
	ca      []byte                       // the file of the CA when etcd's member and clients read it
	silent  *atomic.Pointer[error]       // the server's
	host    atomic.Pointer[replica.Host] // nil: it is being opened
}

// GetHost implements the protocol.
func (s *statuses) GetHost(ctx context.Context, _ *replicav1.GetHostRequest) (*replicav1.GetHostResponse, error) {
	who, err := identity.FromContext(ctx)
	if err != nil {
		return nil, err
	}
	if !who.Is(identity.Host, identity.Admin) {
		return nil, status.Errorf(codes.PermissionDenied, "%v is neither a host nor an administrator", who)
	}
	h := s.host.Load()
	if h == nil {
		return nil, status.Errorf(codes.Unavailable, "host %s is starting: try again", s.cfg.Name)
	}
	a := &replicav1.GetHostResponse{Name: s.cfg.Name, Version: cli.Version(), LargestBytes: s.largest}
	a.DataBytes, a.FreeBytes = space(s.cfg.Data)
	if _, until, err := files(s.cfg).Read(); err == nil && !until.IsZero() {
		a.CertificateUntil = timestamppb.New(until)
	}
	if now, err := os.ReadFile(s.cfg.TLS.CA); err == nil {
		a.OldCa = !bytes.Equal(now, s.ca)
	}
	if err := s.silent.Load(); err != nil {
		a.Daemon = (*err).Error()
	}
	health := h.Health()
	if health.Away != nil {
		a.Away = health.Away.Error()
	}
	for id, err := range health.Broken {
		a.Broken = append(a.Broken, &replicav1.BrokenVolume{Volume: id, Error: err.Error()})
	}
	for _, v := range h.Volumes() {
		x := v.Status()
		to := &replicav1.VolumeStatus{Volume: v.Info().ID, State: x.State.String(), Epoch: max(x.Map.Epoch, x.Disk.Epoch), Leased: x.Leased, Head: x.Head.Index,
			Committed: x.Commit, Durable: x.Stable, Stored: x.Applied, Backfilling: x.Backfilling, CopiedBytes: x.Copied,
			OldestRequest: durationpb.New(x.Oldest), Waits: x.Waits}
		if x.Failure != nil {
			to.Failure = x.Failure.Error()
		}
		a.Volumes = append(a.Volumes, to)
	}
	return a, nil
}

// A told is a host's status, or why it has none.
type told struct {
	*replicav1.GetHostResponse
	err error
}

// ofVolume returns what a host's report says about a volume in one of its lists; nil: nothing.
func ofVolume[T interface{ GetVolume() uint64 }](list []T, volume uint64) (x T) {
	if i := slices.IndexFunc(list, func(x T) bool { return x.GetVolume() == volume }); i >= 0 {
		x = list[i]
	}
	return x
}

// ask asks all hosts in parallel, each with a timeout.
func ask(ctx context.Context, cfg *config.Config, hosts []osdmap.Host, limit time.Duration) map[core.ID]told {
	all := map[core.ID]told{}
	var mu sync.Mutex
	var wg sync.WaitGroup
	for _, h := range hosts {
		wg.Go(func() {
			a, err := askOne(ctx, cfg, h, limit)
			mu.Lock()
			defer mu.Unlock()
			all[h.ID] = told{a, err}
		})
	}
	wg.Wait()
	return all
}

// maxStatus is the maximum number of bytes in a host's answer.
const maxStatus = 4 << 20

func askOne(ctx context.Context, cfg *config.Config, h osdmap.Host, limit time.Duration) (*replicav1.GetHostResponse, error) {
	creds, err := files(cfg).Client(identity.Identity{Role: identity.Host, Name: h.Name})
	if err != nil {
		return nil, err
	}
	conn, err := grpcclient.New(grpcclient.Config{Target: h.Peer, Creds: creds, Own: identity.Identity{Role: identity.Host, Name: cfg.Name}, MaxMessage: maxStatus})
	if err != nil {
		return nil, fmt.Errorf("host %s: %w", h.Name, err)
	}
	defer func() { _ = conn.Close() }()
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	var a *replicav1.GetHostResponse
	_, err = conn.Call(ctx, func(ctx context.Context) (err error) {
		a, err = replicav1.NewStatusesClient(conn).GetHost(ctx, &replicav1.GetHostRequest{})
		return err
	})
	return a, conn.Explain(err)
}
