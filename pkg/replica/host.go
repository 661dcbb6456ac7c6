package replica

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/status"

	replicav1 "github.com/mcrdma/mcrdma/api/replica/v1"
	"github.com/mcrdma/mcrdma/internal/durable"
	"github.com/mcrdma/mcrdma/internal/grpcserver"
	"github.com/mcrdma/mcrdma/internal/identity"
	"github.com/mcrdma/mcrdma/pkg/replica/core"
	"github.com/mcrdma/mcrdma/pkg/replica/osdmap"
)

// openedAtOnce is how many volumes are opened at a time: each reads its log.
const openedAtOnce = 8

// ErrNotFound means that this host has no such volume.
var ErrNotFound = errors.New("no such volume on this host")

// A Host has copies of the volumes that the configuration manager assigns to it. All methods may be
// called by any goroutine.
type Host struct {
	replicav1.UnimplementedReplicasServer
	cfg     Config
	peers   *peers
	server  *grpc.Server
	refused counters
	ctx     context.Context
	cancel  context.CancelFunc
	wg      sync.WaitGroup

	mu      sync.Mutex
	volumes map[uint64]*Volume
	broken  map[uint64]error // copies that could not be opened; the volumes may be open without them
	state   osdmap.State
	unknown error         // why PutHost has failed last
	checks  chan struct{} // as many checksums at once
}

// Open starts a host. It opens the volumes when the configuration manager answers.
func Open(c Config) (*Host, error) {
	c.Options = c.withDefaults()
	if c.Log == nil {
		c.Log = slog.Default()
	}
	if c.Registry == nil {
		c.Registry = prometheus.NewRegistry()
	}
	if err := c.check(); err != nil {
		return nil, err
	}
	creds, err := c.Files.Server()
	if err != nil {
		return nil, fmt.Errorf("replica: %w", err)
	}
	if err := durable.MkdirAll(c.Dir); err != nil {
		return nil, fmt.Errorf("replica: %w", err)
	}
	h := &Host{cfg: c, volumes: map[uint64]*Volume{}, broken: map[uint64]error{}, checks: make(chan struct{}, 2)}
	h.ctx, h.cancel = context.WithCancel(context.Background())
	h.peers = &peers{files: c.Files, own: identity.Identity{Role: identity.Host, Name: c.Self.Name}, dial: c.Dial, log: c.Log, ctx: h.ctx,
		all: map[core.ID]*peer{}}
	auto := promauto.With(c.Registry)
	h.metrics(auto)
	h.server = grpcserver.New(grpcserver.Config{Log: c.Log, Metrics: grpcserver.NewMetrics(auto, "host", c.Self.Name), Health: health.NewServer(),
		MaxMessage: maxMessage, MinPing: time.Second, Time: time.Minute, Explain: h.explain}, creds)
	replicav1.RegisterReplicasServer(h.server, h)
	if c.Register != nil {
		c.Register(h.server)
	}
	h.wg.Go(func() { _ = h.server.Serve(c.Listener) }) // until Close
	h.wg.Go(h.follow)
	return h, nil
}

// Close closes all volumes at this host. Their other copies go on.
func (h *Host) Close() error {
	h.cancel()
	h.server.Stop()
	h.wg.Wait()
	h.mu.Lock()
	volumes := slices.Collect(maps.Values(h.volumes))
	h.volumes = map[uint64]*Volume{}
	h.mu.Unlock()
	errs := make([]error, len(volumes))
	for i, v := range volumes { // at once, because each waits for seconds if the daemon does not answer
		h.wg.Go(func() { errs[i] = v.close() })
	}
	h.wg.Wait()
	h.peers.close()
	return errors.Join(errs...)
}

