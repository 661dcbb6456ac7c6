package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

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
		err := do(ctx, o, s, v)
		if errors.Is(err, osdmap.ErrNotFound) { // it was there, and its number alone says little
			err = fmt.Errorf("volume %s was deleted meanwhile: %w", name, err)
		}
		return err
	})
}

// An order is an operator's command on a volume.
type order struct {
	*replica.Operator
	volume  uint64
	args    []string
	hosts   []core.ID // that args name, after the volume
	timeout time.Duration
}

// ordering completes a command whose arguments are a volume, some hosts, and others. do carries it out
// and returns the new state, which is shown below a text.
func ordering(cmd *cobra.Command, hosts int, do func(context.Context, *order) (s *osdmap.State, text string, err error)) *cobra.Command {
	out, flags := cli.AddOutputFlag(cmd), addClusterFlags(cmd)
	cmd.Long += "\n\nThe JSON is the changed volume, as in \"mcblock volume show\", without parts."
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return operate(cmd, flags, args[0], func(ctx context.Context, o *replica.Operator, s *osdmap.State, v osdmap.VolumeState) error {
			x := &order{Operator: o, volume: v.Volume.ID, args: args, timeout: flags.timeout}
			for _, name := range args[1 : 1+hosts] {
				id, err := hostNamed(s, name)
				if err != nil {
					return err
				}
				x.hosts = append(x.hosts, id)
			}
			s, text, err := do(ctx, x)
			if err != nil {
				return err
			}
			now := s.Volume(x.volume)
			if now == nil {
				return fmt.Errorf("volume %016x: %w", x.volume, osdmap.ErrNotFound)
			}
			if !out.IsJSON() {
				fmt.Fprintf(cmd.OutOrStdout(), "%s\n\n", text)
			}
			return showVolume(cmd.OutOrStdout(), out, s, *now, nil)
		})
	}
	return cmd
}

const loseDataUsage = "go on without what only the lost hosts had, which the error without it names"

func replaceHostCommand() *cobra.Command {
	loseData := false
	cmd := ordering(&cobra.Command{
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
	}, 2, func(ctx context.Context, o *order) (*osdmap.State, string, error) {
		s, err := o.Replace(ctx, o.volume, o.hosts[0], o.hosts[1], loseData)
		return s, fmt.Sprintf("%s has the place of %s, and gets a copy: when that is complete it is acting.", o.args[2], o.args[1]), err
	})
	cmd.Flags().BoolVar(&loseData, "lose-data", false, loseDataUsage)
	return cmd
}

func lostCommand() *cobra.Command {
	loseData := false
	cmd := ordering(&cobra.Command{
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
	}, 1, func(ctx context.Context, o *order) (*osdmap.State, string, error) {
		s, err := o.Lost(ctx, o.volume, o.hosts[0], loseData)
		return s, fmt.Sprintf("The volume does not wait for what %s had.", o.args[1]), err
	})
	cmd.Flags().BoolVar(&loseData, "lose-data", false, loseDataUsage)
	return cmd
}

func promoteCommand() *cobra.Command {
	return ordering(&cobra.Command{
		Use:   "promote VOLUME HOST [flags]",
		Short: "Make another host the primary of a volume",
		Long: `Makes another host of the acting set the primary, and waits until it serves. Nothing is
lost, and clients go on: the new primary completes their requests in flight.`,
		Example: "  mcblock volume promote vol h2",
		Args:    cli.ExactArgs("a volume", "a host"),
	}, 1, func(ctx context.Context, o *order) (*osdmap.State, string, error) {
		ctx, cancel := context.WithTimeout(ctx, 4*o.timeout)
		defer cancel()
		s, err := o.Promote(ctx, o.volume, o.hosts[0])
		if err != nil {
			return nil, "", fmt.Errorf("%s: %w", o.args[1], err)
		}
		if now := s.Volume(o.volume); now != nil && now.Map.Primary.ID != o.hosts[0] {
			return nil, "", fmt.Errorf("%s was made the primary, and then %s took its place: see its log", o.args[1], s.HostName(now.Map.Primary.ID))
		}
		return s, fmt.Sprintf("%s is the primary.", o.args[1]), nil
	})
}

func minSizeCommand() *cobra.Command {
	n := 0
	return ordering(&cobra.Command{
		Use:   "min-size VOLUME COPIES [flags]",
		Short: "Set the minimum number of copies of a volume",
		Long: `Sets min_size: with fewer up-to-date copies the volume waits, and goes on when enough are
back. It can be lowered for a volume that waits, and raised up to the number of copies
that are currently up to date.

With 1 a single remaining copy takes writes, which are lost if its disk fails.`,
		Example: "  mcblock volume min-size vol 1",
		Args: func(cmd *cobra.Command, args []string) error {
			if err := cli.ExactArgs("a volume", "a number of copies")(cmd, args); err != nil {
				return err
			}
			var err error
			if n, err = strconv.Atoi(args[1]); err != nil || n < 1 {
				return cli.Usagef("%q: want a number of copies from 1 on", args[1])
			}
			return nil
		},
	}, 0, func(ctx context.Context, o *order) (*osdmap.State, string, error) {
		s, err := o.MinSize(ctx, o.volume, n)
		return s, fmt.Sprintf("The volume waits with fewer than %d.", n), err
	})
}
