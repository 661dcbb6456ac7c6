package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/mcrdma/mcrdma/cmd/internal/cli"
	"github.com/mcrdma/mcrdma/pkg/replica"
	"github.com/mcrdma/mcrdma/pkg/replica/osdmap"
)

// A scrubView is the result of a scrub, in JSON.
type scrubView struct {
	Volume   string          `json:"volume"`
	Size     int64           `json:"size"`     // bytes
	Compared int64           `json:"compared"` // bytes
	Hosts    []string        `json:"hosts"`    // whose copies were compared
	Left     []string        `json:"left"`     // hosts of the volume with copies that were not up to date all the time, which were not compared everywhere
	Bad      []scrubBadView  `json:"bad"`
	Busy     []scrubBusyView `json:"busy"`

	covered map[string]int64 // bytes compared, by host
}

// A scrubBadView is a piece that differs between hosts.
type scrubBadView struct {
	Offset  int64             `json:"offset"`  // bytes
	Length  int64             `json:"length"`  // bytes
	Suspect []string          `json:"suspect"` // that differ from most, or cannot be read
	CRC32C  map[string]string `json:"crc32c"`  // by host, hexadecimal
	Errors  map[string]string `json:"errors"`  // by host
}

// A scrubBusyView is a piece that was not compared.
type scrubBusyView struct {
	Offset int64  `json:"offset"` // bytes
	Length int64  `json:"length"` // bytes
	Why    string `json:"why"`
}

func scrubCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "scrub VOLUME [flags]",
		Short: "Compare the copies of a volume",
		Long: `Compares the copies of all hosts in the acting set by checksums (CRC-32C) of 4 MiB
pieces, as of the same write. The volume may be in use. It reports which host differs
from the majority, or cannot read its disk, and where, and what to do.

It exits with 1 if copies differ, or if not all could be compared, because hosts that
are away are not up to date.

The JSON has volume; size and compared, in bytes; hosts, whose copies were compared, and
left, the other ones; bad, the pieces that differ, with offset, length, suspect, crc32c
and errors; and busy, those that were not compared, with offset, length and why.`,
		Example: "  mcblock volume scrub vol\n  mcblock volume scrub vol -o json",
		Args:    cli.ExactArg("one volume"),
	}
	out, flags := cli.AddOutputFlag(cmd), addClusterFlags(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return operate(cmd, flags, args[0], func(ctx context.Context, o *replica.Operator, s *osdmap.State, v osdmap.VolumeState) error {
			r := scrubView{Volume: args[0], Size: v.Volume.Size, Hosts: []string{}, Left: []string{}, Bad: []scrubBadView{}, Busy: []scrubBusyView{}, covered: map[string]int64{}}
			progress := cli.NewProgress(cmd.ErrOrStderr())
			err := o.Scrub(ctx, v.Volume.ID, func(now *osdmap.State, p replica.Scrubbed) {
				s = now
				r.add(s, &p)
				progress.Say(func() string {
					return fmt.Sprintf("%d of %d MiB, %d places differ", (p.Offset+p.Length)>>20, r.Size>>20, len(r.Bad))
				})
			})
			progress.Done()
			if err != nil {
				return err
			}
			return r.write(cmd.OutOrStdout(), out, s, v.Volume.ID)
		})
	}
	return cmd
}

func (r *scrubView) add(s *osdmap.State, p *replica.Scrubbed) {
	if p.Busy != nil {
		r.Busy = append(r.Busy, scrubBusyView{p.Offset, p.Length, cli.Clean(p.Busy.Error())})
		return
	}
	r.Compared += p.Length
	b := scrubBadView{Offset: p.Offset, Length: p.Length, CRC32C: map[string]string{}, Errors: map[string]string{}}
	for _, x := range p.Sums {
		name := s.HostName(x.Host)
		if !slices.Contains(r.Hosts, name) {
			r.Hosts = append(r.Hosts, name)
		}
		r.covered[name] += p.Length
		if x.Err != nil {
			b.Errors[name] = cli.Clean(x.Err.Error())
		} else {
			b.CRC32C[name] = fmt.Sprintf("%08x", x.CRC)
		}
	}
	if b.Suspect = s.HostNames(p.Wrong()); len(b.Suspect) > 0 {
		r.Bad = append(r.Bad, b)
	}
}

