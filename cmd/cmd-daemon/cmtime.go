package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/mcrdma/mcrdma/cmd/internal/cli"
	"github.com/mcrdma/mcrdma/internal/cmdline"
	"github.com/mcrdma/mcrdma/pkg/mcrdma"
	_ "github.com/mcrdma/mcrdma/pkg/qp/ibverbs"  // a device's driver
	_ "github.com/mcrdma/mcrdma/pkg/qp/softroce" // likewise
)

const cmtimeHelp = `Measures how long it takes to create and close groups, phase by phase, as librdmacm's
cmtime does for connections. Receivers run

  cmd-daemon cmtime --serve --service bench

each on its own host, and the sender runs

  cmd-daemon cmtime --service bench --receivers h2,h3,h4 -n 100

Groups are created one after another. The first ones (--warm-up) are not counted:
they open connections between daemons. Phases: check and prepare (the receivers'
daemons and applications create their queue pairs), install (the switches), commit,
and the sender's own queue pair (qp, connect) are parts of create, the time of the
application's call; close ends the group everywhere. With --write, each group also
carries one write of that many bytes.

The process opens the host's RDMA device, which no other process may have open. An
interrupt ends it, and it shows the results so far.

The JSON has the phases, with times in microseconds.`

// cmtimeOptions are the flags of cmtime.
type cmtimeOptions struct {
	socket    string
	serve     bool
	service   string
	receivers []string
	count     int
	warmUp    int
	mode      string
	write     int
	timeout   time.Duration
}

func cmtimeCommand() *cobra.Command {
	var o cmtimeOptions
	cmd := &cobra.Command{
		Use:   "cmtime --service NAME (--serve | --receivers HOST,…) [flags]",
		Short: "Measure how long it takes to create groups, phase by phase",
		Long:  cmtimeHelp,
		Example: `  cmd-daemon cmtime --serve --service bench
  cmd-daemon cmtime --service bench --receivers h2,h3,h4 -n 100
  cmd-daemon cmtime --service bench --receivers 10.1.0.12 --mode require -o json`,
		Args: cli.NoArgs,
	}
	out := cli.AddOutputFlag(cmd)
	cli.AddSocketFlag(cmd, &o.socket, "s")
	f := cmd.Flags()
	f.BoolVar(&o.serve, "serve", false, "be a receiver of such groups until an interrupt")
	f.StringVar(&o.service, "service", "", "`name` of the service for which the receivers listen")
	f.StringSliceVar(&o.receivers, "receivers", nil, "the receivers, `hosts` or addresses with commas between")
	f.IntVarP(&o.count, "count", "n", 100, "how many groups are measured")
	f.IntVar(&o.warmUp, "warm-up", 5, "how many groups are made before, and not counted")
	f.StringVar(&o.mode, "mode", "auto", "auto (switches if they can), require (switches) or off (hosts)")
	f.Var((*cmdline.Size)(&o.write), "write", "also write this many `bytes` to each group, such as 10000, 64K or 8M")
	f.DurationVar(&o.timeout, "timeout", 10*time.Second, "`time` that a group may take")
	cli.CompleteHosts(cmd, "receivers", &o.socket)
	cli.CompleteFlag(cmd, "mode", func() []string { return []string{"auto", "require", "off"} })
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		cfg, err := o.check()
		if err != nil {
			return err
		}
		ctx, stop := cli.Interruptible(cmd.Context())
		defer stop()
		dialing, cancel := context.WithTimeout(ctx, o.timeout)
		defer cancel()
		client, err := mcrdma.Dial(dialing, mcrdma.Options{Socket: cli.Socket(o.socket), Program: "cmtime"})
		if err != nil {
			return err
		}
		defer func() { _ = client.Close() }() // the end of the session ends everything
		if o.serve {
			return o.receive(ctx, client, cmd.OutOrStdout())
		}
		return o.measure(ctx, client, cfg, cmd, out)
	}
	return cmd
}

// check reads the flags. Errors are usage errors.
func (o *cmtimeOptions) check() (cfg mcrdma.GroupConfig, err error) {
	cfg = mcrdma.GroupConfig{Service: o.service, Receivers: o.receivers, Wait: 10 * time.Second} // they may be starting just now
	switch {
	case o.service == "":
		return cfg, cli.Usagef("a service is needed: --service NAME, the same at sender and receivers")
	case o.serve && len(o.receivers) > 0:
		return cfg, cli.Usagef("--serve is for receivers, and --receivers for the sender: one of them")
	case !o.serve && len(o.receivers) == 0:
		return cfg, cli.Usagef("--receivers HOST,… for the sender, or --serve for a receiver")
	case o.count < 1 || o.warmUp < 0:
		return cfg, cli.Usagef("--count %d --warm-up %d: want at least one group, and not less than none before", o.count, o.warmUp)
	case o.write < 0 || o.write > 1<<30:
		return cfg, cli.Usagef("--write %d: want 0 to %d bytes", o.write, 1<<30)
	case o.timeout <= 0:
		return cfg, cli.Usagef("--timeout %v: it is more than 0, such as 10s", o.timeout)
	}
	if err := cli.NoEmptyName("--receivers", o.receivers); err != nil {
		return cfg, err
	}
	if err := cfg.Mode.UnmarshalText([]byte(o.mode)); err != nil {
		return cfg, cli.Usagef("--mode %q: want auto, require or off", o.mode)
	}
	cfg.Regions = []mcrdma.Region{{Name: "cmtime", Length: uint64(max(o.write, 1))}} //nolint:gosec // checked above
	return cfg, nil
}

