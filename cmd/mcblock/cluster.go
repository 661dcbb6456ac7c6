package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/mcrdma/mcrdma/cmd/internal/cli"
	"github.com/mcrdma/mcrdma/cmd/mcblock/internal/config"
	"github.com/mcrdma/mcrdma/internal/identity"
	"github.com/mcrdma/mcrdma/pkg/replica/core"
	"github.com/mcrdma/mcrdma/pkg/replica/osdmap"
	"github.com/mcrdma/mcrdma/pkg/replica/osdmap/etcd"
)

// configEnv is the environment variable for --config.
const configEnv = "MCBLOCK_CONFIG"

func addConfigFlag(cmd *cobra.Command, file *string) {
	cmd.Flags().StringVarP(file, "config", "c", "", "this host's configuration, a YAML `file`; default: $"+configEnv+", else "+config.DefaultFile)
	cli.CompleteFile(cmd, "config", "yaml", "yml")
}

// loadConfig reads the configuration of the flag or the environment.
func loadConfig(file string) (*config.Config, error) {
	cfg, err := config.Load(configFile(file))
	if errors.Is(err, os.ErrNotExist) {
		err = fmt.Errorf("%w: name this host's by --config or %s; \"mcblock init\" makes those of a lab", err, configEnv)
	}
	return cfg, err
}

func configFile(flag string) string { return cmp.Or(flag, os.Getenv(configEnv), config.DefaultFile) }

func files(c *config.Config) identity.Files {
	return identity.Files{Cert: c.TLS.Cert, Key: c.TLS.Key, CA: c.TLS.CA}
}

// clusterFlags say where the configuration of the volumes is, and how long a call may take.
type clusterFlags struct {
	config  string
	timeout time.Duration
}

func addClusterFlags(cmd *cobra.Command) *clusterFlags {
	f := &clusterFlags{}
	addConfigFlag(cmd, &f.config)
	cmd.Flags().DurationVar(&f.timeout, "timeout", 5*time.Second, "`time` that etcd has for each answer")
	return f
}

// A cluster is the configuration store, and the manager above it.
type cluster struct {
	*osdmap.Manager
	store   *etcd.Store
	cfg     *config.Config
	timeout time.Duration // for each answer
}

// members asks etcd for its members, and each how it is.
func (c *cluster) members(ctx context.Context) ([]etcd.Member, error) {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	return c.store.Members(ctx, 2*c.timeout/5)
}

// patient is the same with more time for each answer.
func (c *cluster) patient() *cluster {
	const more = 6 // connecting takes several times as long as a request
	limit := more * c.timeout
	return &cluster{osdmap.New(c.store, osdmap.Options{Timeout: limit}), c.store, c.cfg, limit}
}

// with connects to the store and calls a function.
func (f *clusterFlags) with(ctx context.Context, do func(context.Context, *cluster) error) error {
	if f.timeout <= 0 {
		return cli.Usagef("--timeout %v: it is more than 0, such as 5s", f.timeout)
	}
	cfg, err := loadConfig(f.config)
	if err != nil {
		return err
	}
	return f.connect(ctx, cfg, do)
}

func (f *clusterFlags) connect(ctx context.Context, cfg *config.Config, do func(context.Context, *cluster) error) error {
	store, err := etcd.Dial(etcd.Config{Endpoints: cfg.EtcdClients(), Files: files(cfg)})
	if err != nil {
		return err
	}
	err = do(ctx, &cluster{osdmap.New(store, osdmap.Options{Timeout: f.timeout}), store, cfg, f.timeout})
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		err = fmt.Errorf("%w; if it is only slow (mcblock doctor): --timeout 1m", err)
	}
	if closing := store.Close(); err == nil && closing != nil && ctx.Err() == nil {
		err = fmt.Errorf("etcd: %w", closing)
	}
	return err
}

// asking completes a command without arguments, which shows what it finds in the store.
func asking(cmd *cobra.Command, show func(ctx context.Context, c *cluster, cmd *cobra.Command, out *cli.Output) error) *cobra.Command {
	out, flags := cli.AddOutputFlag(cmd), addClusterFlags(cmd)
	cmd.Args = cli.NoArgs
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return flags.with(cmd.Context(), func(ctx context.Context, c *cluster) error { return show(ctx, c, cmd, out) })
	}
	return cmd
}

// onVolume connects to the store and calls a function with a volume.
func (f *clusterFlags) onVolume(ctx context.Context, name string, do func(context.Context, *cluster, *osdmap.State, osdmap.VolumeState) error) error {
	return f.with(ctx, func(ctx context.Context, c *cluster) error {
		s, err := c.Read(ctx)
		if err != nil {
			return err
		}
		v, err := named(&s, name)
		if err != nil {
			return err
		}
		return do(ctx, c, &s, v)
	})
}

// named finds a volume by its name.
func named(s *osdmap.State, name string) (osdmap.VolumeState, error) {
	i := slices.IndexFunc(s.Volumes, func(v osdmap.VolumeState) bool { return v.Volume.Name == name })
	if i >= 0 {
		return s.Volumes[i], nil
	}
	all := each(s.Volumes, func(v osdmap.VolumeState) string { return v.Volume.Name })
	slices.Sort(all)
	return osdmap.VolumeState{}, fmt.Errorf("there is no volume %q; the volumes are: %s", name, cmp.Or(strings.Join(all, ", "), "none"))
}

func hostNames(hosts []osdmap.Host) []string {
	return each(hosts, func(h osdmap.Host) string { return h.Name })
}

// hostNamed finds a host by its name.
func hostNamed(s *osdmap.State, name string) (core.ID, error) {
	i := slices.IndexFunc(s.Hosts, func(h osdmap.Host) bool { return h.Name == name })
	if i < 0 {
		return 0, fmt.Errorf("there is no host %q; there are %s: a host is known when \"mcblock serve\" has run on it", name, cli.All(hostNames(s.Hosts)))
	}
	return s.Hosts[i].ID, nil
}
