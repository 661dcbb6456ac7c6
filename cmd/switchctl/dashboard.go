package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"time"

	"github.com/spf13/cobra"

	"github.com/mcrdma/mcrdma/cmd/internal/cli"
	"github.com/mcrdma/mcrdma/cmd/switchctl/internal/agents"
	"github.com/mcrdma/mcrdma/cmd/switchctl/internal/doctor"
	"github.com/mcrdma/mcrdma/internal/dashboard"
	"github.com/mcrdma/mcrdma/internal/grpcserver"
)

const dashboardHelp = `Serves a live page for a browser: the topology, each group's tree, the lag of
receivers, merging verdicts, suspicions, the load of senders' links compared with
unicast, and events. It prints the page's address, and runs until Ctrl-C.

The page only observes. It polls the agents as the other commands do, with the same
flags; --peers includes all agents that can be found. With --daemon it also shows the
suspicions of daemons on this machine; a daemon shows the groups of the caller's user,
and to root all of them.

Each part of the page shows its age and what is unknown. The part of a silent agent
turns gray. Agents detect a cut link after 100 to 150 ms; the page shows it at the next
poll.

The page is served on this machine only, and needs the key in its address, which
changes with each start. From another machine, use a tunnel:

  ssh -L 9570:127.0.0.1:9570 HOST

The same data is available as JSON: /api/status as in "switchctl status -o json",
/api/group?name=SOURCE/NUMBER with the tree as in "switchctl group show -o json",
/api/groups, /api/traffic, /api/suspicions and /api/events; add &key=KEY.`

// dashboardCommand serves the live page.
func dashboardCommand() *cobra.Command {
	var sockets []string
	listen, interval := "127.0.0.1:9570", dashboard.Interval
	cmd := &cobra.Command{
		Use:   "dashboard [flags]",
		Short: "Serve a live page of switches, groups, lag, suspicions and events",
		Long:  dashboardHelp,
		Example: `  switchctl dashboard --agent 192.0.2.1:9560
  switchctl dashboard --agent 127.0.0.1:19561 --listen 127.0.0.1:0 --daemon /run/mcrdma/daemon.sock`,
		Args: cli.NoArgs,
	}
	client := addClientFlags(cmd, true, true)
	cmd.Flags().StringVar(&listen, "listen", listen, "`address` on this machine for the page; with port 0, one that is free")
	cmd.Flags().DurationVar(&interval, "interval", interval, "`time` between two polls")
	cmd.Flags().StringArrayVar(&sockets, "daemon", nil, "`socket` of a daemon on this machine that is asked too; may be repeated")
	cli.CompleteFile(cmd, "daemon", "sock")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if interval < 100*time.Millisecond {
			return cli.Usagef("--interval %v: it is at least 100ms", interval)
		}
		given, err := client.addresses()
		if err != nil {
			return err
		}
		addr, err := netip.ParseAddrPort(listen)
		if err != nil || !addr.Addr().IsLoopback() {
			return cli.Usagef("--listen %q: it is IP:PORT with a loopback address, such as 127.0.0.1:9570; from another machine, take a tunnel: ssh -L %d:127.0.0.1:%[2]d HOST",
				listen, max(addr.Port(), 1))
		}
		ctx, stop := cli.Interruptible(cmd.Context())
		defer stop()
		fleet := client.fleet()
		defer fleet.Close()
		o := dashboard.Options{Interval: interval, Find: func(ctx context.Context) ([]dashboard.Agent, error) { return client.find(ctx, fleet, given) },
			Meaning: func(cell string) (string, bool) { r := doctor.DropReasons[cell]; return r.Meaning, r.Usual }}
		for _, s := range sockets {
			d, err := cli.DialDaemon(s, "switchctl", client.timeout)
			if err != nil {
				return err
			}
			defer d.Close()
			o.Daemons = append(o.Daemons, dashboard.Daemon{Socket: s, ApplicationsClient: d})
		}
		l, err := net.Listen("tcp", listen)
		if err != nil {
			return grpcserver.CannotListen("--listen", listen, err)
		}
		return serveDashboard(ctx, dashboard.New(rand.Text(), o), l, func(at string) {
			fmt.Fprintf(cmd.OutOrStdout(), "%s\nOpen this page in a browser; Ctrl-C ends it.\n", at)
		})
	}
	return cmd
}

// find is how a dashboard finds agents.
func (f *clientFlags) find(ctx context.Context, fleet *agents.Fleet, given []agents.Address) (out []dashboard.Agent, err error) {
	found, _, err := fleet.Discover(ctx, given, f.peers, maxAgents)
	for _, x := range found {
		out = append(out, dashboard.Agent{Address: x.Agent.Address.HostPort, Name: x.Name(), Agent: x.Agent.Agent})
	}
	return out, err
}

// serveDashboard serves the page, and collects its data, until ctx ends.
func serveDashboard(ctx context.Context, d *dashboard.Dashboard, l net.Listener, ready func(at string)) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	server := &http.Server{Handler: d.Handler(), ReadHeaderTimeout: 10 * time.Second, IdleTimeout: time.Minute}
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			cancel(fmt.Errorf("serving the page: %w", err))
		}
	}()
	defer func() { _ = server.Close(); <-done }()
	ready(d.Address(l.Addr().String()))
	if err := d.Run(ctx); err != nil {
		return err
	}
	if err := context.Cause(ctx); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}
