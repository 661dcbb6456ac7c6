package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	replicav1 "github.com/mcrdma/mcrdma/api/replica/v1"
	"github.com/mcrdma/mcrdma/cmd/internal/cli"
	"github.com/mcrdma/mcrdma/cmd/mcblock/internal/config"
	"github.com/mcrdma/mcrdma/internal/durable"
	"github.com/mcrdma/mcrdma/internal/grpcserver"
	"github.com/mcrdma/mcrdma/internal/identity"
	"github.com/mcrdma/mcrdma/internal/nbd"
	"github.com/mcrdma/mcrdma/internal/strictyaml"
	"github.com/mcrdma/mcrdma/pkg/mcrdma"
	_ "github.com/mcrdma/mcrdma/pkg/qp/ibverbs"  // a device's driver
	_ "github.com/mcrdma/mcrdma/pkg/qp/softroce" // likewise
	"github.com/mcrdma/mcrdma/pkg/replica"
	"github.com/mcrdma/mcrdma/pkg/replica/core"
	"github.com/mcrdma/mcrdma/pkg/replica/osdmap"
	"github.com/mcrdma/mcrdma/pkg/replica/osdmap/embedded"
	"github.com/mcrdma/mcrdma/pkg/replica/osdmap/etcd"
	"github.com/mcrdma/mcrdma/pkg/replica/store"
)

const serveHelp = `Runs this host's copies of volumes, and exports these volumes to NBD clients by name:
nbd://127.0.0.1:10809/vol. A client may use any host of the volume: a host that is not
the primary forwards requests, even when the primary changes.

The host's cmd-daemon must run. If the configuration lists this host among the
members of etcd, its member runs in this process, too.

SIGINT, SIGTERM and SIGHUP end it: other acting hosts become the primaries of its volumes, and
requests in flight are answered. The volumes go on at the other hosts, if enough of them
are left.

When it serves clients, it prints a line that begins with "ready" to standard output,
and notifies systemd. With "metrics", it serves /metrics for Prometheus, /healthz, and
/readyz, which answers 503 until this host's volumes are open.`

// parting is how long requests in flight may take when the host ends.
const parting = 5 * time.Second

func serveCommand() *cobra.Command {
	var file, relay string
	var check, fast, child bool
	cmd := &cobra.Command{
		Use:     "serve [flags]",
		Short:   "Run this host's copies of volumes, and export them by NBD",
		Long:    serveHelp,
		Example: "  mcblock serve --config /etc/mcrdma/mcblock.yaml\n  mcblock serve --config lab/h1/mcblock.yaml --check",
		Args:    cli.NoArgs,
	}
	addConfigFlag(cmd, &file)
	f := cmd.Flags()
	f.BoolVar(&check, "check", false, "only check the configuration, its certificate, its addresses, that data can be written, and that etcd has no other host of its name or number")
	f.BoolVar(&fast, "fast", false, "shorter timeouts for dead primaries, for hosts without long pauses; must be the same on all hosts")
	f.BoolVar(&child, "child", false, "end when standard input does")
	_ = f.MarkHidden("child") // it is there
	f.StringVar(&relay, "relay", "", "hosts relay, by this algorithm, also where switches could copy")
	_ = f.MarkHidden("relay") // likewise: for comparisons
	logger := cli.AddLogFlags(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		log, err := logger(cmd.ErrOrStderr())
		if err != nil {
			return err
		}
		cfg, err := loadConfig(file)
		if err != nil {
			return err
		}
		if err := checkCertificate(cfg); err != nil {
			return fmt.Errorf("%s: %w", configFile(file), err)
		}
		if few := fewMembers(cfg); few != "" {
			log.Warn(few)
		}
		if check {
			if err := errors.Join(files(cfg).Exposed(), writable(cfg.Data), addresses(cfg, runs(cfg.Data))); err != nil {
				return err
			}
			note, err := unique(cmd.Context(), cfg)
			if err == nil {
				_, err = fmt.Fprintf(cmd.OutOrStdout(), "the configuration of %s is right%s\n", cfg.Name, note)
			}
			return err
		}
		ctx, stop := cli.Interruptible(cmd.Context())
		defer stop()
		if child {
			go func() {
				_, _ = io.Copy(io.Discard, os.Stdin)
				stop()
			}()
		}
		s := &server{cfg: cfg, log: log}
		if fast {
			s.options = replica.Fast()
		}
		if relay != "" {
			s.options.Mode, s.options.Algorithm = mcrdma.ModeOff, relay
		}
		return s.run(ctx, cmd.OutOrStdout())
	}
	return cmd
}