// Volume returns an open volume by its name; its Status has a Failure if this host's copy is of no use. The error wraps
// ErrNotFound, or says why the volume is not open.
func (h *Host) Volume(name string) (*Volume, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, s := range h.state.Volumes { // before those without a record, of which another may have got the name
		if s.Volume.Name != name {
			continue
		}
		if v := h.volumes[s.Volume.ID]; v != nil {
			return v, nil
		}
		if err := h.broken[s.Volume.ID]; err != nil {
			return nil, err
		}
		return nil, fmt.Errorf("%w: %s has its copies on %s", ErrNotFound, name, strings.Join(h.state.HostNames(s.Volume.Hosts), ", "))
	}
	for _, v := range h.volumes {
		if v.info.Name == name {
			return v, nil
		}
	}
	if h.state.Away != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrNotFound, name, h.state.Away)
	}
	return nil, fmt.Errorf("%w: %s", ErrNotFound, name)
}

// Opened is like Volume, but waits for a volume that is assigned to this host and not open yet,
// because it was just created, or this host just started.
func (h *Host) Opened(ctx context.Context, name string) (*Volume, error) {
	for {
		v, err := h.Volume(name)
		if !errors.Is(err, ErrNotFound) || errors.Is(err, osdmap.ErrAway) {
			return v, err
		}
		s, away := h.cfg.Manager.Read(ctx)
		if away != nil || !slices.ContainsFunc(s.Volumes, func(v osdmap.VolumeState) bool {
			return v.Volume.Name == name && slices.Contains(v.Volume.Hosts, h.cfg.Self.ID)
		}) {
			return nil, err
		}
		select {
		case <-time.After(retryTime):
		case <-ctx.Done():
			return nil, err
		case <-h.ctx.Done():
			return nil, err
		}
	}
}

// Volumes returns the open volumes, by name.
func (h *Host) Volumes() []*Volume {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.SortedFunc(maps.Values(h.volumes), func(a, b *Volume) int { return strings.Compare(a.info.Name, b.info.Name) })
}

// follow follows the configuration manager.
func (h *Host) follow() {
	for said := ""; ; { // until the configuration manager answers, and has no other host of that name
		err := h.cfg.Manager.PutHost(h.ctx, h.cfg.Self)
		h.mu.Lock()
		h.unknown = err
		h.mu.Unlock()
		if err == nil {
			break
		}
		if err.Error() != said && h.ctx.Err() == nil {
			said = err.Error()
			h.cfg.Log.Warn("this host is not known to the others yet", "error", err)
		}
		select {
		case <-time.After(time.Second):
		case <-h.ctx.Done():
			return
		}
	}
	away := false
	for s := range h.cfg.Manager.Watch(h.ctx) {
		if was := away; was != (s.Away != nil) {
			if away = !was; away {
				h.cfg.Log.Warn("the configuration manager does not answer any more", "error", s.Away)
			} else {
				h.cfg.Log.Info("the configuration manager answers again")
			}
		}
		for _, err := range s.Faults {
			h.cfg.Log.Error("a record of the configuration manager cannot be used", "error", err)
		}
		if s.Away == nil && s.Host(h.cfg.Self.ID) == nil {
			if err := h.cfg.Manager.PutHost(h.ctx, h.cfg.Self); err != nil { // or the record is damaged
				h.cfg.Log.Error("this host is not known to the configuration manager", "error", err)
			} else {
				h.cfg.Log.Warn("the configuration manager had no record of this host any more, as if it was restored from an old copy: it has got it again")
			}
		}
		h.peers.update(s.Hosts, h.cfg.Self.ID)
		h.mu.Lock()
		h.state = s
		h.mu.Unlock()
		var updates errgroup.Group
		updates.SetLimit(openedAtOnce)
		updates.Go(func() error { h.sweep(&s); return nil }) // not after them: an opening may take long (what etcd says meanwhile waits for it)
		for _, v := range s.Volumes {
			updates.Go(func() error { h.update(v); return nil })
		}
		_ = updates.Wait()
	}
}

