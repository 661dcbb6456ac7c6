package main

import (
	"cmp"
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/mcrdma/mcrdma/cmd/internal/cli"
	"github.com/mcrdma/mcrdma/pkg/replica/osdmap"
	"github.com/mcrdma/mcrdma/pkg/replica/osdmap/etcd"
)

// A statusView is the status in JSON.
type statusView struct {
	Etcd    []memberView  `json:"etcd"`
	Hosts   []osdmap.Host `json:"hosts"`
	Volumes []volumeView  `json:"volumes"`
	Parts   []partView    `json:"parts"`
	Faults  []string      `json:"faults"` // records that cannot be read
}

// A memberView is a member of etcd in JSON.
type memberView struct {
	Name    string `json:"name"`
	Client  string `json:"client"`
	Peer    string `json:"peer"`
	Leader  bool   `json:"leader"`
	Version string `json:"version,omitempty"`
	Size    int64  `json:"size,omitempty"` // bytes of its database
	Error   string `json:"error,omitempty"`
}

func statusCommand() *cobra.Command {
	return asking(&cobra.Command{
		Use:   "status [flags]",
		Short: "Show etcd, the hosts and the volumes",
		Long: `Shows the members of etcd and whether each answers, the hosts, the volumes with their
current maps, and each host's report on each of its volumes: its state, the entries in
its log, how many of them are durable, the age of the oldest unanswered request of its
clients, and why requests wait, as far as it knows. It fails if etcd has no majority, but
still shows which members answer. "mcblock doctor" says what is wrong.

The JSON has etcd, the members, as in "mcblock etcd members"; hosts; volumes, as in
"mcblock volume list"; parts, the hosts' reports, with volume, host, state, epoch, served,
head, durable and stored (entries of the log), backfilling, copied_bytes,
oldest_request_seconds, waits and error; and faults, the records that cannot be read.`,
		Example: "  mcblock status\n  mcblock status -o json",
	}, func(ctx context.Context, c *cluster, cmd *cobra.Command, out *cli.Output) error {
		members, err := c.members(ctx)
		if err != nil {
			return err
		}
		s, away := c.Read(ctx)
		var live []partView
		if len(s.Volumes) > 0 {
			live = parts(&s, ask(ctx, c.cfg, s.Hosts, c.timeout))
		}
		if err := writeStatus(cmd.OutOrStdout(), out, members, &s, live, away == nil); err != nil {
			return err
		}
		return away
	})
}

func memberViews(members []etcd.Member) []memberView {
	return each(members, func(m etcd.Member) memberView {
		v := memberView{Name: m.Name, Client: m.Client, Peer: m.Peer, Leader: m.Leader, Version: m.Version, Size: m.Size}
		if m.Err != nil {
			v.Error = cli.Clean(m.Err.Error())
		}
		return v
	})
}

// writeStatus writes what is known: without a majority of etcd, only its members.
func writeStatus(w io.Writer, out *cli.Output, members []etcd.Member, s *osdmap.State, live []partView, known bool) error {
	list := memberViews(members)
	if out.IsJSON() {
		return out.JSON(w, statusView{Etcd: list, Hosts: append([]osdmap.Host{}, s.Hosts...), Volumes: volumes(s), Parts: append([]partView{}, live...),
			Faults: each(s.Faults, error.Error)})
	}
	if err := writeMembers(w, out, list); err != nil || !known {
		return err
	}
	hosts := each(s.Hosts, func(h osdmap.Host) []any { return []any{h.Name, uint32(h.ID), h.Peer, h.NBD, h.Device} })
	fmt.Fprintln(w)
	if err := out.Table(w, []string{"host", "number", "peer", "nbd", "device"}, hosts); err != nil {
		return err
	}
	fmt.Fprintln(w)
	if err := writeVolumes(w, out, s); err != nil {
		return err
	}
	if err := writeParts(w, out, live); err != nil {
		return err
	}
	for _, f := range s.Faults {
		if _, err := fmt.Fprintf(w, "\n%v\n", f); err != nil {
			return err
		}
	}
	return nil
}

func writeMembers(w io.Writer, out *cli.Output, list []memberView) error {
	rows := each(list, func(m memberView) []any {
		return []any{m.Name, m.Client, m.Peer, m.Version, cmp.Or(m.Error, cli.Either(m.Leader, "leader", "follows"))}
	})
	return out.Table(w, []string{"etcd", "client", "peer", "version", "state"}, rows)
}
