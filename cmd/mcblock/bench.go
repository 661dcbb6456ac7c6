package main

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/mcrdma/mcrdma/cmd/internal/cli"
	"github.com/mcrdma/mcrdma/cmd/mcblock/internal/config"
	"github.com/mcrdma/mcrdma/internal/cmdline"
	"github.com/mcrdma/mcrdma/internal/identity"
	"github.com/mcrdma/mcrdma/internal/nbd"
	"github.com/mcrdma/mcrdma/internal/strictyaml"
	"github.com/mcrdma/mcrdma/pkg/replica/core"
	"github.com/mcrdma/mcrdma/pkg/replica/osdmap"
	"github.com/mcrdma/mcrdma/pkg/replica/osdmap/etcd"
)

const benchHelp = `Measures latency and bandwidth of a volume as clients see them, by NBD at this host
(or, if it has no copy, at a host that has).

An existing VOLUME is only read; with --write it is also written to: ITS DATA IS LOST.
Without a VOLUME, a scratch volume of --size bytes is created, and deleted at the end,
even after Ctrl-C: then the results so far are shown, and the exit code is 130.

The workloads are fio's: read and write access the volume sequentially, 1 MiB at a time
and 8 at once; randread and randwrite access 4 KiB, one after another. --bs, --iodepth
and --fsync change that for all workloads.

The columns are perftest's, with times in microseconds, and MiB/s and IOPS as fio counts
them. With --fsync, flushes count in IOPS and bandwidth, not in the times of writes.

The JSON is a list of workloads, with the options rw, bs, iodepth and fsync; total_ios,
flushes, runtime (seconds), bw_bytes (per second) and iops; and t_min, t_typical, t_avg,
t_99, t_99.9 and t_max, in microseconds.`

// mostInFlight are the bytes that requests may have in flight: their buffers are all in memory.
const mostInFlight = 1 << 30

// benchOptions are the flags of bench.
type benchOptions struct {
	workloads        []string
	block, depth     int
	size, fsync      int
	runtime          time.Duration
	write, encrypted bool
	hosts            []string
	scratch          bool
}

func benchCommand() *cobra.Command {
	o := benchOptions{size: 256 << 20, runtime: 5 * time.Second}
	cmd := &cobra.Command{
		Use:     "bench [VOLUME] [flags]",
		Short:   "Measure latency and bandwidth of a volume",
		Long:    benchHelp,
		Example: "  mcblock bench\n  mcblock bench vol --rw randread --iodepth 16\n  mcblock bench --rw randwrite --fsync 1 -o json",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 1 {
				return cli.Usagef("unexpected argument %q: name one volume, or none for a scratch volume", args[1])
			}
			return nil
		},
	}
	f, out, flags := cmd.Flags(), cli.AddOutputFlag(cmd), addClusterFlags(cmd)
	f.StringSliceVar(&o.workloads, "rw", nil, "`workloads`, with commas: write, randwrite, read, randread; default: all that are allowed, in this order")
	f.Var((*cmdline.Size)(&o.block), "bs", "`bytes` of each request; default: 1M, or 4K for random ones")
	f.IntVar(&o.depth, "iodepth", 0, "`requests` in flight; default: 8, or 1 for random ones")
	f.DurationVar(&o.runtime, "runtime", o.runtime, "`time` for each workload")
	f.IntVar(&o.fsync, "fsync", 0, "flush after this many `writes`; default: never")
	f.Var((*cmdline.Size)(&o.size), "size", "`bytes` of the scratch volume")
	f.StringSliceVar(&o.hosts, "hosts", nil, "`names` of the hosts of the scratch volume, as for \"volume create\"")
	f.BoolVar(&o.write, "write", false, "write to VOLUME: its data is lost")
	f.BoolVar(&o.encrypted, "tls", false, "use TLS at a loopback address too, with this host's certificate")
	cli.CompleteFlag(cmd, "rw", func() []string { return slices.Clone(workloads) })
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		o.scratch = len(args) == 0
		if err := o.complete(); err != nil {
			return err
		}
		ctx, stop := cli.Interruptible(cmd.Context())
		defer stop()
		return flags.with(ctx, func(ctx context.Context, c *cluster) error {
			name := ""
			if !o.scratch {
				name = args[0]
			}
			results, err := o.run(ctx, c, name, cmd.ErrOrStderr())
			if errors.Is(err, cmdline.ErrInterrupted) && len(results) > 0 {
				err = fmt.Errorf("%w: the last line is of what was measured until then", err)
			}
			if len(results) > 0 {
				err = cmp.Or(writeBench(cmd.OutOrStdout(), out, results), err)
			}
			return err
		})
	}
	return cmd
}

