package p4rtserver

import (
	"context"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	p4 "github.com/p4lang/p4runtime/go/p4/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"

	"github.com/mcrdma/mcrdma/internal/grpcwindow"
	"github.com/mcrdma/mcrdma/internal/softswitch/pipeline"
)

// Options configure a Server. The zero value works.
type Options struct {
	DeviceID   uint64
	MaxStreams int                      // maximum number of streams per role; 0: 16, as bmv2
	Queue      int                      // packets and other messages that wait for a slow controller, per stream; 0: 1024
	Clock      func() time.Time         // for timestamps in messages; nil: time.Now
	FastPath   func() string            // says where packets are processed, and why; nil: not reported
	Problems   func() map[string]string // what to do, by what is wrong with the switch; nil: not reported
}

// Limits of what clients can make the server store.
const (
	defaultStreams = 16
	defaultQueue   = 1024
	maxRoles       = 64
	// maxMessage is the largest message accepted, for large device configs
	// ("gRPC Server Maximum Receive Message Size").
	maxMessage = 128 << 20
)

// Headers of the response of Capabilities: the port of packet-in, where packets are processed, and, as often as there
// are problems of the switch, what is wrong and what to do.
const (
	CPUPortHeader  = "mcrdma-cpu-port"
	FastPathHeader = "mcrdma-fast-path"
	ProblemHeader  = "mcrdma-problem"
	RemedyHeader   = "mcrdma-remedy"
)

// apiVersion is what Capabilities reports.
const apiVersion = "1.5.0"

// A Server implements p4.v1.P4Runtime for one Target.
type Server struct {
	p4.UnimplementedP4RuntimeServer

	target Target
	opt    Options
	stats  counters

	// mu guards the arbitration's state; it is held briefly.
	mu        sync.Mutex
	roles     map[string]*role
	closed    bool
	primaries atomic.Pointer[[]*stream] // of all roles

	// state is held for writing during a Write or a change of the pipeline, and for reading during
	// a Read, so that batches do not interleave.
	state  sync.RWMutex
	active *config // running; nil before the first commit
	saved  *config // by VERIFY_AND_SAVE; nil: none

	running atomic.Pointer[config] // active, for callers that must not block
	digests *digester

	closing chan struct{}
	work    sync.WaitGroup // streams and their goroutines, the digester
}

// New returns a server for the target, whose callbacks it sets. Close stops it.
func New(t Target, o Options) *Server {
	if o.MaxStreams <= 0 {
		o.MaxStreams = defaultStreams
	}
	if o.Queue <= 0 {
		o.Queue = defaultQueue
	}
	if o.Clock == nil {
		o.Clock = time.Now
	}
	s := &Server{target: t, opt: o, roles: map[string]*role{}, closing: make(chan struct{})}
	s.primaries.Store(&[]*stream{})
	s.digests = newDigester()
	s.work.Go(s.sendDigests)
	t.Subscribe(s.packetIn, s.takeDigests, s.idle)
	return s
}

// aliveTime is after how long a controller that is not heard is asked, and again how long it has to answer. Without an
// answer its connection ends, so that another controller becomes the primary.
const aliveTime = 10 * time.Second

// ServerOptions returns the options for the gRPC server: pipelines may exceed gRPC's default
// message limit, after Stop returns, no call still accesses the switch, and controllers that are
// gone or stopped lose their connection.
func ServerOptions() []grpc.ServerOption {
	return append(grpcwindow.Serve(), grpc.MaxRecvMsgSize(maxMessage), grpc.WaitForHandlers(true),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: aliveTime, Timeout: aliveTime}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: aliveTime / 2, PermitWithoutStream: true}))
}

// Register adds the service to a gRPC server.
func (s *Server) Register(g grpc.ServiceRegistrar) { p4.RegisterP4RuntimeServer(g, s) }

// Close ends all streams with UNAVAILABLE, removes the callbacks from the target and waits for the
// server's goroutines, except unary calls. It may be called more than once. A controller that does
// not read does not delay Close, but it delays gRPC's GracefulStop, which therefore needs a
// deadline and then Stop.
func (s *Server) Close() {
	s.mu.Lock()
	first := !s.closed
	s.closed = true
	s.mu.Unlock()
	if first {
		s.target.Subscribe(func([]byte) {}, func([]pipeline.Digest) {}, func([]pipeline.Expired) {})
		close(s.closing)
	}
	s.work.Wait()
}

// Stats are counters since the start.
type Stats struct {
	PacketIns       uint64 // sent to controllers, counted per controller
	PacketInDrops   uint64 // not sent: no primary, a full queue, or too short for the header
	PacketOuts      uint64 // injected
	PacketOutErrors uint64 // rejected
	Digests         uint64 // messages (not lists) sent to controllers
	DigestDrops     uint64 // not sent: no primary, or more than could be sent
	IdleEntries     uint64 // reported idle
	IdleDrops       uint64 // not reported: no primary, or a full queue
	Updates         uint64 // of successful Writes
	UpdateErrors    uint64
}

type counters struct {
	packetIns, packetInDrops, packetOuts, packetOutErrors atomic.Uint64
	digests, digestDrops, idleEntries, idleDrops          atomic.Uint64
	updates, updateErrors                                 atomic.Uint64
}

// Stats returns the server's counters.
func (s *Server) Stats() Stats {
	c := &s.stats
	return Stats{
		PacketIns: c.packetIns.Load(), PacketInDrops: c.packetInDrops.Load(),
		PacketOuts: c.packetOuts.Load(), PacketOutErrors: c.packetOutErrors.Load(),
		Digests: c.digests.Load(), DigestDrops: c.digestDrops.Load(),
		IdleEntries: c.idleEntries.Load(), IdleDrops: c.idleDrops.Load(),
		Updates: c.updates.Load(), UpdateErrors: c.updateErrors.Load(),
	}
}

// Capabilities implements p4.v1.P4Runtime.
//
// Response headers carry the CPU port, and the fast path and problems of [Options], for which P4Runtime has no
// fields.
func (s *Server) Capabilities(ctx context.Context, req *p4.CapabilitiesRequest) (*p4.CapabilitiesResponse, error) {
	if id := req.GetDeviceId(); id != 0 {
		if err := s.checkDevice(id); err != nil {
			return nil, err
		}
	}
	say := func(key, text string) {
		text = strings.ReplaceAll(text, "\n", "; ")        // of joined errors; HTTP headers cannot contain newlines
		_ = grpc.SetHeader(ctx, metadata.Pairs(key, text)) // fails if this is not called by gRPC
	}
	say(CPUPortHeader, strconv.Itoa(int(s.target.CPUPort())))
	if f := s.opt.FastPath; f != nil {
		if text := f(); text != "" {
			say(FastPathHeader, text)
		}
	}
	if f := s.opt.Problems; f != nil {
		remedies := f()
		for _, what := range slices.Sorted(maps.Keys(remedies)) {
			say(ProblemHeader, what)
			say(RemedyHeader, remedies[what])
		}
	}
	return &p4.CapabilitiesResponse{P4RuntimeApiVersion: apiVersion}, nil
}
