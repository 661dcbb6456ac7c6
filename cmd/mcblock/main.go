// Command mcblock serves volumes, which are block devices that are replicated on several hosts:
// each write leaves the primary's link once, and switches copy it.
//
// It exits with 0 on success, 1 if something failed, and 2 on a usage error.
package main

import (
	"context"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/mcrdma/mcrdma/cmd/internal/cli"
	"github.com/mcrdma/mcrdma/cmd/mcblock/internal/config"
)

func main() {
	os.Exit(run(context.Background(), os.Args[1:], os.Stdout, os.Stderr))
}

// configPage is the manual page of the configuration.
var configPage = cli.ConfigPage{
	Name: "mcblock.yaml", Short: "configuration of a host that has copies of replicated volumes",
	Long: `A YAML file, which the package expects at /etc/mcrdma/mcblock.yaml. **mcblock init** makes one for each host of a lab that
**cmd-daemon init** has made. Unknown fields are errors. Relative file names are relative to the file's own directory.`,
	Reference: config.Reference, See: "mcblock-init(1), cmd-daemon.yaml(5)",
}

// run is the whole program. When ctx ends, it ends as with SIGTERM.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	root := &cobra.Command{
		Use:   "mcblock",
		Short: "Keep replicated volumes on the hosts of a rack",
		Long: `mcblock provides volumes: block devices that are replicated on several hosts.

The list of volumes, and the primary host of each, are in etcd: the hosts run it
themselves, or use an existing cluster. Only changes need it, reads and writes do
not.

Each subcommand has its own help: mcblock volume create --help`,
	}
	volumes := volumeCommand()
	volumes.AddCommand(allowCommand())
	root.AddCommand(serveCommand(), initCommand(), volumes, statusCommand(), doctorCommand(), benchCommand(), etcdCommand())
	return cli.Run(ctx, root, args, stdout, stderr, configPage)
}
