package main

import (
	"io"
	"time"

	"github.com/spf13/cobra"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/cmd/internal/cli"
	"github.com/mcrdma/mcrdma/cmd/switchctl/internal/agents"
)

// bgpCommand shows BGP sessions.
func bgpCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "bgp [flags]",
		Short: "Show switches' BGP neighbors",
		Long: `Shows the BGP sessions of agents that learn their routes by BGP: the neighbor, its
address and AS number, the state of the session and since when, and how many prefixes
were received from it, were accepted, and were advertised to it.

States are those of RFC 4271. Only Established is good; "no link" says that no link to
the neighbor is up, so that there is no session.

The JSON is that of status: the neighbors are in "bgp".`,
		Example:           "  switchctl bgp\n  switchctl bgp --agent 192.0.2.1:9560 -o json",
		Args:              cli.NoArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	out, client := cli.AddOutputFlag(cmd), addClientFlags(cmd, true, false)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		ctx := cmd.Context()
		answers, failed, err := queryAgents(ctx, client, func(a *agents.Agent) (*mcrdmav1.GetStatusResponse, error) {
			return a.Status.GetStatus(ctx, &mcrdmav1.GetStatusRequest{})
		})
		if err != nil {
			return err
		}
		return show(cmd, out, answers, failed, func(w io.Writer) error {
			var rows [][]any
			for _, a := range answers {
				for _, r := range bgpRows(a.got.GetBgp(), time.Now()) {
					rows = append(rows, append([]any{a.agent.Address.HostPort}, r...))
				}
			}
			header, rows := agentColumn(len(answers) > 1, bgpHeader, rows)
			return out.Table(w, header, rows)
		})
	}
	return cmd
}

var bgpHeader = []string{"bgp neighbor", "address", "as", "state", "since", "received", "accepted", "advertised"}

func bgpRows(list []*mcrdmav1.BgpNeighbor, now time.Time) (rows [][]any) {
	for _, n := range list {
		rows = append(rows, []any{n.GetSwitch(), n.GetAddress(), n.GetAsn(), n.GetState(), cli.Since(n.GetSince(), now),
			n.GetReceived(), n.GetAccepted(), n.GetAdvertised()})
	}
	return rows
}
