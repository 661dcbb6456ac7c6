// Command switchctl runs switches (softswitch) and their agents (agent), and inspects both.
//
// It exits with 0 on success, 1 if something failed, and 2 on a usage error.
package main

import (
	"context"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/mcrdma/mcrdma/cmd/internal/cli"
	"github.com/mcrdma/mcrdma/internal/switchagent/config"
)

func main() {
	os.Exit(run(context.Background(), os.Args[1:], os.Stdout, os.Stderr))
}

// configPage is the manual page of the configuration of "agent".
var configPage = cli.ConfigPage{
	Name: "switchctl-agent.yaml", Short: "configuration of a switch's agent, which programs it for mcrdma's groups",
	Long: `A YAML file, which the package's unit switchctl-agent@NAME expects at /etc/mcrdma/NAME.yaml. **switchctl init** makes one from
a topology file; **switchctl agent --config** *FILE* **--check** says what is wrong with one, with line numbers. Fields that are
unknown are errors. Relative file names are relative to the file's own directory.`,
	Reference: config.Reference, See: "switchctl-agent(1), switchctl-init(1), cmd-daemon.yaml(5)",
}

// run is the whole program. When ctx ends, it ends as with SIGTERM.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	root := &cobra.Command{
		Use:   "switchctl",
		Short: "Run and control P4 switches",
		Long: `switchctl runs and controls P4 switches.

Each subcommand has its own help: switchctl softswitch --help`,
	}
	root.AddCommand(softswitchCommand())
	root.AddCommand(statusCommand(), bgpCommand(), routesCommand(), countersCommand(), groupsCommand(), groupCommand(), topCommand(), dashboardCommand(), doctorCommand())
	root.AddCommand(initCommand(), agentCommand(), planCommand(), pipelineCommand(), captureCommand())
	return cli.Run(ctx, root, softswitchArgs(args), stdout, stderr, configPage)
}
