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
**cmd-daemon init** has made. Fields that are unknown are errors. Relative names of files count from the file's own directory.`,
	Reference: config.Reference, See: "mcblock-init(1), cmd-daemon.yaml(5)",
}

// run is the whole program. The end of ctx ends it as SIGTERM does.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	root := &cobra.Command{
		Use:   "mcblock",
		Short: "Keep replicated volumes on the hosts of a rack",
		Long: `mcblock keeps volumes, block devices of which several hosts have a copy each.

Which volumes there are, and which host is the primary of each, is in etcd: the
hosts run it themselves, or it is a cluster that is there. Reads and writes do
not need it, only changes do.

Each sub-command explains itself: mcblock volume create --help`,
	}
	volumes := volumeCommand()
	volumes.AddCommand(allowCommand())
	root.AddCommand(serveCommand(), initCommand(), volumes, statusCommand(), doctorCommand(), benchCommand(), etcdCommand())
	return cli.Run(ctx, root, args, stdout, stderr, configPage)
}
