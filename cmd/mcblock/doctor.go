package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/cmd/internal/cli"
	"github.com/mcrdma/mcrdma/cmd/internal/findings"
	"github.com/mcrdma/mcrdma/cmd/mcblock/internal/config"
	"github.com/mcrdma/mcrdma/pkg/replica/core"
	"github.com/mcrdma/mcrdma/pkg/replica/osdmap"
)

const doctorHelp = `Checks volumes, their hosts and etcd, and says what is wrong, why, and what to do.

This host: its certificate and key, and whether its cmd-daemon answers. Etcd: whether
its members answer, how fast, and are a majority, and records that cannot be read. Each host:
whether its mcblock and its cmd-daemon answer, its disk, its certificate, its connection to
etcd. Each volume: whether it is served, has min_size copies, and has all its copies; the
progress of recovery; requests that wait. Clocks of hosts may differ: nothing depends on them.

Nothing is changed. Exit code 1 means that there is an error or a warning.

The JSON has the findings, with severity, subject, what, why and do.`

func doctorCommand() *cobra.Command {
	return asking(&cobra.Command{
		Use:     "doctor [flags]",
		Short:   "Diagnose volumes, hosts and etcd: what is wrong, why, and what to do",
		Long:    doctorHelp,
		Example: "  mcblock doctor\n  mcblock doctor -o json",
	}, func(ctx context.Context, c *cluster, cmd *cobra.Command, out *cli.Output) error {
		f, err := examine(ctx, c, cmd.ErrOrStderr())
		if err != nil {
			return err
		}
		looked := fmt.Sprintf("this host, etcd, %s and %s", cli.Plural(len(f.state.Hosts), "host"), cli.Plural(len(f.state.Volumes), "volume"))
		return findings.Show(cmd.OutOrStdout(), out, diagnose(f), looked, findings.Warning)
	})
}

// examine collects all facts. The error is that of ctx.
func examine(ctx context.Context, c *cluster, stderr io.Writer) (*facts, error) {
	f := &facts{now: time.Now(), self: c.cfg.Name, number: core.ID(c.cfg.ID), endpoints: strings.Join(c.cfg.EtcdClients(), ", "),
		configured: each(c.cfg.Etcd.Members, func(m config.Member) string { return memberAt(m.Name, m.Peer) })}
	slices.Sort(f.configured)
	f.certificate, f.secret = checkCertificate(c.cfg), files(c.cfg).Exposed()
	d, err := cli.DialDaemon(c.cfg.Socket, "mcblock", c.timeout)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	if _, err := d.GetDaemon(ctx, &mcrdmav1.GetDaemonRequest{}); err != nil && cli.CodeOf(err) != codes.Canceled {
		f.daemon = err
	}
	f.members, f.noMember = c.members(ctx)
	if f.certificate == nil && errors.Is(f.noMember, context.DeadlineExceeded) && connected(ctx, c) {
		c = c.patient()
		fmt.Fprintf(stderr, "mcblock doctor: etcd has not answered; it has up to %v for each answer from now on\n", c.timeout)
		f.members, f.noMember = c.members(ctx)
	}
	if f.noMember == nil {
		if f.state, f.away = c.Read(ctx); f.away == nil {
			begun := time.Now() // connecting counts no longer
			if _, err := c.Read(ctx); err == nil {
				f.took = time.Since(begun)
			}
		}
		f.hosts = ask(ctx, c.cfg, f.state.Hosts, c.timeout)
		if f.away == nil && slices.ContainsFunc(f.state.Volumes, func(v osdmap.VolumeState) bool { return f.knows(v) != 0 }) {
			f.state, f.away = c.Read(ctx) // the map may have changed meanwhile
		}
	}
	return f, ctx.Err()
}

// connected reports whether an address of etcd accepts connections.
func connected(ctx context.Context, c *cluster) bool {
	at := map[string]string{}
	for _, e := range c.cfg.EtcdClients() {
		at[e] = e
	}
	return len(unconnected(ctx, at, c.timeout)) < len(at)
}
