package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/mcrdma/mcrdma/cmd/internal/cli"
	"github.com/mcrdma/mcrdma/internal/connmgr"
	"github.com/mcrdma/mcrdma/internal/connmgr/config"
	"github.com/mcrdma/mcrdma/internal/grpcserver"
	"github.com/mcrdma/mcrdma/internal/hostload"
	"github.com/mcrdma/mcrdma/internal/identity"
	"github.com/mcrdma/mcrdma/internal/store"
	agentconfig "github.com/mcrdma/mcrdma/internal/switchagent/config"
	"github.com/mcrdma/mcrdma/pkg/qp"
)

const runHelp = `Runs the daemon of this host. Applications connect to it by a unix socket, the
daemons of other hosts by gRPC with certificates. It installs groups through the
agent of the host's top-of-rack switch; where switches cannot copy, hosts relay.

The configuration is a YAML file; --check validates it. The state file has
everything that must survive a restart.

SIGINT, SIGTERM and SIGHUP end the daemon. Groups go on without it, and the next daemon
resumes them if it starts within beat.grace of the configuration. With --on-stop
close it first ends them everywhere: use it to take a host out of service.

With "direct", the agent of the host's switch runs inside the daemon.

When the daemon serves applications and other daemons, it prints a line that begins
with "ready" to standard output, and notifies systemd. With "metrics", it serves
/metrics for Prometheus, /healthz, and /readyz, which answers 503 while the daemon
starts or stops.`

// closeTimeout is how long closing groups may take at the end.
const closeTimeout = 10 * time.Second

// runOptions are the flags of run.
type runOptions struct {
	file   string
	check  bool
	onStop string
}

func runCommand() *cobra.Command {
	var o runOptions
	var logger func(io.Writer) (*slog.Logger, error)
	cmd := &cobra.Command{
		Use:     "run --config FILE",
		Short:   "Run the daemon of this host",
		Long:    runHelp,
		Example: "  cmd-daemon run --config /etc/mcrdma/daemon.yaml\n  cmd-daemon run --config lab/h1/daemon.yaml --check",
		Args:    cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.file == "" {
				return cli.Usagef("a configuration is needed: --config FILE; \"cmd-daemon init\" makes one")
			}
			if o.onStop != "keep" && o.onStop != "close" {
				return cli.Usagef("--on-stop %q is neither keep nor close", o.onStop)
			}
			log, err := logger(cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			s, err := loadSetup(o.file)
			if err != nil {
				return err
			}
			if o.check {
				if err := s.check(); err != nil {
					return err
				}
				if text := absent(s.cfg, infiniband); text != "" {
					fmt.Fprintf(cmd.ErrOrStderr(), "note: %s\n", text)
				}
				_, err := fmt.Fprintln(cmd.OutOrStdout(), s)
				return err
			}
			return s.run(cmd.Context(), log, o.onStop == "close", cmd.OutOrStdout())
		},
	}
	f := cmd.Flags()
	f.StringVarP(&o.file, "config", "c", "", "the daemon's configuration, a YAML `file`")
	f.BoolVar(&o.check, "check", false, "only check the configuration, and what it names: device, socket, state, certificates")
	logger = cli.AddLogFlags(cmd)
	f.StringVar(&o.onStop, "on-stop", "keep", "what to do with this host's groups when the daemon ends: `keep` them for the next one, or close")
	f.SetNormalizeFunc(func(_ *pflag.FlagSet, name string) pflag.NormalizedName {
		if name == "json-logs" {
			name = "log-json"
		}
		return pflag.NormalizedName(name)
	})
	cli.CompleteFile(cmd, "config", "yaml", "yml")
	cli.CompleteFlag(cmd, "on-stop", func() []string { return []string{"keep", "close"} })
	return cmd
}

// A setup is the content of the configuration files.
type setup struct {
	file   string
	cfg    *config.Config
	direct *agentconfig.Config // nil: the switch's agent runs elsewhere, or there is none
}

