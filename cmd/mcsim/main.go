// Command mcsim runs the production state machines in a simulated fabric: it reproduces figures of
// papers, and answers questions about the user's own network.
//
// It exits with 0 on success, 1 if something failed, and 2 on a usage error.
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

const longHelp = `mcsim runs the code of this project (queue pairs, congestion control, placement of copying
and merging, relaying by hosts) in a packet-level simulation of a fabric. Time is
virtual, and the same seed gives the same result.

  mcsim figures mc5 mc6 --plot out

repeats figures of papers, and shows the papers' values for comparison.

  mcsim run --topology fabric.yaml --workload websearch --load 0.5

shows how long writes and reads take in your fabric, for each way to replicate.
docs/simulation.md says what is simulated, and what is not.`

// run is the whole program. When ctx ends, it ends as with SIGTERM.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	root := &cobra.Command{Use: "mcsim", Short: "Simulate replication in a data center", Long: longHelp}
	root.AddCommand(figuresCommand(), runCommand(), compareCommand())
	return cli.Run(ctx, root, args, stdout, stderr)
}
