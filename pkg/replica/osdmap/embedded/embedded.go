// Package embedded runs a member of an etcd cluster in this process, so that hosts of replicated
// volumes need no other program. Programs that do not import it do not link etcd's server.
//
// A cluster works while more than half of its members do: run it on three or five hosts. A member
// whose disk is lost is replaced by etcd.Store's Replace.
package embedded

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver"
	"go.etcd.io/etcd/server/v3/etcdserver/api/membership"
	"go.uber.org/zap"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/mcrdma/mcrdma/internal/durable"
	"github.com/mcrdma/mcrdma/internal/identity"
	"github.com/mcrdma/mcrdma/pkg/replica/osdmap/etcd"
)

// A Config is a member's. All but Join, Election and Files is required.
type Config struct {
	Name    string            // of the member, as in Members
	Dir     string            // data; made if it is not there
	Client  string            // host:port that it listens on for clients, and which they use
	Members map[string]string // all members of the cluster: host:port for other members, by name; counts at the first start only
	Join    bool              // at its first start the cluster exists: the member replaces another
	// Election is for how long a leader is silent before the other members choose a new one, in up to twice that
	// time. It is the same for all. Default: 1 s.
	Election time.Duration
	Files    identity.Files // of this host; zero: plain text
	Log      *slog.Logger
}

// What Trouble returns.
var (
	// ErrOtherCluster: another member says that this one is of another cluster. One that replaces a lost member has to Join, and
	// its directory has to be new.
	ErrOtherCluster = errors.New("this member and another are of different clusters")
	// ErrRemoved: the member was taken out of the cluster.
	ErrRemoved = errors.New("this member was removed from the cluster")
	// ErrReplaced: another member was added at this one's address, such as this host again, and has to begin with a new
	// directory.
	ErrReplaced = errors.New("the cluster has another member at this one's address, and the data here is of the one before")
	// ErrLost: the directory is new, but the cluster has had this member. Only Start returns it.
	ErrLost = errors.New("the cluster has this member already, and its data is not here")
	// ErrForeign: the data is that of a member with another name. Only Start returns it.
	ErrForeign = errors.New("its data is that of another member")
)

// A Member is one that runs.
type Member struct {
	etcd    *embed.Etcd
	trouble *atomic.Pointer[error]
	once    sync.Once
	streams context.CancelFunc // ends those of clients
}

// Start starts the member. It returns before the cluster works, which needs a majority: Ready.
func Start(c Config) (*Member, error) {
	if err := c.check(); err != nil {
		return nil, fmt.Errorf("etcd: %w", err)
	}
	if err := c.allocate(); err != nil {
		return nil, fmt.Errorf("etcd: %w", err)
	}
	if err := c.foreign(); err != nil {
		return nil, fmt.Errorf("etcd: starting the member %s in %s: %w", c.Name, c.Dir, err)
	}
	if c.Join && c.lost() {
		return nil, fmt.Errorf("etcd: starting the member %s in %s: %w", c.Name, c.Dir, ErrLost)
	}
	trouble := new(atomic.Pointer[error])
	cfg := c.embed(trouble)
	open, end := context.WithCancel(context.Background())
	cfg.GRPCAdditionalServerOptions = []grpc.ServerOption{grpc.ChainStreamInterceptor(endWith(open))}
	e, err := embed.StartEtcd(cfg)
	if err != nil {
		if end(); strings.Contains(err.Error(), "has already been bootstrapped") { // etcdserver/bootstrap.go
			err = ErrLost
		}
		return nil, fmt.Errorf("etcd: starting the member %s in %s: %w", c.Name, c.Dir, err)
	}
	m := &Member{etcd: e, trouble: trouble, streams: end}
	if err := errors.Join(c.allocate(), c.sign()); err != nil { // at the first start
		m.Close()
		return nil, fmt.Errorf("etcd: %w", err)
	}
	return m, nil
}

// nameFile is a file in the directory, with the member's name.
const nameFile = "name"

// foreign reports that the data came from another member, as with a copy of its host's directory. Two that run it
// would vote and acknowledge as one, of which the others would believe that it has all that either has.
func (c *Config) foreign() error {
	name, err := os.ReadFile(filepath.Join(c.Dir, nameFile))
	switch {
	case errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR):
		return nil // the directory is new, or of an older version
	case err != nil:
		return err
	case len(name) > 0 && string(name) != c.Name: // none: a crash came between
		return fmt.Errorf("%w, %.100q, as %s says", ErrForeign, name, filepath.Join(c.Dir, nameFile))
	}
	return nil
}

// sign writes the member's name beside its data.
func (c *Config) sign() error {
	path := filepath.Join(c.Dir, nameFile)
	if there, err := os.Stat(path); err == nil && there.Size() > 0 {
		return nil
	}
	if err := os.WriteFile(path, []byte(c.Name), 0o600); !durable.Full(err) { // a full disk ends no member that has its space
		return err
	}
	return nil
}

// asking is how long a member that joins waits for another's connection, and for its answer.
const asking = 2 * time.Second

// lost reports whether the directory is new, and a member that answers says that this one has run before: then it may have
// acknowledged what others lack, and would vote as if it had not. Etcd looks for that only if the cluster is new.
func (c *Config) lost() bool {
	if _, err := os.Stat(filepath.Join(c.Dir, "member", "wal")); !errors.Is(err, fs.ErrNotExist) {
		return false
	}
	rt := &http.Transport{DialContext: (&net.Dialer{Timeout: asking}).DialContext, ResponseHeaderTimeout: asking}
	defer rt.CloseIdleConnections()
	if !c.Files.Plain() {
		info := etcd.Info(c.Files)
		var err error
		if rt.TLSClientConfig, err = info.ClientConfig(); err != nil {
			return false // as the start will say
		}
	}
	own, others := etcd.URL(c.Members[c.Name], c.Files), []string(nil)
	for name, peer := range c.Members {
		if name != c.Name {
			others = append(others, etcd.URL(peer, c.Files))
		}
	}
	cluster, err := etcdserver.GetClusterFromRemotePeers(nil, others, rt)
	return err == nil && slices.ContainsFunc(cluster.Members(), func(m *membership.Member) bool {
		return len(m.ClientURLs) > 0 && slices.Contains(m.PeerURLs, own) // it says those when it has started
	})
}

