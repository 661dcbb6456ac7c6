package main

import (
	"time"

	"github.com/spf13/cobra"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/cmd/internal/cli"
)

// bgpCommand shows BGP sessions.
func bgpCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "bgp [flags]",
		Short: "Show switches' BGP neighbors",
		Long: `Shows the BGP sessions of agents that learn their routes by BGP: the neighbor, its
address and AS number, the state of the session and since when, and how many prefixes
were received from it, were accepted, and were advertised to it, with which next hop:
the neighbor sends packets there, so it must be an address of the data network (agents
take each other's address of the session for the switch).

States are those of RFC 4271. Only Established is good; "no link" says that no link to
the neighbor is up, so that there is no session.

The JSON is a list with the address of each agent and the field "bgp" of its
GetStatusResponse (api/mcrdma/v1/switch.proto).`,
		Example:           "  switchctl bgp\n  switchctl bgp --agent 192.0.2.1:9560 -o json",
		Args:              cli.NoArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	return asking(cmd, getStatus, func(answers []answer[*mcrdmav1.GetStatusResponse], _ []string) string {
		var rows [][]any
		for _, a := range answers {
			for _, r := range bgpRows(a.got.GetBgp(), cli.Now(cmd.Context())) {
				rows = append(rows, append([]any{a.agent.Address.HostPort}, r...))
			}
		}
		return agentTable(len(answers) > 1, bgpHeader, rows)
	}, nil, "bgp")
}

var bgpHeader = []string{"bgp neighbor", "address", "as", "state", "since", "received", "accepted", "advertised", "next hop"}

func bgpRows(list []*mcrdmav1.BgpNeighbor, now time.Time) (rows [][]any) {
	for _, n := range list {
		rows = append(rows, []any{n.GetSwitch(), n.GetAddress(), n.GetAsn(), n.GetState(), cli.Since(n.GetSince(), now),
			n.GetReceived(), n.GetAccepted(), n.GetAdvertised(), n.GetNextHop()})
	}
	return rows
}
