package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/cmd/internal/cli"
)

// watchCommand shows events as they happen.
func watchCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "watch [flags]",
		Short: "Show events of groups as they happen",
		Long: `Shows, until an interrupt, the events of groups whose sender is this host (formed,
suspected, recovered, removed, reform, ended), of its applications' memberships (joined,
left), and of its switch's agent (agent lost and back; agent not ready, when it has lost
its switch, and ready). The first line says that it watches. Users see their own, and
root sees all.

The JSON is one WatchEventsResponse (api/mcrdma/v1/daemon.proto) in each line.`,
		Example: "  cmd-daemon watch\n  cmd-daemon watch --json | jq .kind",
		Args:    cli.NoArgs,
	}
	asking(cmd, func(q question) error {
		ctx, stop := cli.Interruptible(q)
		defer stop()
		events, err := q.WatchEvents(ctx, &mcrdmav1.WatchEventsRequest{})
		for err == nil {
			var e *mcrdmav1.WatchEventsResponse
			if e, err = events.Recv(); err == nil {
				cli.CleanMessage(e)
				if err := writeEvent(q.w, q.out, e); err != nil {
					return err
				}
			}
		}
		if ctx.Err() != nil {
			return nil
		}
		return q.Callee.Explain("WatchEvents", err)
	})
	return cmd
}

// writeEvent writes one line.
func writeEvent(w io.Writer, out *cli.Output, e *mcrdmav1.WatchEventsResponse) error {
	if out.IsJSON() {
		text, err := cli.MessageJSON(e)
		if err != nil {
			return err
		}
		var line bytes.Buffer
		if err := json.Compact(&line, text); err != nil {
			return err
		}
		_, err = fmt.Fprintln(w, line.String())
		return err
	}
	group := ""
	if e.GetGroup() != nil {
		group = groupName(e.GetGroup())
	}
	line := fmt.Sprintf("%s  %-10s  %-26s  %-8s  %-15s  %s", e.GetTime().AsTime().Local().Format("15:04:05.000"), e.GetKind(), group, cli.QPN(e.GetMcId()),
		cmp.Or(e.GetHost(), e.GetAddress()), e.GetText())
	if e.GetProgram() != "" {
		line += fmt.Sprintf(" (this host's application: %s, pid %d)", e.GetProgram(), e.GetPid())
	}
	_, err := fmt.Fprintln(w, strings.TrimRight(line, " "))
	return err
}
