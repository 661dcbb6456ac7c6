package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"

	"github.com/spf13/cobra"

	"github.com/mcrdma/mcrdma/cmd/internal/cli"
	"github.com/mcrdma/mcrdma/internal/hostload"
	"github.com/mcrdma/mcrdma/internal/switchagent"
	"github.com/mcrdma/mcrdma/internal/switchagent/config"
)

const agentHelp = `Runs the agent of one switch. It programs the switch by P4Runtime: unicast routes
learned by BGP, from the kernel or from a file, and the switch's part in the
groups that daemons of hosts have installed, together with the agents of the
other switches.

The configuration is a YAML file; --check validates it. The state file has everything
that must survive a restart. When the agent restarts, it reads the switch back and
continues; the switch forwards meanwhile.

SIGINT, SIGTERM and SIGHUP end the agent and leave the switch as it is. restart.hold in the
configuration determines what the neighbors do then. With 30s, they keep their links
to this switch and its routes for that long while the agent restarts, and no packet is
lost; but they do not detect a cut cable meanwhile. With 0s, or after that time, they
use other paths at once. --on-stop leave overrides the configuration with 0s: before
you remove a switch, restart its agent with that flag, and then stop it.

When routes are known and all groups are installed, the agent prints a line that
begins with "ready" to standard output.`

// agentCommand returns the subcommand.
func agentCommand() *cobra.Command {
	var o struct {
		file    string
		check   bool
		standby bool
		onStop  string
	}
	var logger func(io.Writer) (*slog.Logger, error)
	cmd := &cobra.Command{
		Use:     "agent --config FILE",
		Short:   "Run the agent of a switch",
		Long:    agentHelp,
		Example: "  switchctl agent --config /etc/mcrdma/torA.yaml\n  switchctl agent --config torA.yaml --check",
		Args:    cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.file == "" {
				return cli.Usagef("a configuration is needed: --config FILE")
			}
			log, err := logger(cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			if o.onStop != "" && o.onStop != "hold" && o.onStop != "leave" {
				return cli.Usagef("--on-stop %q is neither hold nor leave", o.onStop)
			}
			cfg, err := config.Load(o.file)
			if err != nil {
				return err
			}
			if o.onStop == "hold" && cfg.Restart.Hold == 0 {
				return cli.Usagef("--on-stop hold: restart.hold in %s says for how long, and is 0s", o.file)
			}
			if o.check {
				if err := switchagent.Check(cfg); err != nil {
					return fmt.Errorf("%s: %w", o.file, err)
				}
				_, err := fmt.Fprintf(cmd.OutOrStdout(), "%s is right: switch %s; ports: %d; other switches: %d\n",
					o.file, cfg.Name, len(cfg.Ports), len(cfg.Switches))
				return err
			}
			options := switchagent.Options{Logger: log, Version: cli.Version(), Standby: o.standby, Busy: new(hostload.Meter).Busy,
				Leave: o.onStop == "leave"}
			return runAgent(cmd.Context(), cfg, options, cmd.OutOrStdout())
		},
	}
	f := cmd.Flags()
	f.StringVarP(&o.file, "config", "c", "", "the agent's configuration, a YAML `file`")
	f.BoolVar(&o.check, "check", false, "only check the configuration, and the topology and certificates that it names")
	f.BoolVar(&o.standby, "standby", false, "wait while another agent has the state file, and then take over")
	logger = cli.AddLogFlags(cmd)
	f.StringVar(&o.onStop, "on-stop", "", "what neighbors do when the agent ends: `hold` on to links and routes, or leave; default: as configured")
	cli.CompleteFlag(cmd, "on-stop", func() []string { return []string{"hold", "leave"} })
	cli.CompleteFile(cmd, "config", "yaml", "yml")
	return cmd
}

// runAgent runs until ctx ends or a signal arrives.
func runAgent(ctx context.Context, cfg *config.Config, o switchagent.Options, stdout io.Writer) error {
	ctx, stop := cli.Interruptible(ctx)
	defer stop()
	a, err := switchagent.New(ctx, cfg, o)
	if err != nil {
		return err
	}
	ran := make(chan error, 1)
	go func() { ran <- a.Run(ctx) }()
	select {
	case err := <-ran:
		return err
	case <-a.Ready():
	}
	cli.CollectSeldom()
	cli.NotifySystemd("READY=1")
	o.Logger.Info("ready", "switch", cfg.Name, "address", a.Addr().String())
	fmt.Fprintf(stdout, "ready: agent of switch %s at %v\n", cfg.Name, a.Addr())
	select {
	case err := <-ran:
		return err
	case <-ctx.Done():
		stop() // another signal ends it at once
		cli.NotifySystemd("STOPPING=1")
		return <-ran
	}
}
