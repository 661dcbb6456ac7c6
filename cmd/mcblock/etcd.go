package main

import (
	"context"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/mcrdma/mcrdma/cmd/internal/cli"
)

func etcdCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "etcd", Short: "Show and repair the etcd that the hosts run"}
	cmd.AddCommand(membersCommand(), addCommand(), replaceCommand())
	cli.Parent(cmd)
	return cmd
}

func membersCommand() *cobra.Command {
	return asking(&cobra.Command{
		Use:   "members [flags]",
		Short: "List the members of etcd",
		Long: `Lists the members of etcd and their state. It works without a majority, if one member answers.

The JSON is a list of members, with name, client and peer (addresses), leader, version,
size (bytes of the database) and error.`,
		Example: "  mcblock etcd members",
	}, func(ctx context.Context, c *cluster, cmd *cobra.Command, out *cli.Output) error {
		members, err := c.members(ctx)
		if err != nil {
			return err
		}
		if out.IsJSON() {
			return out.JSON(cmd.OutOrStdout(), memberViews(members))
		}
		return writeMembers(cmd.OutOrStdout(), out, memberViews(members))
	})
}

// patience is how long etcd may take to accept a change of its members: it refuses some until it
// has been healthy for several seconds.
const patience = time.Minute

func addCommand() *cobra.Command {
	return changing(&cobra.Command{
		Use:   "add NAME=HOST:PORT [flags]",
		Short: "Add a member to etcd",
		Long: `Adds a member to etcd, given by its host's name and its address for other members. The
member must have started before you add another. Three members tolerate the loss of one,
five the loss of two.`,
		Example: "  mcblock etcd add h4=10.2.0.12:2380",
		Args:    cli.ExactArg("one member"),
	}, func(ctx context.Context, c *cluster, _ []string, name, peer string) (map[string]string, error) {
		return c.store.Add(ctx, name, peer)
	})
}

func replaceCommand() *cobra.Command {
	return changing(&cobra.Command{
		Use:   "replace LOST NAME=HOST:PORT [flags]",
		Short: "Replace a member of etcd whose disk is lost",
		Long: `Removes a member of etcd whose disk is lost from the cluster, and adds another, given by
its host's name and its address for other members. More than half of the members must
run. A member that answers is not removed.

If it fails after removing the lost member, "etcd add" does the rest.`,
		Example: "  mcblock etcd replace h3 h4=10.2.0.12:2380",
		Args:    cli.ExactArgs("the lost member", "the new one with its address"),
	}, func(ctx context.Context, c *cluster, args []string, name, peer string) (map[string]string, error) {
		return c.store.Replace(ctx, args[0], name, peer)
	})
}

// changing completes a command whose last argument is a member, NAME=HOST:PORT: it changes the members
// of etcd, and prints what to do next.
func changing(cmd *cobra.Command, change func(ctx context.Context, c *cluster, args []string, name, peer string) (map[string]string, error)) *cobra.Command {
	flags := addClusterFlags(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		arg := args[len(args)-1]
		name, peer, ok := strings.Cut(arg, "=")
		if _, _, bad := net.SplitHostPort(peer); !ok || name == "" || bad != nil {
			return cli.Usagef("%q: want NAME=HOST:PORT, as h4=10.2.0.12:2380", arg)
		}
		return flags.with(cmd.Context(), func(ctx context.Context, c *cluster) error {
			ctx, cancel := context.WithTimeout(ctx, max(patience, flags.timeout))
			defer cancel()
			all, err := change(ctx, c, args, name, peer)
			if err != nil {
				return err
			}
			var b strings.Builder
			fmt.Fprintf(&b, "%s may come in. In its mcblock.yaml set\n\n  etcd:\n    join: true\n    members:\n", name)
			for _, n := range slices.Sorted(maps.Keys(all)) {
				host, _, _ := net.SplitHostPort(all[n])
				fmt.Fprintf(&b, "      - {name: %s, address: %s, peer: %q}\n", n, host, all[n])
			}
			b.WriteString("\nand start it there. Give the other hosts the same members, for their next start.\n")
			_, err = fmt.Fprint(cmd.OutOrStdout(), b.String())
			return err
		})
	}
	return cmd
}