// loadSetup reads the configuration, and its files, to report errors in any of them before anything
// starts.
func loadSetup(file string) (*setup, error) {
	s, err := loadConfigured(file)
	if err != nil {
		return nil, err
	}
	if err := checkCertificate(s.cfg, time.Now()); err != nil {
		return nil, fmt.Errorf("%s: tls: %w", file, err)
	}
	return s, nil
}

// loadConfigured reads the configuration, and that of the agent in it, which names the switch.
func loadConfigured(file string) (*setup, error) {
	cfg, err := config.Load(file)
	if err != nil {
		return nil, err
	}
	s := &setup{file: file, cfg: cfg}
	if cfg.Direct != "" {
		if s.direct, err = loadDirect(cfg); err != nil {
			return nil, fmt.Errorf("%s: direct: %w", file, err)
		}
	}
	return s, nil
}

// check finds what the files alone do not show: facts about this host that make the configuration
// impossible, or let others act as the host.
func (s *setup) check() error {
	var errs []error
	add := func(field string, err error) {
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %s: %w", s.file, field, err))
		}
	}
	if driver, _, _ := strings.Cut(s.cfg.Device, ":"); !slices.Contains(qp.Drivers(), driver) {
		add("device", fmt.Errorf("%q: there is no driver %q, but %s", s.cfg.Device, driver, cli.Enumeration(qp.Drivers())))
	} else {
		add("device", qp.Check(s.cfg.Device, s.cfg.Peers()...))
	}
	if i, err := os.Stat(s.cfg.Socket); err == nil && i.Mode()&os.ModeSocket == 0 {
		add("socket", fmt.Errorf("%s is there and is not a socket: name another file", s.cfg.Socket))
	}
	if i, err := os.Stat(filepath.Dir(s.cfg.Socket)); err == nil && !i.IsDir() {
		add("socket", fmt.Errorf("%s is not a directory: name another file", filepath.Dir(s.cfg.Socket)))
	} else if errors.Is(err, syscall.ENOTDIR) {
		add("socket", err)
	}
	add("state", store.Check(s.cfg.State))
	files := identity.Files(s.cfg.TLS)
	add("tls", files.Exposed())
	own := identity.Identity{Role: identity.Host, Name: s.cfg.Name, Addrs: []netip.Addr{s.cfg.Address}}
	if err := files.Accepted(own); !errors.Is(err, identity.ErrSoon) {
		add("tls", err)
	}
	return errors.Join(errs...)
}

// infiniband is where the kernel lists RDMA devices.
const infiniband = "/sys/class/infiniband"

// absent returns why a host lacks the device of its configuration, if it does, according to this
// kernel with its devices in list. It is not an error, because devices may appear after the daemon
// has started at boot.
func absent(cfg *config.Config, list string) string {
	driver, rest, _ := strings.Cut(cfg.Device, ":")
	switch {
	case driver == "ibverbs":
		name, _, _ := strings.Cut(rest, "?")
		devices, _ := os.ReadDir(list) // without RDMA devices, it does not exist
		names := make([]string, 0, len(devices))
		for _, d := range devices {
			names = append(names, d.Name())
		}
		if !slices.Contains(names, name) {
			return fmt.Sprintf("device: this host has no RDMA device %q now, %s (\"rdma link\" lists them)", name, cli.Either(len(names) > 0, "but "+strings.Join(names, ", "), "nor any other"))
		}
	case driver == "softroce" && rest == cfg.Address.String():
		c, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(cfg.Address, 0)))
		if errors.Is(err, syscall.EADDRNOTAVAIL) {
			return fmt.Sprintf("device: no interface of this host has the address %v now (\"ip address\" lists them)", cfg.Address)
		} else if err == nil {
			_ = c.Close()
		}
	}
	return ""
}

// checkCertificate reports whether peers will accept this host under the name in its configuration.
func checkCertificate(cfg *config.Config, now time.Time) error {
	own, until, err := identity.Files(cfg.TLS).Read()
	switch {
	case err != nil || own.Role == 0: // plain text
		return err
	case !own.Is(identity.Host) || own.Name != cfg.Name || !own.Owns(cfg.Address):
		return fmt.Errorf("%s is the certificate of %v, and this host is host:%s %v: issue one for it, or correct name and address",
			cfg.TLS.Cert, own, cfg.Name, cfg.Address)
	case now.After(until):
		return fmt.Errorf("%s was valid until %s: renew it (cmd-daemon init --renew for a lab's)", cfg.TLS.Cert, until.Format(time.DateTime))
	}
	return nil
}

