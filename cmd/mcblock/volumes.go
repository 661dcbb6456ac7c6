package main

import (
	"github.com/spf13/cobra"

	"github.com/mcrdma/mcrdma/cmd/internal/cli"
)

func volumeCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "volume", Short: "Create, show, check and change volumes"}
	cmd.AddCommand(createCommand(), listCommand(), showCommand(), deleteCommand(), replaceHostCommand(), lostCommand(), promoteCommand(), minSizeCommand(), scrubCommand())
	cli.Parent(cmd)
	return cmd
}
