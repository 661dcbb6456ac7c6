// Command cmd-daemon makes multicast groups for the applications of its host, and has
// them take part in those of others: the connection management daemon. Its sub-command
// run is the daemon; the others look at one, or prepare a lab.
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
		Use:   "cmd-daemon",
		Short: "Make multicast groups for the applications of this host",
		Long: `cmd-daemon makes multicast groups for the applications of its host, and has
them take part in those of others.

Each sub-command explains itself: cmd-daemon run --help`,
	}
	root.AddCommand(runCommand(), initCommand(), statusCommand(), groupsCommand(), groupCommand(), membersCommand(), doctorCommand(), cmtimeCommand())
	return cli.Run(ctx, root, args, stdout, stderr)
}