// update opens a volume, or passes it its map.
func (h *Host) update(s osdmap.VolumeState) {
	v := h.volume(s.Volume.ID)
	switch {
	case !slices.Contains(s.Volume.Hosts, h.cfg.Self.ID):
		if v != nil {
			h.drop(v)
		}
		h.evict(s)
		return
	case v != nil:
		v.access.set(s.Volume)
		v.mapIs(s.Map)
		return
	}
	v, err := openVolume(&h.cfg, h.peers, &h.refused, s)
	if v != nil {
		err = v.Status().Failure
	}
	if err != nil {
		h.cfg.Log.Error("a volume cannot be opened", "volume", s.Volume.Name, "error", err)
	}
	if v != nil {
		h.mu.Lock()
		h.volumes[s.Volume.ID] = v
		h.mu.Unlock()
	}
	_ = h.fault(s.Volume.ID, err)
}

func (h *Host) drop(v *Volume) {
	h.mu.Lock()
	delete(h.volumes, v.info.ID)
	h.mu.Unlock()
	if err := v.close(); err != nil {
		h.cfg.Log.Error("closing a volume", "volume", v.info.Name, "error", err)
	}
}

// sweep removes the copies of deleted volumes, including those deleted while this host was away. A
// volume without a record is kept: the configuration manager may have lost it.
func (h *Host) sweep(s *osdmap.State) {
	for _, v := range h.Volumes() {
		switch deleted := slices.Contains(s.Deleted, v.info.ID); {
		case s.Volume(v.info.ID) != nil:
		case deleted:
			h.cfg.Log.Info("the volume was deleted", "volume", v.info.Name)
			h.drop(v)
		case s.Away == nil && len(s.Faults) == 0:
			h.cfg.Log.Error("the configuration manager has no record of the volume, nor that it was deleted, and so it is kept: restore a newer copy of etcd, or connect to the right one", "volume", v.info.Name)
		}
	}
	if s.Away == nil && len(s.Faults) == 0 {
		h.strays(s)
	}
	for _, id := range s.Deleted {
		_ = h.fault(id, nil)
		if err := os.RemoveAll(volumeDir(h.cfg.Dir, id)); err != nil {
			h.cfg.Log.Error("the data of a volume that was deleted cannot be removed", "volume", fmt.Sprintf("%016x", id), "error", err)
		}
	}
}

