package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/mcrdma/mcrdma/cmd/internal/cli"
	"github.com/mcrdma/mcrdma/pkg/replica/osdmap"
)

const allowHelp = `Sets which clients may open a volume by NBD: the named ones, and no others. A NAME is
that of the client's certificate, with its role: host:vm1 or admin:ops; vm1 alone means
host:vm1. "loopback" stands for all clients without TLS at a loopback address of a host:
any program of that host. Other clients without TLS have no name.

Connections of clients that are no longer allowed end. --everyone removes the list: then
every client that can connect may open the volume.

A host with an older mcblock, which does not know such lists, refuses the volume's new
record: update all hosts first.`

func allowCommand() *cobra.Command {
	everyone := false
	cmd := &cobra.Command{
		Use:     "allow VOLUME NAME...",
		Short:   "Set which clients may open a volume",
		Long:    allowHelp,
		Example: "  mcblock volume allow vol vm1 vm2\n  mcblock volume allow vol loopback host:vm1\n  mcblock volume allow vol --everyone",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 || everyone != (len(args) == 1) {
				return cli.Usagef("name one volume, and the clients that may open it, or --everyone")
			}
			return nil
		},
	}
	flags := addClusterFlags(cmd)
	cmd.Flags().BoolVar(&everyone, "everyone", false, "remove the list: all clients that can connect are allowed")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		clients := clientNames(args[1:])
		return flags.onVolume(cmd.Context(), args[0], func(ctx context.Context, c *cluster, _ *osdmap.State, v osdmap.VolumeState) error {
			try := v.Volume
			try.Allow = clients
			if err := try.Check(); err != nil {
				return cli.Usage(err)
			}
			changed, err := c.Allow(ctx, v.Volume.ID, clients)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "volume %s: clients %s\n", args[0], clientList(changed.Allow))
			return err
		})
	}
	return cmd
}