// maxServed is the largest region that a receiver grants, in bytes.
const maxServed = 1 << 30

// receive is the receivers' side.
func (o *cmtimeOptions) receive(ctx context.Context, client *mcrdma.Client, w io.Writer) error {
	// The written bytes are not used: groups share the memory.
	var mu sync.Mutex
	var memory *mcrdma.Memory
	accept := func(r *mcrdma.Request) (*mcrdma.Grant, error) {
		mu.Lock()
		defer mu.Unlock()
		g := &mcrdma.Grant{}
		for _, region := range r.Regions {
			if region.Length > maxServed {
				return nil, fmt.Errorf("cmtime gives regions of up to %d bytes, and %d are asked for", maxServed, region.Length)
			}
			if memory == nil || uint64(len(memory.Bytes())) < region.Length {
				m, err := client.Alloc(int(region.Length)) //nolint:gosec // checked above
				if err != nil {
					return nil, err
				}
				memory = m // the previous memory is freed with the client, when its groups have ended
			}
			g.Regions = append(g.Regions, memory.Slice(0, int(region.Length))) //nolint:gosec // checked above
		}
		return g, nil
	}
	l, err := client.Listen(ctx, mcrdma.ListenConfig{Service: o.service, Accept: accept})
	if err != nil {
		return err
	}
	defer func() { _ = l.Close() }() // the session ends next
	if _, err := fmt.Fprintf(w, "ready: host %s receives for service %s; an interrupt ends it\n", client.Host(), o.service); err != nil {
		return err
	}
	for n := 0; ; n++ {
		m, err := l.Accept(ctx)
		switch {
		case ctx.Err() != nil:
			_, err := fmt.Fprintf(w, "%s\n", cli.Plural(n, "group"))
			return err
		case err != nil:
			return err
		}
		go func() { // until the sender closes it, or the client is closed
			for range m.Events() {
			}
			_ = m.Close() // the group has ended
		}()
	}
}

// measure is the sender's side.
func (o *cmtimeOptions) measure(ctx context.Context, client *mcrdma.Client, cfg mcrdma.GroupConfig, cmd *cobra.Command, out *cli.Output) error {
	var piece mcrdma.Piece
	if o.write > 0 {
		m, err := client.Alloc(o.write)
		if err != nil {
			return err
		}
		piece = m.All()
	}
	t := &timings{phases: map[string][]time.Duration{}, paths: map[string]int{}}
	p := cli.NewProgress(cmd.ErrOrStderr())
	var failed error
	for i := range o.warmUp + o.count {
		if failed = o.one(ctx, client, cfg, piece, t); failed != nil {
			break
		}
		if i+1 == o.warmUp {
			t.reset()
		}
		p.Say(func() string { return fmt.Sprintf("%d of %s", i+1, cli.Plural(o.warmUp+o.count, "group")) })
	}
	p.Done()
	if errors.Is(failed, context.Canceled) && ctx.Err() != nil {
		failed = nil // interrupted: the results so far are shown
	}
	if t.groups == 0 {
		return failed
	}
	w, r := cmd.OutOrStdout(), t.report(cfg)
	if out.IsJSON() {
		return errors.Join(failed, out.JSON(w, r))
	}
	if _, err := fmt.Fprintf(w, "%s of service %s, receivers %s; %s\n\n", cli.Plural(t.groups, "group"), cfg.Service, strings.Join(cfg.Receivers, ", "), t.pathText()); err != nil {
		return err
	}
	return errors.Join(failed, out.Table(w, []string{"phase", "times", "min us", "avg us", "p50 us", "p99 us", "max us"}, r.rows()))
}

// one creates a group, perhaps writes to it, and closes it.
func (o *cmtimeOptions) one(ctx context.Context, client *mcrdma.Client, cfg mcrdma.GroupConfig, piece mcrdma.Piece, t *timings) error {
	ctx, cancel := context.WithTimeout(ctx, o.timeout)
	defer cancel()
	begun := time.Now()
	g, err := client.Create(ctx, cfg)
	if err != nil {
		return err
	}
	created := time.Now()
	info := g.Info()
	if piece.Len() > 0 {
		if err := g.Write(ctx, mcrdma.At{}, piece); err != nil {
			return errors.Join(err, g.Close(context.WithoutCancel(ctx)))
		}
	}
	written := time.Now()
	// An existing group is closed in any case.
	closing, done := context.WithTimeout(context.WithoutCancel(ctx), o.timeout)
	defer done()
	if err := g.Close(closing); err != nil {
		return err
	}
	t.groups++
	t.paths[info.Path.String()]++
	for _, s := range info.Phases {
		t.add(s.Name, s.Took)
	}
	t.add("create", created.Sub(begun))
	if piece.Len() > 0 {
		t.add("write", written.Sub(created))
	}
	t.add("close", time.Since(written))
	return lost(g.Departures())
}

// lost returns the error for a group that has lost receivers, which are part of the measurement.
func lost(list []mcrdma.Departure) error {
	var errs []error
	for _, d := range list {
		errs = append(errs, fmt.Errorf("receiver %s was lost: %s", cmp.Or(d.Host, d.Address), cmp.Or(d.Why, "cmd-daemon's log says why")))
	}
	return errors.Join(errs...)
}