// String returns it as one line of text.
func (s *setup) String() string {
	text := fmt.Sprintf("%s is right: host %s at %v, %s", s.file, s.cfg.Name, s.cfg.Address, cli.Plural(len(s.cfg.Hosts), "other host"))
	switch {
	case s.direct != nil:
		text += ", switch " + s.direct.Name + ", whose agent runs here"
	case s.cfg.Switch.Agent != "":
		text += ", switch " + s.cfg.Switch.Name
	default:
		text += ", no switch"
	}
	return text + cli.Either(identity.Files(s.cfg.TLS).Plain(), ", plain text", ", TLS")
}

// run runs the daemon until ctx ends or a signal arrives.
func (s *setup) run(ctx context.Context, log *slog.Logger, closeGroups bool, stdout io.Writer) (err error) {
	ctx, stop := cli.Interruptible(ctx)
	defer stop()
	// Everything here ends after the groups have been closed, by its own context.
	life, end := context.WithCancelCause(context.WithoutCancel(ctx))
	wait := func() {}
	defer func() {
		end(nil)
		wait()
		if cause := causeOf(life); cause != nil && !errors.Is(err, cause) {
			err = errors.Join(cause, err)
		}
	}()
	if err := makeDirectories(s.cfg); err != nil {
		return err
	}
	if err := identity.Files(s.cfg.TLS).Exposed(); err != nil {
		log.Warn("the key is not secret", "error", err)
	}
	if s.direct != nil {
		if s.cfg.Switch.Agent, wait, err = startDirect(life, end, s.direct, log); err != nil {
			return err
		}
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	m, err := connmgr.New(ctx, s.cfg, connmgr.Options{Logger: log, Version: cli.Version(), Metrics: registry, Busy: new(hostload.Meter).Busy})
	if err != nil {
		return err
	}
	ran := make(chan error, 1)
	go func() { ran <- m.Run(life) }()
	stopMetrics, err := grpcserver.ServeMetrics(s.cfg.Metrics, registry, m.Readiness, end)
	if err != nil {
		end(nil)
		return errors.Join(err, <-ran)
	}
	defer stopMetrics()
	select {
	case err := <-ran:
		return err
	case <-ctx.Done():
		end(nil)
		return <-ran
	case <-m.Ready():
	}
	cli.CollectSeldom()
	cli.NotifySystemd("READY=1")
	log.Info("ready", "host", s.cfg.Name, "address", m.Addr().String(), "applications", m.Socket())
	fmt.Fprintf(stdout, "ready: daemon of host %s at %v, applications at %s\n", s.cfg.Name, m.Addr(), m.Socket())
	select {
	case err := <-ran:
		return err
	case <-life.Done():
	case <-ctx.Done():
		stop() // another signal ends it at once
	}
	cli.NotifySystemd("STOPPING=1")
	if closeGroups && life.Err() == nil {
		late, cancel := context.WithTimeout(life, closeTimeout)
		if err := m.CloseAll(late); err != nil {
			log.Warn("some groups could not be closed everywhere; leases end the rest", "error", err)
		}
		cancel()
	}
	end(nil)
	return <-ran
}

// causeOf returns the error that ended ctx; nil if there is none.
func causeOf(ctx context.Context) error {
	if err := context.Cause(ctx); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// makeDirectories makes the directories of socket and state if systemd has not made them.
func makeDirectories(cfg *config.Config) error {
	for _, d := range []struct {
		file, what string
		mode       os.FileMode
	}{{cfg.Socket, "socket", 0o755}, {cfg.State, "state", 0o700}} {
		if err := os.MkdirAll(filepath.Dir(d.file), d.mode); err != nil {
			return fmt.Errorf("%s: %w; make the directory, or name a file elsewhere in the configuration", d.what, err)
		}
	}
	return nil
}
