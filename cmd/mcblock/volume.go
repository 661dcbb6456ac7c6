package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/mcrdma/mcrdma/cmd/internal/cli"
	"github.com/mcrdma/mcrdma/cmd/mcblock/internal/config"
	"github.com/mcrdma/mcrdma/internal/cmdline"
	"github.com/mcrdma/mcrdma/pkg/replica/core"
	"github.com/mcrdma/mcrdma/pkg/replica/osdmap"
)

// createOptions are the flags of create.
type createOptions struct {
	size, block int
	minSize     int
	hosts       []string
	allow       []string
	overcommit  bool
}

func createCommand() *cobra.Command {
	var o createOptions
	cmd := &cobra.Command{
		Use:   "create NAME --size BYTES [flags]",
		Short: "Create a volume",
		Long: `Creates a volume with a copy on each of the given hosts. It reads as zeros, and takes
space as it is written. So volumes may be larger together than the hosts' disks; a single
one, or one on a host whose disk is full, only with --overcommit: make sure then that it
is never written completely.

With fewer than min_size up-to-date copies the volume waits: no request fails, and it
goes on when enough copies are back. By default min_size is all copies but one, and at
least one; with 1 a single remaining copy takes writes, which are lost if its disk fails.

The JSON is the volume, as in "mcblock volume list".`,
		Example: `  mcblock volume create vol --size 10G
  mcblock volume create db --size 1T --hosts h1,h2,h3 --min-size 2`,
		Args: cli.ExactArg("one volume"),
	}
	f, flags := cmd.Flags(), addClusterFlags(cmd)
	f.Var((*cmdline.Size)(&o.size), "size", "`bytes`, such as 512M, 10G or 1T")
	f.StringSliceVar(&o.hosts, "hosts", nil, "`names` of the hosts that have a copy, with commas; default: all hosts, if they are three or fewer")
	f.StringSliceVar(&o.allow, "allow", nil, "`names` of the clients that may open it, as for \"volume allow\", with commas; default: all that may connect")
	o.block = 4096
	f.Var((*cmdline.Size)(&o.block), "block-size", "`bytes` that reads and writes are whole multiples of: a power of two, 512 to 64K")
	f.IntVar(&o.minSize, "min-size", 0, "`copies` without which the volume waits; default: all but one, and at least one")
	f.BoolVar(&o.overcommit, "overcommit", false, "create it even if the disk of one of its hosts is smaller, or full")
	out := cli.AddOutputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		switch changed := cmd.Flags().Changed; {
		case !changed("size"):
			return cli.Usagef("a size is needed: --size 10G")
		case o.size == 0:
			return cli.Usagef("--size 0: a volume has at least one block, of %d bytes", o.block)
		case changed("allow") && len(clientNames(o.allow)) == 0:
			return cli.Usagef("--allow: no client is named, and then no list would be kept: leave it out for a volume that all may open")
		case changed("hosts") && len(o.hosts) == 0:
			return cli.Usagef("--hosts: no host is named; leave it out for all that there are")
		case changed("min-size") && o.minSize < 1:
			return cli.Usagef("--min-size %d: want 1 or more", o.minSize)
		}
		if err := cli.NameList("--hosts", o.hosts); err != nil {
			return err
		}
		return flags.with(cmd.Context(), func(ctx context.Context, c *cluster) error {
			wanted := o.wanted(c.cfg)
			s, err := knownHosts(ctx, c.Read, wanted, cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			v, minSize, err := o.volume(&s, args[0], wanted)
			if err != nil {
				return err
			}
			hosts := ask(ctx, c.cfg, s.Hosts, min(flags.timeout, noteTime))
			if err := o.fits(&s, v, hosts); err != nil {
				return err
			}
			first := osdmap.FirstMap(v, minSize)
			if err := c.Create(ctx, v, first); err != nil {
				return err
			}
			silent(cmd.ErrOrStderr(), &s, v, minSize, hosts)
			return showVolume(cmd.OutOrStdout(), out, &s, osdmap.VolumeState{Volume: v, Map: first}, nil)
		})
	}
	return cmd
}

// startTime is how long a host that has just started may take to be known.
const startTime = 5 * time.Second

// wanted returns the names of the hosts that are to have copies; none: that is not known. The hosts
// that run etcd are among those by default, even if they are not known yet: the volume would have
// fewer copies than it should.
func (o *createOptions) wanted(cfg *config.Config) []string {
	if len(o.hosts) > 0 {
		return o.hosts
	}
	return each(cfg.Etcd.Members, func(m config.Member) string { return m.Name })
}

// knownHosts reads the state, and waits for hosts that have just started. Without names it waits
// for one host.
func knownHosts(ctx context.Context, read func(context.Context) (osdmap.State, error), names []string, stderr io.Writer) (osdmap.State, error) {
	const pause = 200 * time.Millisecond
	for waited := time.Duration(0); ; waited += pause {
		s, err := read(ctx)
		missing := unknown(&s, names)
		if err != nil || len(missing) == 0 && len(s.Hosts) > 0 || waited >= startTime {
			return s, err
		}
		if waited == 5*pause {
			fmt.Fprintf(stderr, "mcblock volume create: waiting for %s to run\n", cmp.Or(cli.All(missing), "a host"))
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return s, ctx.Err()
		}
	}
}

