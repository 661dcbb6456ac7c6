package main

import (
	"context"
	"fmt"
	"slices"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/mcrdma/mcrdma/cmd/internal/cli"
	"github.com/mcrdma/mcrdma/pkg/replica"
	"github.com/mcrdma/mcrdma/pkg/replica/core"
	"github.com/mcrdma/mcrdma/pkg/replica/osdmap"
)

// operate calls an operator's function on a volume, whose name is the first argument.
func operate(cmd *cobra.Command, flags *clusterFlags, name string, do func(ctx context.Context, o *replica.Operator, s *osdmap.State, v osdmap.VolumeState) error) error {
	return flags.onVolume(cmd.Context(), name, func(ctx context.Context, c *cluster, s *osdmap.State, v osdmap.VolumeState) error {
		o := replica.NewOperator(replica.OperatorConfig{Manager: c.Manager, Files: files(c.cfg), Name: c.cfg.Name, Timeout: flags.timeout})
		defer o.Close()
		return do(ctx, o, s, v)
	})
}

// hostNamed finds a host by its name.
func hostNamed(s *osdmap.State, name string) (core.ID, error) {
	i := slices.IndexFunc(s.Hosts, func(h osdmap.Host) bool { return h.Name == name })
	if i < 0 {
		var all []string
		for _, h := range s.Hosts {
			all = append(all, h.Name)
		}
		return 0, fmt.Errorf("there is no host %q; there are %s: a host is known when \"mcblock serve\" has run on it", name, cli.All(all))
	}
	return s.Hosts[i].ID, nil
}

// said shows a volume after a change.
func said(cmd *cobra.Command, out *cli.Output, s *osdmap.State, id uint64, err error, text string) error {
	if err != nil {
		return err
	}
	v := s.Volume(id)
	if v == nil {
		return fmt.Errorf("volume %016x: %w", id, osdmap.ErrNotFound)
	}
	if !out.IsJSON() {
		fmt.Fprintf(cmd.OutOrStdout(), "%s\n\n", text)
	}
	return showVolume(cmd.OutOrStdout(), out, s, *v)
}

const loseDataUsage = "go on without what only the lost hosts had, which the error without it names"

func replaceHostCommand() *cobra.Command {
	loseData := false
	cmd := &cobra.Command{
		Use:   "replace VOLUME LOST NEW [flags]",
		Short: "Give the place of a host in a volume to another host",
		Long: `Gives the place of a host in a volume to another host, which gets a copy of all data
while the volume is in use. The volume goes on meanwhile if at least min_size copies
are up to date.

No acknowledged write is lost: the command fails if no other host that answers has
everything, and says what would be lost. --lose-data overrides that. Make sure then that
the lost hosts are not running: one that is unreachable from here may still serve
clients, whose writes are then lost, too.

If the lost host comes back it does not serve the volume, and removes its copy when
min_size hosts are up to date. You can also replace a working host: its clients must
then connect to another one.`,
		Example: "  mcblock volume replace vol h3 h4",
		Args:    cli.ExactArgs("a volume", "the lost host", "the new host"),
	}
	out, flags := cli.AddOutputFlag(cmd), addClusterFlags(cmd)
	cmd.Flags().BoolVar(&loseData, "lose-data", false, loseDataUsage)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return operate(cmd, flags, args[0], func(ctx context.Context, o *replica.Operator, s *osdmap.State, v osdmap.VolumeState) error {
			lost, err := hostNamed(s, args[1])
			if err != nil {
				return err
			}
			by, err := hostNamed(s, args[2])
			if err != nil {
				return err
			}
			s, err = o.Replace(ctx, v.Volume.ID, lost, by, loseData)
			return said(cmd, out, s, v.Volume.ID, err, fmt.Sprintf("%s has the place of %s, and gets a copy: when that is complete it is acting.", args[2], args[1]))
		})
	}
	return cmd
}

func lostCommand() *cobra.Command {
	loseData := false
	cmd := &cobra.Command{
		Use:   "lost VOLUME HOST [flags]",
		Short: "Declare that a host will not come back with its data",
		Long: `Declares that the copy of a host is lost, so that the volume does not wait for it: for
example when all hosts lost power and the disk of one is broken, or before you remove
its copy to have it rebuilt. The host keeps its place, and gets a copy when it is back.

No acknowledged write is lost: the command fails if no other host that answers has
everything, and says what would be lost. --lose-data overrides that. Make sure then that
the lost hosts are not running.`,
		Example: "  mcblock volume lost vol h3",
		Args:    cli.ExactArgs("a volume", "a host"),
	}
	out, flags := cli.AddOutputFlag(cmd), addClusterFlags(cmd)
	cmd.Flags().BoolVar(&loseData, "lose-data", false, loseDataUsage)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return operate(cmd, flags, args[0], func(ctx context.Context, o *replica.Operator, s *osdmap.State, v osdmap.VolumeState) error {
			host, err := hostNamed(s, args[1])
			if err != nil {
				return err
			}
			s, err = o.Lost(ctx, v.Volume.ID, host, loseData)
			return said(cmd, out, s, v.Volume.ID, err, fmt.Sprintf("The volume does not wait for what %s had.", args[1]))
		})
	}
	return cmd
}

func promoteCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "promote VOLUME HOST [flags]",
		Short: "Make another host the primary of a volume",
		Long: `Makes another host of the acting set the primary, and waits until it serves. Nothing is
lost, and clients go on: the new primary completes their requests in flight.`,
		Example: "  mcblock volume promote vol h2",
		Args:    cli.ExactArgs("a volume", "a host"),
	}
	out, flags := cli.AddOutputFlag(cmd), addClusterFlags(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return operate(cmd, flags, args[0], func(ctx context.Context, o *replica.Operator, s *osdmap.State, v osdmap.VolumeState) error {
			host, err := hostNamed(s, args[1])
			if err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(ctx, 4*flags.timeout)
			defer cancel()
			s, err = o.Promote(ctx, v.Volume.ID, host)
			if err != nil {
				return fmt.Errorf("%s: %w", args[1], err)
			}
			now := s.Volume(v.Volume.ID)
			if now != nil && now.Map.Primary.ID != host {
				return fmt.Errorf("%s was made the primary, and then %s took its place: see its log", args[1], s.HostName(now.Map.Primary.ID))
			}
			return said(cmd, out, s, v.Volume.ID, err, fmt.Sprintf("%s is the primary.", args[1]))
		})
	}
	return cmd
}

func minSizeCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "min-size VOLUME COPIES [flags]",
		Short: "Set the minimum number of copies of a volume",
		Long: `Sets min_size: with fewer up-to-date copies the volume waits, and goes on when enough are
back. It can be lowered for a volume that waits, and raised up to the number of copies
that are currently up to date.

With 1 a single remaining copy takes writes, which are lost if its disk fails.`,
		Example: "  mcblock volume min-size vol 1",
		Args:    cli.ExactArgs("a volume", "a number of copies"),
	}
	out, flags := cli.AddOutputFlag(cmd), addClusterFlags(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		n, err := strconv.Atoi(args[1])
		if err != nil || n < 1 {
			return cli.Usagef("%q: want a number of copies from 1 on", args[1])
		}
		return operate(cmd, flags, args[0], func(ctx context.Context, o *replica.Operator, _ *osdmap.State, v osdmap.VolumeState) error {
			s, err := o.MinSize(ctx, v.Volume.ID, n)
			return said(cmd, out, s, v.Volume.ID, err, fmt.Sprintf("The volume waits with fewer than %d.", n))
		})
	}
	return cmd
}
