package connmgr

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"iter"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/semaphore"
	"google.golang.org/grpc"

	"github.com/mcrdma/mcrdma/internal/connmgr/agent"
	"github.com/mcrdma/mcrdma/internal/connmgr/config"
	machine "github.com/mcrdma/mcrdma/internal/group"
	"github.com/mcrdma/mcrdma/internal/grpcclient"
	"github.com/mcrdma/mcrdma/internal/grpcserver"
	"github.com/mcrdma/mcrdma/internal/identity"
	"github.com/mcrdma/mcrdma/internal/store"
	"github.com/mcrdma/mcrdma/internal/unixsock"
)

// ProtocolVersion is the version of the protocols with applications and among daemons.
const ProtocolVersion = machine.ProtocolVersion

// ErrConfig is wrapped by errors of configurations that cannot be used.
var ErrConfig = errors.New("bad configuration")

// Store is the daemon's state file; store.Store implements it.
type Store interface {
	Boot() uint64
	Load(bucket string) iter.Seq2[[]byte, []byte]
	Commit(ctx context.Context, edits ...store.Edit) error
	Reserve(name string, n uint64) (first uint64, err error)
	Failed() error
	Close() error
}

// Options are settings that are not in the configuration file. The zero value works.
type Options struct {
	Logger  *slog.Logger // nil: silent
	Version string       // of the program, for people
	// Hosts serves other daemons instead of a listener at Config.Listen, and Apps
	// applications instead of one at Config.Socket. Connections of Apps are those of a
	// unix socket, or each is a unixsock.PeerCreder.
	Hosts, Apps net.Listener
	// Dial makes connections to other daemons and to the agent of the switch, instead of
	// TCP.
	Dial func(ctx context.Context, target string) (net.Conn, error)
	// DialOptions are further options of these connections.
	DialOptions []grpc.DialOption
	// Busy reports whether the host's processors are overloaded; nil: never.
	Busy func(now time.Time) bool
	// OpenStore opens the state instead of store.Open.
	OpenStore func(ctx context.Context, path string) (Store, error)
	// Metrics gets the daemon's metrics; the caller serves them. nil: they are not registered.
	Metrics prometheus.Registerer
}

// Time limits for others.
const (
	requestTime = 30 * time.Second // a request of an application without deadline
	prepareTime = 5 * time.Second  // all receivers, for a new group
	leastReform = time.Second      // the same, when it is re-formed; see reformTime
	installTime = agent.CallTime   // the switches
	commitTime  = 2 * time.Second  // all receivers
	undoTime    = machine.UndoTime // undoing, while a caller waits
)

// A Manager is the daemon of one host.
type Manager struct {
	cfg   *config.Config
	opts  Options
	log   *slog.Logger
	files identity.Files
	host  machine.Host // for checks

	store   Store
	boot    uint64
	metrics *metrics
	tor     *agent.Client // of the switch; nil: none is configured
	hosts   net.Listener
	apps    net.Listener

	opened []func() // each closes something; the last one first
	running
	numbers  atomic.Uint64 // the last of a group
	mcIDs    mcIDs
	creating *semaphore.Weighted
	peers    *peers
	sessions *sessions
	members  *members
	found    found
	watched  watched
	table
}

// table is the groups of this host.
type table struct {
	mu       sync.Mutex
	draining bool // see CloseAll
	groups   map[groupID]*group
	seed     maphash.Seed // of the lists of beats
}

// New returns a daemon. It opens its state file and listens, and does nothing else before Run,
// which must be called. Errors wrap ErrConfig or say what cannot be opened.
func New(ctx context.Context, cfg *config.Config, o Options) (*Manager, error) {
	own := *cfg
	own.SetDefaults()
	if err := own.Validate(); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrConfig, err)
	}
	m := &Manager{cfg: &own, opts: o, log: o.Logger, files: identity.Files{Cert: own.TLS.Cert, Key: own.TLS.Key, CA: own.TLS.CA},
		creating: semaphore.NewWeighted(maxCreatingAll), running: running{ready: make(chan struct{})},
		watched: watched{questions: map[uint64]asked{}},
		table:   table{groups: map[groupID]*group{}, seed: maphash.MakeSeed()}}
	if m.log == nil {
		m.log = slog.New(slog.DiscardHandler)
	}
	if m.opts.Busy == nil {
		m.opts.Busy = func(time.Time) bool { return false }
	}
	m.host = machine.Host{Name: own.Name, Addr: own.Address, Hosts: map[string]netip.Addr{}, Switch: own.Switch.Agent != "",
		Receivers: own.Limits.Receivers, Regions: own.Limits.Regions, Lease: own.Leases.Member}
	for _, h := range own.Hosts {
		m.host.Hosts[h.Name] = h.Address
	}
	m.life, m.end = context.WithCancel(context.WithoutCancel(ctx))
	if err := m.open(ctx); err != nil {
		m.close()
		return nil, err
	}
	return m, nil
}