// strays notes the closed copies on this host's disk that no record says anything of.
func (h *Host) strays(s *osdmap.State) {
	entries, err := os.ReadDir(h.cfg.Dir)
	if err != nil {
		h.cfg.Log.Error("looking for copies of volumes", "error", err)
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	maps.DeleteFunc(h.broken, func(id uint64, _ error) bool {
		_, err := os.Lstat(volumeDir(h.cfg.Dir, id))
		return s.Volume(id) == nil && errors.Is(err, os.ErrNotExist)
	})
	for _, e := range entries {
		id, err := strconv.ParseUint(e.Name(), 16, 64)
		dir := volumeDir(h.cfg.Dir, id)
		if err != nil || filepath.Base(dir) != e.Name() || s.Volume(id) != nil || slices.Contains(s.Deleted, id) || h.volumes[id] != nil || h.broken[id] != nil {
			continue
		}
		h.broken[id] = fmt.Errorf("%w: the configuration manager has no record of the volume, nor that it was deleted, and so what is in %s is kept: restore a newer copy of etcd, or connect to the right one; remove it if it is not needed", ErrNotFound, dir)
		h.cfg.Log.Error("a copy here is of no volume", "error", h.broken[id])
	}
}

// metrics adds those of this host.
func (h *Host) metrics(auto promauto.Factory) {
	for name, n := range map[string]func() uint64{"ring": h.refused.badEntries.Load, "message": h.refused.badMessages.Load, "identity": h.refused.liars.Load} {
		auto.NewCounterFunc(prometheus.CounterOpts{Name: "replica_refused_total", Help: "What other hosts have sent and was refused, by what was wrong.",
			ConstLabels: prometheus.Labels{"what": name}}, func() float64 { return float64(n()) })
	}
	for name, n := range map[string]*atomic.Uint64{"log": &h.peers.sentLog, "store": &h.peers.sentStore} {
		auto.NewCounterFunc(prometheus.CounterOpts{Name: "replica_recovery_bytes_total", Help: "What this host has sent to hosts that lacked it, from logs and stores.",
			ConstLabels: prometheus.Labels{"of": name}}, func() float64 { return float64(n.Load()) })
	}
}

func (h *Host) explain(err error) error {
	if _, ok := status.FromError(err); ok {
		return err
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return status.FromContextError(err).Err()
	}
	return status.Errorf(codes.Internal, "host %s: %v", h.cfg.Self.Name, err)
}

func (h *Host) volume(id uint64) *Volume {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.volumes[id]
}

// caller returns the host that calls.
func (h *Host) caller(ctx context.Context) (core.ID, error) {
	who, err := identity.FromContext(ctx)
	if err != nil {
		return 0, err
	}
	id, err := h.peers.id(who.Name)
	if err == nil && !who.Is(identity.Host) {
		err = fmt.Errorf("%v is no host", who)
	}
	switch {
	case errors.Is(err, errStarting):
		return 0, status.Error(codes.Unavailable, err.Error())
	case err != nil:
		return 0, status.Error(codes.PermissionDenied, err.Error())
	}
	return id, nil
}

// Deliver implements the protocol.
func (h *Host) Deliver(s replicav1.Replicas_DeliverServer) error {
	id, err := h.caller(s.Context())
	if err != nil {
		return err
	}
	for {
		m, err := s.Recv()
		if errors.Is(err, io.EOF) {
			return s.SendAndClose(&replicav1.DeliverResponse{})
		}
		if err != nil {
			return err
		}
		if core.ID(m.GetFrom().GetId()) != id {
			h.refused.liars.Add(1)
			return status.Errorf(codes.PermissionDenied, "a message of host %d, which this is not: its certificate is that of host %d", m.GetFrom().GetId(), id)
		}
		if v := h.volume(m.GetVolume()); v != nil {
			if err := v.deliver(s.Context(), m); err != nil {
				h.refused.badMessages.Add(1)
				h.cfg.Log.Warn("a message was refused", "from", id, "error", err)
				return status.Error(codes.InvalidArgument, err.Error())
			}
		}
	}
}

// deliver passes a message to the node, and waits until the node has handled it. A piece of the
// store reaches the node when earlier pieces have been written; only then does the node request the
// next one, so pieces arrive no faster than the disk writes them.
func (v *Volume) deliver(ctx context.Context, m *replicav1.Message) error {
	waiting, cancel := context.WithCancel(ctx)
	defer context.AfterFunc(v.loop.ctx, cancel)()
	defer cancel()
	x, err := decode(waiting, m, v.memory.pushed)
	if errors.Is(err, errNoMemory) {
		return nil
	}
	if err != nil {
		return err
	}
	select {
	case <-v.loop.await(func() {
		if _, ok := x.Body.(core.Chunk); ok && v.loop.failure == nil {
			v.loop.disk.job(func() error { return nil }, func() { v.loop.step(x) })
		} else {
			v.loop.step(x)
		}
	}):
	case <-v.loop.stopped:
	case <-ctx.Done():
	}
	return nil
}

// Forward implements the protocol.
func (h *Host) Forward(ctx context.Context, q *replicav1.ForwardRequest) (*replicav1.ForwardResponse, error) {
	if _, err := h.caller(ctx); err != nil {
		return nil, err
	}
	v := h.volume(q.GetVolume())
	if v == nil {
		return &replicav1.ForwardResponse{Outcome: replicav1.Outcome_OUTCOME_NOT_PRIMARY}, nil
	}
	return v.serve(ctx, q)
}
