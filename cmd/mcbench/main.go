// Command mcbench measures the performance of writes to groups, with copies by switches and by
// hosts. Its results have the format of perftest's.
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

const longHelp = `mcbench measures the latency and bandwidth of writes to groups, and the sender's
processor time. Receivers run

  mcbench serve

each on its own host, where its daemon must run, and the sender runs

  mcbench lat --receivers h2,h3,h4 -a
  mcbench bw --receivers h2,h3,h4 -a --way chain
  mcbench compare --receivers h2,h3,h4 -a --plot ways.svg

For collective operations, each host runs "mcbench coll".

--lab starts switches, daemons and receivers on loopback, and ends them afterward:
nothing else needs to run.`

// run is the whole program. When ctx ends, it ends as with SIGTERM.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	root := &cobra.Command{Use: "mcbench", Short: "Measure the performance of writes to groups", Long: longHelp}
	inner := cli.ExitOK // of the measuring process in a lab, which reports its errors
	root.AddCommand(serveCommand())
	for _, k := range kinds {
		root.AddCommand(senderCommand(k, args, &inner))
	}
	root.AddCommand(collCommand(args, &inner))
	return max(cli.Run(ctx, root, args, stdout, stderr), inner)
}