// complete checks the flags. Errors are usage errors.
func (o *benchOptions) complete() error {
	may := o.scratch || o.write
	if len(o.workloads) == 0 {
		o.workloads = slices.DeleteFunc(slices.Clone(workloads), func(w string) bool { return writes(w) && !may })
	}
	for _, w := range o.workloads {
		switch {
		case !slices.Contains(workloads, w):
			return cli.Usagef("--rw %q is none of %s", w, cli.Enumeration(workloads))
		case writes(w) && !may:
			return cli.Usagef("--rw %s overwrites the volume's data: allow that with --write, or omit VOLUME for a scratch volume", w)
		}
	}
	switch {
	case o.scratch && o.write:
		return cli.Usagef("--write is for a VOLUME: a scratch volume is written to in any case")
	case o.block < 0 || o.block > nbd.MaxPayload || o.depth < 0 || o.depth > 1024 || o.fsync < 0:
		return cli.Usagef("--bs %d, --iodepth %d, --fsync %d: want up to 32M, up to 1024, and no negative number", o.block, o.depth, o.fsync)
	case max(o.block, 4<<10)*o.depth > mostInFlight:
		return cli.Usagef("--bs %d with --iodepth %d: %d bytes would be in flight, and in this host's memory: want up to %d", o.block, o.depth, o.block*o.depth, mostInFlight)
	case o.runtime <= 0:
		return cli.Usagef("--runtime %v: it is more than 0, such as 5s", o.runtime)
	}
	return nil
}

// run measures all workloads, on a scratch volume if there is no name. After an error, it also
// returns the results so far.
func (o *benchOptions) run(ctx context.Context, c *cluster, name string, progress io.Writer) (results []benchResult, err error) {
	undo := func() error { return nil }
	defer func() {
		if err != nil && ctx.Err() != nil {
			err = cmdline.ErrInterrupted
		}
		err = errors.Join(err, undo())
	}()
	s, err := c.Read(ctx)
	if err != nil {
		return nil, err
	}
	var v osdmap.Volume
	if name != "" {
		found, err := named(&s, name)
		if err != nil {
			return nil, err
		}
		v = found.Volume
	} else {
		if v, undo, err = o.makeScratch(ctx, c, &s); err != nil {
			return nil, err
		}
	}
	d, err := o.connect(ctx, c, &s, v)
	if err != nil {
		return nil, err
	}
	defer func() { _ = d.Close() }()
	if o.scratch { // the first write also waits until its hosts have formed a group
		if err := d.WriteAt(ctx, make([]byte, v.BlockSize), 0, true); err != nil {
			return nil, err
		}
	}
	p := cli.NewProgress(progress)
	defer p.Done()
	for _, w := range o.workloads {
		p.Say(func() string { return fmt.Sprintf("%s, %v", w, o.runtime) })
		r, err := o.measure(ctx, d, w)
		if err == nil || ctx.Err() != nil && r.Iterations > 0 {
			results = append(results, r)
		}
		if err != nil {
			return results, err
		}
	}
	return results, nil
}

// makeScratch creates a volume that undo deletes.
func (o *benchOptions) makeScratch(ctx context.Context, c *cluster, s *osdmap.State) (v osdmap.Volume, undo func() error, err error) {
	create := createOptions{size: o.size, block: 4096, hosts: o.hosts,
		allow: []string{osdmap.Loopback, fmt.Sprintf("%v:%s", identity.Host, c.cfg.Name)}}
	none := func() error { return nil }
	v, minSize, err := create.volume(s, fmt.Sprintf("bench-%016x", newID()), nil)
	if err != nil {
		return v, none, err
	}
	undo = func() error {
		late, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		if err := c.Delete(late, v.ID); err != nil {
			return fmt.Errorf("the scratch volume is left; \"mcblock volume delete %s --yes\" removes it: %w", v.Name, err)
		}
		return nil
	}
	return v, undo, c.Create(ctx, v, osdmap.FirstMap(v, minSize)) // after an error it may have been created anyway
}

// reach returns where this host reaches a volume by NBD, and the address that the server's certificate has.
func reach(cfg *config.Config, s *osdmap.State, v osdmap.Volume) (at, server string, err error) {
	if slices.Contains(v.Hosts, core.ID(cfg.ID)) {
		return cfg.NBD, cfg.Address.String(), nil
	}
	for _, id := range v.Hosts {
		h := s.Host(id)
		if h == nil {
			continue
		}
		name, _, _ := net.SplitHostPort(h.NBD)
		if !strictyaml.Loopback(name) {
			return h.NBD, h.Device, nil
		}
		if at == "" && h.NBD != cfg.NBD { // hosts of a lab are on one machine
			at, server = h.NBD, h.Device
		}
	}
	if at == "" {
		return "", "", fmt.Errorf("this host has no copy of volume %s, and those that have serve clients on loopback only: use one of %s", v.Name, strings.Join(s.HostNames(v.Hosts), ", "))
	}
	return at, server, nil
}

// opening is how long a host may take to open a new volume; it lets clients wait for it.
const opening = 30 * time.Second

// connect opens the volume as an NBD client.
func (o *benchOptions) connect(ctx context.Context, c *cluster, s *osdmap.State, v osdmap.Volume) (*nbd.Device, error) {
	at, server, err := reach(c.cfg, s, v)
	if err != nil {
		return nil, err
	}
	var t *tls.Config
	name, _, _ := net.SplitHostPort(at)
	if f := files(c.cfg); !f.Plain() && (o.encrypted || !strictyaml.Loopback(name)) {
		info := etcd.Info(f)
		if t, err = info.ClientConfig(); err != nil {
			return nil, err
		}
		t.ServerName = server
	}
	wait, cancel := context.WithTimeout(ctx, opening)
	defer cancel()
	return nbd.Dial(wait, at, v.Name, t)
}
