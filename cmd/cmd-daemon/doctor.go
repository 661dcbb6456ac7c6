package main

import (
	"context"
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/cmd/cmd-daemon/internal/doctor"
	"github.com/mcrdma/mcrdma/cmd/internal/cli"
	"github.com/mcrdma/mcrdma/cmd/internal/findings"
)

// defaultConfig is where packages install the configuration; tests change it.
var defaultConfig = "/etc/mcrdma/daemon.yaml"

const doctorHelp = `Checks this host's daemon and everything that it needs, and says what is wrong, why,
and what to do.

The daemon: whether it answers, and the state that it reports of its switch and of
other daemons. With its configuration (--config; /etc/mcrdma/daemon.yaml if it
exists): whether the certificates are this host's and valid, and the clock agrees with
them; whether the daemons of other hosts and the switch's agent can be reached from
here, and accept this host; whether the address is on an interface, and its MTU;
whether the device opens; whether the state file's disk is full or read-only; limits on
locked memory.

Nothing is changed. The device is opened for a moment, unless --no-device is given: an
application that starts at that moment finds it in use.

Exit code 1 means that there is at least one error; warnings and notes do not count.

The JSON has the findings, with severity, subject, what, why and do.`

// doctorCommand diagnoses this host's daemon.
func doctorCommand() *cobra.Command {
	var file string
	var noDevice bool
	cmd := &cobra.Command{
		Use:     "doctor [flags]",
		Short:   "Diagnose this host's daemon: what is wrong, why, and what to do",
		Long:    doctorHelp,
		Example: "  cmd-daemon doctor\n  cmd-daemon doctor --config lab/h1/daemon.yaml",
		Args:    cli.NoArgs,
	}
	out, flags := cli.AddOutputFlag(cmd), addDaemonFlags(cmd)
	cmd.Flags().StringVarP(&file, "config", "c", "", "the daemon's configuration, a YAML `file`; default: "+defaultConfig+" if it is there")
	cmd.Flags().BoolVar(&noDevice, "no-device", false, "do not open the device")
	cli.CompleteFile(cmd, "config", "yaml", "yml")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		facts, looked, err := collect(cmd.Context(), flags, file, !noDevice)
		if err != nil {
			return err
		}
		return findings.Show(cmd.OutOrStdout(), out, doctor.Diagnose(facts), looked, findings.Error)
	}
	return cmd
}

// collect collects all facts; looked names what was checked.
func collect(ctx context.Context, flags *daemonFlags, file string, device bool) (facts doctor.Facts, looked string, err error) {
	looked = "the daemon"
	if file == "" {
		if _, err := os.Stat(defaultConfig); err == nil {
			file = defaultConfig
		}
	}
	own := *flags
	if file != "" {
		s, err := loadConfigured(file)
		if err != nil {
			return facts, "", err
		}
		trying, cancel := context.WithTimeout(ctx, flags.timeout)
		facts = doctor.Collect(trying, s.cfg, device)
		cancel()
		if own.socket == "" && os.Getenv(cli.SocketEnv) == "" {
			own.socket = s.cfg.Socket
		}
		looked = fmt.Sprintf("the daemon, %s, and this host", file)
	}
	d, err := own.dial()
	if err != nil {
		return facts, "", err
	}
	defer d.Close()
	facts.Daemon, facts.DaemonErr = d.GetDaemon(ctx, &mcrdmav1.GetDaemonRequest{})
	if cli.CodeOf(facts.DaemonErr) == codes.Canceled {
		return facts, "", facts.DaemonErr
	}
	return facts, looked, nil
}
