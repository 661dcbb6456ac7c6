// Command cmd-daemon is the connection management daemon: it forms multicast groups for the
// applications of its host, and lets them join groups of other hosts. Its subcommand run is the
// daemon; the others inspect one, or prepare a lab.
//
// It exits with 0 on success, 1 if something failed, and 2 on a usage error.
package main

import (
	"context"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/mcrdma/mcrdma/cmd/internal/cli"
	"github.com/mcrdma/mcrdma/internal/connmgr/config"
)

func main() {
	os.Exit(run(context.Background(), os.Args[1:], os.Stdout, os.Stderr))
}

// configPage is the manual page of the configuration of "run".
var configPage = cli.ConfigPage{
	Name: "cmd-daemon.yaml", Short: "configuration of the daemon of a host that takes part in mcrdma's groups",
	Long: `A YAML file, which the package expects at /etc/mcrdma/daemon.yaml. **cmd-daemon init** makes one for each host of a lab;
**cmd-daemon run --config** *FILE* **--check** says what is wrong with one, with line numbers. A name and an address are enough on
loopback. Unknown fields are errors. Relative file names are relative to the file's own directory.`,
	Reference: config.Reference, See: "cmd-daemon-run(1), cmd-daemon-init(1), switchctl-agent.yaml(5)",
}

// run is the whole program. When ctx ends, it ends as with SIGTERM.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	root := &cobra.Command{
		Use:   "cmd-daemon",
		Short: "Make multicast groups for the applications of this host",
		Long: `cmd-daemon forms multicast groups for the applications of its host, and lets
them join groups of other hosts.

Each subcommand has its own help: cmd-daemon run --help`,
	}
	root.AddCommand(runCommand(), initCommand(), statusCommand(), groupsCommand(), groupCommand(), membersCommand(), devicesCommand(), watchCommand(), doctorCommand(), cmtimeCommand())
	return cli.Run(ctx, root, args, stdout, stderr, configPage)
}