// A server is a host that serves.
type server struct {
	cfg     *config.Config
	log     *slog.Logger
	options replica.Options
	client  *mcrdma.Client // nil: run connects to the daemon
	daemon  *cli.Daemon    // nil: client was given
	ca      []byte         // the file of the CA at the start
	member  *embedded.Member
	silent  atomic.Pointer[error] // why the daemon does not answer; nil: it does

	closers []func() error // in the order of opening
}

// opened registers a resource to be closed at the end.
func (s *server) opened(close func() error) { s.closers = append(s.closers, close) }

// ending registers what to do at the end, which does not fail.
func (s *server) ending(end func()) {
	s.opened(func() error {
		end()
		return nil
	})
}

// run serves until ctx ends.
func (s *server) run(ctx context.Context, stdout io.Writer) (err error) {
	defer func() {
		if ctx.Err() != nil {
			err = nil // it was asked to end, perhaps before it served
		}
		for _, c := range slices.Backward(s.closers) {
			err = errors.Join(err, c())
		}
	}()
	if err := files(s.cfg).Exposed(); err != nil {
		s.log.Warn("the key is not secret", "error", err)
	}
	if err := s.lock(); err != nil {
		return err
	}
	if err := addresses(s.cfg, false); err != nil {
		return err
	}
	s.ca, _ = os.ReadFile(s.cfg.TLS.CA) // without TLS there is none; other errors show below
	failed := make(chan error, 3)
	manager, err := s.manager(failed)
	if err != nil {
		return err
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	own := prometheus.WrapRegistererWithPrefix(metricsPrefix, registry)
	host, err := s.host(ctx, manager, own)
	if err != nil {
		return err
	}
	waiting, stopWaiting := context.WithCancel(ctx)
	defer stopWaiting()
	go waitFor(waiting, s.log, func() bool { return host.Health().Known && s.joined() },
		func(ctx context.Context) string { return s.etcdWaits(ctx, host.Health().Unknown) })
	if s.daemon != nil {
		go s.stepAside(waiting, manager, askEvery, func(ctx context.Context) error {
			_, err := s.daemon.GetDaemon(ctx, &mcrdmav1.GetDaemonRequest{})
			return err
		})
	}
	at, err := s.export(host, own, failed)
	if err != nil {
		return err
	}
	stop, err := grpcserver.ServeMetrics(s.cfg.Metrics, registry, host.Ready, func(err error) { failed <- err })
	if err != nil {
		return err
	}
	s.ending(stop)
	s.ending(func() { s.handOver(manager, func(*osdmap.VolumeState) bool { return true }) })
	cli.NotifySystemd("READY=1")
	s.log.Info("ready", "host", s.cfg.Name, "nbd", at, "peers", s.cfg.Listen)
	fmt.Fprintf(stdout, "ready: host %s, volumes at nbd://%s/NAME\n", s.cfg.Name, at)
	select {
	case <-ctx.Done():
	case err = <-failed:
	}
	cli.NotifySystemd("STOPPING=1")
	return err
}

// lock prevents other processes from using the data directory.
func (s *server) lock() error {
	err := durable.MkdirAll(filepath.Dir(s.cfg.Data))
	if err == nil {
		var f *os.File
		if f, err = durable.Dir(s.cfg.Data); err == nil {
			s.opened(f.Close)
			return nil
		}
	}
	if errors.Is(err, durable.ErrLocked) {
		return fmt.Errorf("data directory %s: %w: end that one, or give this host another directory (data)", s.cfg.Data, err)
	}
	return fmt.Errorf("data directory: %w", err)
}

// manager starts etcd if it runs here, and connects to it.
func (s *server) manager(failed chan<- error) (*osdmap.Manager, error) {
	if m := s.cfg.Member(); m != nil {
		members := map[string]string{}
		for _, x := range s.cfg.Etcd.Members {
			members[x.Name] = x.Peer
		}
		member, err := embedded.Start(embedded.Config{Name: m.Name, Dir: filepath.Join(s.cfg.Data, "etcd"), Client: m.Client, Members: members,
			Join: s.cfg.Etcd.Join, Election: s.cfg.Etcd.Election, Files: files(s.cfg), Log: s.log})
		if text := memberTrouble(s.cfg, err); text != "" {
			return nil, fmt.Errorf("etcd: %s", text)
		}
		if err != nil {
			return nil, err
		}
		s.ending(member.Close)
		s.member = member
		go func() {
			if err, ok := <-member.Err(); ok {
				if text := memberTrouble(s.cfg, member.Trouble()); text != "" {
					err = errors.New(text)
				}
				failed <- fmt.Errorf("etcd: %w", err)
			}
		}()
	}
	store, err := etcd.Dial(etcd.Config{Endpoints: s.cfg.EtcdClients(), Files: files(s.cfg)})
	if err != nil {
		return nil, err
	}
	s.ending(func() { _ = store.Close() }) // it reports that it is being closed
	return osdmap.New(store, osdmap.Options{}), nil
}

// host opens the copies of this host.
func (s *server) host(ctx context.Context, m *osdmap.Manager, registry prometheus.Registerer) (*replica.Host, error) {
	if s.client == nil {
		client, err := mcrdma.Dial(ctx, mcrdma.Options{Socket: s.cfg.Socket, Logger: s.log})
		if err != nil {
			return nil, fmt.Errorf("the socket of this host's configuration, %s: %w", s.cfg.Socket, err)
		}
		s.opened(client.Close)
		if s.daemon, err = cli.DialDaemon(s.cfg.Socket, "mcblock", askEvery); err != nil {
			return nil, err
		}
		s.ending(s.daemon.Close)
		s.client = client
	}
	l, err := net.Listen("tcp", s.cfg.Listen)
	if err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	dir := filepath.Join(s.cfg.Data, "volumes")
	if err := durable.MkdirAll(dir); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	self := osdmap.Host{ID: core.ID(s.cfg.ID), Name: s.cfg.Name, Peer: s.cfg.Listen, NBD: s.cfg.NBD, Device: s.cfg.Address.String()}
	tell := &statuses{cfg: s.cfg, largest: store.Largest(dir), ca: s.ca, silent: &s.silent}
	h, err := replica.Open(replica.Config{Self: self, Client: s.client, Manager: m, Dir: dir, Listener: l, Files: files(s.cfg), Options: s.options, Log: s.log,
		Registry: registry, Register: func(r grpc.ServiceRegistrar) { replicav1.RegisterStatusesServer(r, tell) }})
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	s.opened(h.Close)
	tell.host.Store(h)
	return h, nil
}

// export serves the volumes to NBD clients, and returns the address.
func (s *server) export(h *replica.Host, registry prometheus.Registerer, failed chan<- error) (net.Addr, error) {
	x := exports{h, newTraffic(promauto.With(registry))}
	c := nbd.Config{List: x.list, Open: x.open, Log: s.log}
	if f := files(s.cfg); !f.Plain() {
		var err error
		if c.TLS, err = (identity.Files{Cert: f.Cert, Key: f.Key, CA: s.cfg.TLS.Clients}).ServerConfig(); err != nil {
			return nil, fmt.Errorf("nbd: %w", err)
		}
		name, _, _ := net.SplitHostPort(s.cfg.NBD)
		c.RequireTLS = !strictyaml.Loopback(name)
	}
	server, err := nbd.New(c)
	if err != nil {
		return nil, fmt.Errorf("nbd: %w", err)
	}
	registry.MustRegister(&collector{server: s, host: h, traffic: x.traffic, stats: server.Stats})
	l, err := net.Listen("tcp", s.cfg.NBD)
	if err != nil {
		return nil, fmt.Errorf("nbd: %w; name another address in the configuration", err)
	}
	go func() {
		if err := server.Serve(l); err != nil {
			failed <- fmt.Errorf("nbd: %w", err)
		}
	}()
	s.ending(func() {
		ctx, cancel := context.WithTimeout(context.Background(), parting)
		defer cancel()
		if err := server.Shutdown(ctx); err != nil {
			s.log.Warn("clients had requests under way", "error", err)
		}
	})
	return l.Addr(), nil
}
