// Command mcbench measures how fast groups carry writes, with copies by switches and by hosts. Its
// results have the format of perftest's.
//
// It exits with 0 on success, 1 if something failed (wrong content included), and 2 on a usage
// error.
package main

import (
	"context"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/mcrdma/mcrdma/cmd/internal/cli"
	_ "github.com/mcrdma/mcrdma/pkg/qp/ibverbs"  // a device's driver
	_ "github.com/mcrdma/mcrdma/pkg/qp/softroce" // likewise
)

func main() {
	os.Exit(run(context.Background(), os.Args[1:], os.Stdout, os.Stderr))
}

const longHelp = `mcbench measures how fast groups carry writes: latency, bandwidth, and what they
take of the sender's processor. Receivers run

  mcbench serve

each beside its own daemon, and the sender

  mcbench lat --receivers h2,h3,h4 -a
  mcbench bw --receivers h2,h3,h4 -a --way chain
  mcbench compare --receivers h2,h3,h4 -a --plot ways.svg

Collective operations are measured by "mcbench coll", which each host runs.

With --lab nothing needs to run: switches, daemons and receivers are started on
loopback, and ended afterwards.`

// run is the whole program. The end of ctx ends it as SIGTERM does.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	root := &cobra.Command{Use: "mcbench", Short: "Measure how fast groups carry writes", Long: longHelp}
	inner := cli.ExitOK // of the process that measures in a lab, which has said why
	root.AddCommand(serveCommand())
	for _, k := range kinds {
		root.AddCommand(senderCommand(k, args, &inner))
	}
	root.AddCommand(collCommand(args, &inner))
	return max(cli.Run(ctx, root, args, stdout, stderr), inner)
}