// unknown returns those names of which there is no host.
func unknown(s *osdmap.State, names []string) (missing []string) {
	for _, name := range names {
		if !slices.ContainsFunc(s.Hosts, func(h osdmap.Host) bool { return h.Name == name }) {
			missing = append(missing, name)
		}
	}
	return missing
}

// volume returns the volume to create; wanted are the hosts without which there is none. Errors are usage errors.
func (o *createOptions) volume(s *osdmap.State, name string, wanted []string) (v osdmap.Volume, minSize int, err error) {
	v = osdmap.Volume{ID: newID(), Name: name, Size: int64(o.size), BlockSize: o.block, Created: time.Now(), Allow: clientNames(o.allow)}
	all, hosts := hostNames(s.Hosts), o.hosts
	switch {
	case len(all) == 0:
		return v, 0, fmt.Errorf("no host has run yet: start \"mcblock serve\" on those that are to have copies")
	case len(hosts) == 0 && len(all) > 3:
		return v, 0, cli.Usagef("there are %d hosts: choose with --hosts from %s", len(all), strings.Join(all, ", "))
	case len(hosts) == 0:
		if missing := unknown(s, wanted); len(missing) > 0 {
			return v, 0, cli.Usagef("of the hosts that the configuration names, %s never ran: start \"mcblock serve\" there, or choose with --hosts from %s", cli.All(missing), cli.All(all))
		}
		hosts = all
	}
	for _, name := range hosts {
		id, err := hostNamed(s, name)
		if err != nil {
			return v, 0, cli.Usage(fmt.Errorf("--hosts: %w", err))
		}
		v.Hosts = append(v.Hosts, id)
	}
	minSize = cmp.Or(o.minSize, max(1, len(v.Hosts)-1))
	if err := cmp.Or(v.Check(), v.CheckMap(osdmap.FirstMap(v, minSize))); err != nil {
		return v, 0, cli.Usage(err)
	}
	return v, minSize, nil
}

// fits checks that the hosts that answer can hold the volume. Errors are usage errors.
func (o *createOptions) fits(s *osdmap.State, v osdmap.Volume, hosts map[core.ID]told) error {
	size := uint64(v.Size) //nolint:gosec // above 0
	for _, id := range v.Hosts {
		longest, disk, free := hosts[id].GetLargestBytes(), hosts[id].GetDataBytes(), hosts[id].GetFreeBytes()
		if longest > 0 && size > longest {
			return cli.Usagef("--size: no file on %s, where the copy would be, can have more than %d bytes: choose a smaller size, or other hosts", s.HostName(id), longest)
		}
		if disk > 0 && size > disk && !o.overcommit {
			return cli.Usagef("--size: the disk of %s has %d bytes in all, and so the volume could never be full: choose a smaller size, other hosts, or --overcommit", s.HostName(id), disk)
		}
		if size > free && float64(free) < hardlyFree*float64(disk) && !o.overcommit {
			return cli.Usagef("the disk of %s is full, or will be at any moment, and its copy would end: make room there, or choose other hosts, or --overcommit", s.HostName(id))
		}
	}
	return nil
}

// newID draws a number that no volume has or had.
func newID() uint64 {
	for {
		var b [8]byte
		rand.Read(b[:]) // it does not fail
		if id := binary.LittleEndian.Uint64(b[:]); id != 0 {
			return id
		}
	}
}

// noteTime is how long to wait for hosts' answers if nothing depends on them.
const noteTime = 2 * time.Second

// silent says which hosts of a volume do not answer, and the consequences.
func silent(w io.Writer, s *osdmap.State, v osdmap.Volume, minSize int, hosts map[core.ID]told) {
	away := 0
	for _, id := range v.Hosts {
		err := hosts[id].err
		if code := status.Code(err); code == codes.Unavailable || code == codes.DeadlineExceeded {
			away++
			fmt.Fprintf(w, "%s has no copy yet: its mcblock does not answer at %s (%s): start it\n", s.HostName(id), s.Host(id).Peer, cli.Clean(err.Error()))
		}
	}
	if len(v.Hosts)-away < minSize {
		fmt.Fprintf(w, "the volume waits until %d of its hosts are there\n", minSize)
	}
}

func listCommand() *cobra.Command {
	return asking(&cobra.Command{
		Use:   "list [flags]",
		Short: "List the volumes",
		Long: `Lists the volumes, with their present primaries and acting sets.

The JSON is a list of volumes, with id (hexadecimal), name, size and block_size (bytes),
min_size, epoch, primary, acting, hosts, created, and allow, the clients that may open
it.`,
		Example: "  mcblock volume list\n  mcblock volume list -o json",
	}, func(ctx context.Context, c *cluster, cmd *cobra.Command, out *cli.Output) error {
		s, err := c.Read(ctx)
		if err != nil {
			return err
		}
		for _, fault := range s.Faults {
			fmt.Fprintf(cmd.ErrOrStderr(), "%v\n", fault)
		}
		return writeVolumes(cmd.OutOrStdout(), out, &s)
	})
}