// open opens everything that can fail at the start.
func (m *Manager) open(ctx context.Context) error {
	if err := m.checkIdentity(); err != nil {
		return err
	}
	var err error
	if m.metrics, err = newMetrics(m); err != nil {
		return err
	}
	m.opened = append(m.opened, m.metrics.close)
	open := m.opts.OpenStore
	if open == nil {
		open = func(ctx context.Context, path string) (Store, error) {
			return store.Open(ctx, path, store.Options{Kind: "daemon"})
		}
	}
	if m.store, err = open(ctx, m.cfg.State); err != nil {
		return err
	}
	m.opened = append(m.opened, func() { _ = m.store.Close() })
	m.boot = m.store.Boot()
	m.numbers.Store(rand.Uint64N(firstGroups)) //nolint:gosec // not a secret
	m.peers = newPeers(m)
	m.opened = append(m.opened, m.peers.close)
	if err := m.peers.configure(m.cfg.Hosts); err != nil {
		return err
	}
	if err := m.dialSwitch(); err != nil {
		return err
	}
	m.sessions = newSessions(m.log, func(s *session, why string) { m.background(func(context.Context) { m.sessionOver(s, why) }) })
	m.members = newMembers(m)
	m.members.sendNews = m.sendNews
	if err := m.load(); err != nil {
		return err
	}
	if m.hosts = m.opts.Hosts; m.hosts == nil {
		if m.hosts, err = grpcclient.Listen(ctx, m.cfg.Listen); err != nil {
			return fmt.Errorf("%w: %w", ErrConfig, grpcserver.CannotListen("listen", m.cfg.Listen, err))
		}
	}
	m.opened = append(m.opened, func() { _ = m.hosts.Close() })
	if m.apps = m.opts.Apps; m.apps == nil {
		if m.apps, err = unixsock.Listen(m.cfg.Socket, m.cfg.SocketMode); err != nil {
			return fmt.Errorf("%w: applications cannot be served: %w", ErrConfig, err)
		}
	}
	m.opened = append(m.opened, func() { _ = m.apps.Close() })
	// At once and before the first membership: a crash must not leave this host's name on another's.
	return m.store.Commit(ctx, m.found.edits...)
}

// checkIdentity checks that the certificate is this host's: with another one, every other
// daemon and the agent would refuse this daemon's requests.
func (m *Manager) checkIdentity() error {
	if m.files.Plain() {
		return nil
	}
	id, _, err := m.files.Read()
	if err != nil {
		return fmt.Errorf("%w: %w", ErrConfig, err)
	}
	if !id.Is(identity.Host) || id.Name != m.cfg.Name || !id.Owns(m.cfg.Address) {
		return fmt.Errorf("%w: the certificate %s is for %v, and this host is host:%s %v: issue one for it, or correct name and address",
			ErrConfig, m.files.Cert, id, m.cfg.Name, m.cfg.Address)
	}
	return nil
}

// Ready is closed when the daemon serves.
func (m *Manager) Ready() <-chan struct{} { return m.ready }

// Addr is where other daemons are served.
func (m *Manager) Addr() net.Addr { return m.hosts.Addr() }

// Socket is the path of the unix socket for applications.
func (m *Manager) Socket() string { return m.apps.Addr().String() }

// Readiness reports whether applications are served, with a note for people.
func (m *Manager) Readiness() (ok bool, note string) {
	select {
	case <-m.ready:
	default:
		return false, "the daemon starts"
	}
	m.mu.Lock()
	ends := m.draining || m.life.Err() != nil
	m.mu.Unlock()
	if ends {
		return false, "the daemon ends"
	}
	if err := m.renewSocket(); err != nil {
		return false, err.Error()
	}
	if m.tor != nil {
		if why := m.tor.Unusable(); why != "" {
			note = "hosts relay new groups: switch " + m.tor.Name + ": " + why
		}
	}
	return true, note
}

// Run runs the daemon until ctx ends, and closes it. Groups stay until their leases expire, for the
// next daemon.
func (m *Manager) Run(ctx context.Context) error {
	defer m.close()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	m.started = time.Now()
	hosts, apps, err := m.newServers()
	if err != nil {
		return err
	}
	ticks := time.NewTicker(m.cfg.Beat.Interval)
	defer ticks.Stop()
	m.resumeAll()
	m.wg.Go(func() { m.tick(ticks.C) })
	m.wg.Go(m.keepSocket)
	if m.tor != nil {
		m.wg.Go(m.followSwitch)
	}
	for _, s := range []struct {
		*grpc.Server
		net.Listener
	}{{hosts, m.hosts}, {apps, m.apps}} {
		m.wg.Go(func() {
			if err := s.Serve(s.Listener); err != nil {
				cancel(fmt.Errorf("serving at %v: %w", s.Addr(), err))
			}
		})
	}
	m.peers.warm()
	m.log.Info("the daemon serves", "host", m.cfg.Name, "hosts", m.hosts.Addr(), "applications", m.apps.Addr())
	close(m.ready)
	<-ctx.Done()
	m.end()
	apps.Stop()
	hosts.Stop()
	m.wg.Wait()
	if err := context.Cause(ctx); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// tick does what is due, every beat interval: beats, leases, and the end of grace.
func (m *Manager) tick(ticks <-chan time.Time) {
	for {
		select {
		case <-ticks:
			now := time.Now()
			m.beat(now)
			graceOver := now.Sub(m.started) >= m.cfg.Beat.Grace
			if m.members.tick(graceOver); graceOver {
				for _, s := range m.sessions.all() {
					m.endSession(s, nil, "its application has not come back after the daemon's restart")
				}
			}
			busy := m.opts.Busy(now)
			m.mu.Lock()
			for _, c := range m.peers.tick(now, busy) {
				m.act(c)
			}
			m.mu.Unlock()
			m.peers.closeIdle(now)
		case <-m.life.Done():
			return
		}
	}
}

func (m *Manager) close() {
	m.end()
	for _, f := range slices.Backward(m.opened) {
		f()
	}
	m.opened = nil
}
