// Command switchctl runs and controls switches. Its sub-command softswitch is the
// embedded P4 switch.
//
// It exits with 0 if all went well, 1 if something failed, and 2 if it was
// called wrongly.
package main

import (
	"context"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/mcrdma/mcrdma/cmd/internal/cli"
)

func main() {
	os.Exit(run(context.Background(), os.Args[1:], os.Stdout, os.Stderr))
}

// run is the whole program. The end of ctx ends it as SIGTERM does.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	root := &cobra.Command{
		Use:   "switchctl",
		Short: "Run and control P4 switches",
		Long: `switchctl runs and controls P4 switches.

Each sub-command explains itself: switchctl softswitch --help`,
	}
	root.AddCommand(softswitchCommand())
	root.AddCommand(statusCommand(), bgpCommand(), routesCommand(), countersCommand(), groupsCommand(), groupCommand(), topCommand(), doctorCommand())
	root.AddCommand(agentCommand(), planCommand(), pipelineCommand(), captureCommand())
	return cli.Run(ctx, root, softswitchArgs(args), stdout, stderr)
}