func writeVolumes(w io.Writer, out *cli.Output, s *osdmap.State) error {
	list := volumes(s)
	if out.IsJSON() {
		return out.JSON(w, list)
	}
	rows := each(list, func(v volumeView) []any {
		return []any{v.Name, v.Size, v.Epoch, v.Primary, strings.Join(v.Acting, ","), strings.Join(v.Hosts, ","), v.MinSize}
	})
	return out.Table(w, []string{"volume", "bytes", "epoch", "primary", "acting", "hosts", "min_size"}, rows)
}

func showCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "show NAME [flags]",
		Short: "Show a volume",
		Long: `Shows a volume, the role of each of its hosts in its map, and what each reports.

The JSON is the volume, as in "mcblock volume list", with parts, the hosts' reports, as in
"mcblock status".`,
		Example: "  mcblock volume show vol",
		Args:    cli.ExactArg("one volume"),
	}
	out, flags := cli.AddOutputFlag(cmd), addClusterFlags(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return flags.onVolume(cmd.Context(), args[0], func(ctx context.Context, c *cluster, s *osdmap.State, v osdmap.VolumeState) error {
			one := osdmap.State{Hosts: s.Hosts, Volumes: []osdmap.VolumeState{v}}
			live := parts(&one, ask(ctx, c.cfg, s.Hosts, min(flags.timeout, noteTime)))
			return showVolume(cmd.OutOrStdout(), out, s, v, live)
		})
	}
	return cmd
}

func showVolume(w io.Writer, out *cli.Output, s *osdmap.State, v osdmap.VolumeState, live []partView) error {
	j := volume(s, v)
	if out.IsJSON() {
		return out.JSON(w, struct {
			volumeView
			Parts []partView `json:"parts"`
		}{j, append([]partView{}, live...)})
	}
	fmt.Fprintf(w, "volume %s, %d bytes in blocks of %d, number %s, made %s\nepoch %d, min_size %d\nclients: %s\n\n", j.Name, j.Size, j.BlockSize, j.ID,
		j.Created.Format(time.DateTime), j.Epoch, j.MinSize, clientList(j.Allow))
	var rows [][]any
	for _, id := range v.Volume.Hosts {
		role, incarnation := "not acting", any("")
		if i := slices.IndexFunc(v.Map.Acting, func(m core.Member) bool { return m.ID == id }); i >= 0 {
			role, incarnation = "acting", v.Map.Acting[i].Incarnation
			if v.Map.Acting[i] == v.Map.Primary {
				role = "primary"
			}
		}
		at := ""
		if h := s.Host(id); h != nil {
			at = h.NBD
		}
		rows = append(rows, []any{s.HostName(id), role, incarnation, at})
	}
	if err := out.Table(w, []string{"host", "role", "incarnation", "nbd"}, rows); err != nil {
		return err
	}
	return writeParts(w, out, live)
}

func deleteCommand() *cobra.Command {
	sure := false
	cmd := &cobra.Command{
		Use:   "delete NAME --yes",
		Short: "Delete a volume and all its copies",
		Long: `Deletes a volume. Its hosts end its clients' connections, and remove their copies. The
command waits until those hosts that answer have done the former: then another volume may
have its name, and no client writes to the old one.`,
		Example: "  mcblock volume delete vol --yes",
		Args:    cli.ExactArg("one volume"),
	}
	flags := addClusterFlags(cmd)
	cmd.Flags().BoolVar(&sure, "yes", false, "confirm that the data is no longer needed")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if !sure {
			return cli.Usagef("all data of volume %s would be lost: confirm with --yes", args[0])
		}
		return flags.onVolume(cmd.Context(), args[0], func(ctx context.Context, c *cluster, s *osdmap.State, v osdmap.VolumeState) error {
			if err := c.Delete(ctx, v.Volume.ID); err != nil {
				return err
			}
			if left := leave(ctx, c, s, v.Volume); len(left) > 0 {
				fmt.Fprintf(cmd.ErrOrStderr(), "%s may still serve its clients, until it knows of this\n", cli.All(left))
			}
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "deleted %s\n", args[0])
			return err
		})
	}
	return cmd
}

// leave waits until hosts have closed a volume that was deleted, and returns those that do not answer,
// or have not within the time for an answer.
func leave(ctx context.Context, c *cluster, s *osdmap.State, v osdmap.Volume) []string {
	limited, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	hosts := slices.DeleteFunc(slices.Clone(s.Hosts), func(h osdmap.Host) bool { return !slices.Contains(v.Hosts, h.ID) })
	for {
		all := ask(limited, c.cfg, hosts, min(c.timeout, noteTime))
		hosts = slices.DeleteFunc(hosts, func(h osdmap.Host) bool {
			t := all[h.ID]
			return t.err == nil && ofVolume(t.GetVolumes(), v.ID) == nil
		})
		waits := slices.ContainsFunc(hosts, func(h osdmap.Host) bool { return all[h.ID].err == nil })
		if !waits || limited.Err() != nil {
			return hostNames(hosts)
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-limited.Done():
		}
	}
}