// allocate gives the member's database, a sparse file, its space. Otherwise the member, and the process with it, ends at its
// next change once the disk is full, and the clients of this host's volumes lose their connections.
func (c *Config) allocate() error {
	f, err := os.OpenFile(filepath.Join(c.Dir, "member", "snap", "db"), os.O_RDWR, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil || info.Size() == 0 {
		return err
	}
	if err := unix.Fallocate(int(f.Fd()), 0, 0, info.Size()); durable.Full(err) {
		return fmt.Errorf("the disk is full: make room for %s, which needs %d bytes: %w", f.Name(), info.Size(), err)
	}
	return nil // not every file system can
}

// endWith ends streams when open ends. A client's watch does not end by itself, and etcd may wait
// for it for seconds when it stops. It ends as Unavailable: at "canceled", which etcd may say, a
// client's watch fails instead of going on at another member.
func endWith(open context.Context) grpc.StreamServerInterceptor {
	return func(srv any, s grpc.ServerStream, _ *grpc.StreamServerInfo, handle grpc.StreamHandler) error {
		ctx, cancel := context.WithCancel(s.Context())
		defer cancel()
		defer context.AfterFunc(open, cancel)()
		err := handle(srv, stream{s, ctx})
		if open.Err() != nil {
			return status.Error(codes.Unavailable, "the member of etcd stops")
		}
		return err
	}
}

// A stream has a context of its own.
type stream struct {
	grpc.ServerStream
	ctx context.Context
}

// Context implements [grpc.ServerStream].
func (s stream) Context() context.Context { return s.ctx }

func (c *Config) check() error {
	switch {
	case c.Members[c.Name] == "":
		return fmt.Errorf("member %q is not among the members of the cluster, %s", c.Name, strings.Join(slices.Sorted(maps.Keys(c.Members)), ", "))
	case c.Dir == "" || c.Client == "" || c.Log == nil:
		return errors.New("a data directory, an address for clients and a logger are needed")
	}
	if !c.Files.Plain() {
		if _, _, err := c.Files.Read(); err != nil {
			return err
		}
	}
	return nil
}

func (c *Config) embed(trouble *atomic.Pointer[error]) *embed.Config {
	at := func(hostPort string) []url.URL {
		scheme, host, _ := strings.Cut(etcd.URL(hostPort, c.Files), "://")
		return []url.URL{{Scheme: scheme, Host: host}}
	}
	cfg := embed.NewConfig()
	cfg.Name, cfg.Dir = c.Name, c.Dir
	cfg.ListenClientUrls, cfg.AdvertiseClientUrls = at(c.Client), at(c.Client)
	cfg.ListenPeerUrls, cfg.AdvertisePeerUrls = at(c.Members[c.Name]), at(c.Members[c.Name])
	var initial []string
	for _, name := range slices.Sorted(maps.Keys(c.Members)) {
		initial = append(initial, name+"="+etcd.URL(c.Members[name], c.Files))
	}
	cfg.InitialCluster, cfg.InitialClusterToken = strings.Join(initial, ","), "mcblock"
	if c.Join {
		cfg.ClusterState = embed.ClusterStateFlagExisting
	}
	if !c.Files.Plain() {
		cfg.ClientTLSInfo, cfg.PeerTLSInfo = etcd.Info(c.Files), etcd.Info(c.Files)
	}
	if c.Election > 0 {
		cfg.TickMs = max(1, uint(c.Election.Milliseconds()/6)) //nolint:gosec // not negative
		cfg.ElectionMs = 6 * cfg.TickMs
	}
	// Records are small and change rarely: no caller reads old revisions.
	cfg.AutoCompactionMode, cfg.AutoCompactionRetention = embed.CompactorModeRevision, "1000"
	cfg.EnableGRPCGateway = false
	cfg.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.New(bridge{c.Log.Handler(), trouble}))
	return cfg
}

// Ready is closed when the member has found a majority.
func (m *Member) Ready() <-chan struct{} { return m.etcd.Server.ReadyNotify() }

// Trouble says why the member is not in its cluster, as far as it knows: ErrOtherCluster, ErrRemoved or ErrReplaced; nil: it
// knows of nothing.
func (m *Member) Trouble() error {
	if err := m.trouble.Load(); err != nil {
		return *err
	}
	return nil
}

// Err sends why the member has stopped by itself, and is closed by Close.
func (m *Member) Err() <-chan error { return m.etcd.Err() }

// handover is how long a leader that stops may take to hand its lead to another member. Where that one stops too, etcd would
// wait for more than five seconds.
const handover = time.Second

// Close stops the member.
func (m *Member) Close() {
	m.once.Do(func() {
		m.streams()
		select {
		case <-m.etcd.Server.ReadyNotify():
		default: // etcd's Close would wait for a majority
			m.etcd.Server.HardStop()
		}
		closeSoon(m.etcd.Close, m.etcd.Server.HardStop)
	})
}

// closeSoon calls closes, which may hand over the lead, and hard if that takes too long.
func closeSoon(closes, hard func()) {
	late := time.AfterFunc(handover, hard)
	defer late.Stop()
	closes()
}