// write shows the result; a problem is an error.
func (r *scrubView) write(w io.Writer, out *cli.Output, s *osdmap.State, id uint64) error {
	v := s.Volume(id)
	if v == nil {
		return fmt.Errorf("volume %s: %w", r.Volume, osdmap.ErrNotFound)
	}
	slices.Sort(r.Hosts)
	for _, h := range v.Volume.Hosts {
		if name := s.HostName(h); r.covered[name] < r.Compared || r.Compared == 0 {
			r.Left = append(r.Left, name)
		}
	}
	if out.IsJSON() {
		if err := out.JSON(w, r); err != nil {
			return err
		}
		return r.verdict()
	}
	fmt.Fprintf(w, "volume %s: %d of %d bytes compared, on %s\n", r.Volume, r.Compared, r.Size, strings.Join(r.Hosts, ", "))
	if len(r.Left) > 0 {
		fmt.Fprintf(w, "%s, since their copies were not up to date: %s\n", r.missed(), strings.Join(r.Left, ", "))
	}
	var rows [][]any
	for _, b := range r.Bad {
		for _, h := range r.Hosts {
			if what := cli.Either(b.Errors[h] != "", b.Errors[h], b.CRC32C[h]); what != "" {
				rows = append(rows, []any{b.Offset, b.Length, h, what, cli.Either(slices.Contains(b.Suspect, h), "suspect", "")})
			}
		}
	}
	for _, b := range r.Busy {
		rows = append(rows, []any{b.Offset, b.Length, "", b.Why, "not compared"})
	}
	if len(rows) > 0 {
		fmt.Fprintln(w)
		if err := out.Table(w, []string{"offset", "bytes", "host", "crc32c", ""}, rows); err != nil {
			return err
		}
	}
	if advice := r.advice(s.HostName(v.Map.Primary.ID), v.Volume.ID); advice != "" {
		fmt.Fprintf(w, "\n%s", advice)
	}
	return r.verdict()
}

// verdict returns the error of the command.
func (r *scrubView) verdict() error {
	switch {
	case len(r.Bad) > 0:
		return fmt.Errorf("the copies of volume %s differ in %d places, or cannot be read there", r.Volume, len(r.Bad))
	case len(r.Busy) > 0:
		return fmt.Errorf("%d places of volume %s could not be compared: try again", len(r.Busy), r.Volume)
	case len(r.Hosts) < 2 && len(r.Left) > 0:
		return errors.New("only one copy is up to date, so nothing was compared: mcblock volume show shows which hosts are missing")
	case len(r.Left) > 0:
		return fmt.Errorf("%s of volume %s %s %s, as not up to date: what was compared is the same", cli.All(r.Left), r.Volume, cli.Either(len(r.Left) == 1, "was", "were"), r.missed())
	}
	return nil
}

// missed says how much of the copies on the hosts of Left was not compared.
func (r *scrubView) missed() string {
	part := slices.ContainsFunc(r.Left, func(h string) bool { return r.covered[h] > 0 })
	return cli.Either(part, "not compared everywhere", "not compared")
}

// advice says how to rebuild a copy.
func (r *scrubView) advice(primary string, id uint64) string {
	bad := map[string]bool{}
	for _, b := range r.Bad {
		for _, h := range b.Suspect {
			bad[h] = true
		}
	}
	switch {
	case len(bad) == 0:
		return ""
	case len(bad) == len(r.Hosts):
		return "No content is with most of the copies, so it is not known which one is right: compare them with a backup, then keep one, as below.\n" + remake(r.Volume, "HOST", id)
	}
	var b strings.Builder
	for _, h := range r.Hosts {
		switch {
		case bad[h] && h == primary:
			fmt.Fprintf(&b, "%s is suspect, and the primary, whose copy others get. First another one:\n  mcblock volume promote %s HOST\n%s", h, r.Volume, remake(r.Volume, h, id))
		case bad[h]:
			fmt.Fprintf(&b, "%s is suspect. %s", h, remake(r.Volume, h, id))
		}
	}
	return b.String()
}

func remake(volume, host string, id uint64) string {
	return fmt.Sprintf("To have the copy of %s made anew from the primary's, check its disk, end mcblock there, and then:\n  mcblock volume lost %s %s\n  rm -r DATA/volumes/%016x     # on %s, where DATA is data of its mcblock.yaml\nand start it again. Or give its place to another host: mcblock volume replace %s %s NEW\n", host, volume, host, id, host, volume, host)
}
