package main

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/spf13/cobra"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/cmd/internal/cli"
	"github.com/mcrdma/mcrdma/cmd/switchctl/internal/agents"
)

// statusCommand shows agents and their switches.
func statusCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "status [flags]",
		Short: "Show switches: ports, peers, hosts, and how full the tables are",
		Long: `Shows the status of agents and their switches. Exit code 1 means that one of them does
not answer or is not ready: it has just started, or has lost its switch. switchctl
doctor checks more, and says what to do.

The JSON is a list with the address of each agent and its GetStatusResponse
(api/mcrdma/v1/switch.proto).`,
		Example: `  switchctl status
  switchctl status --agent 192.0.2.1:9560 --peers`,
		Args: cli.NoArgs,
	}
	return asking(cmd, getStatus, func(answers []answer[*mcrdmav1.GetStatusResponse], _ []string) string {
		var texts []string
		for _, a := range answers {
			if a.err == nil {
				texts = append(texts, statusText(a.agent.Address.HostPort, a.got, cli.Now(cmd.Context())))
			}
		}
		return strings.Join(texts, "\n")
	}, ready)
}

// ready reports whether all agents that have answered are ready.
func ready(answers []answer[*mcrdmav1.GetStatusResponse]) error {
	var waiting []string
	for _, a := range answers {
		if a.got.GetWaitsFor() != "" {
			waiting = append(waiting, a.got.GetName())
		}
	}
	if len(waiting) > 0 {
		return fmt.Errorf("not ready: %s; switchctl doctor says what to do", strings.Join(waiting, ", "))
	}
	return nil
}

// statusText returns one switch's status.
func statusText(address string, s *mcrdmav1.GetStatusResponse, now time.Time) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s, agent %s\n", s.GetName(), address)
	line := func(what, format string, args ...any) {
		fmt.Fprintf(&b, "  %-10s %s\n", what, fmt.Sprintf(format, args...))
	}
	line("version", "%s, up %s", s.GetVersion(), cli.Since(s.GetStarted(), now))
	line("address", "%s", s.GetAddress())
	if why := s.GetWaitsFor(); why != "" {
		line("not ready", "%s", why)
	}
	p := s.GetP4Runtime()
	switch {
	case p.GetConnected() && p.GetPrimary():
		line("P4Runtime", "%s, primary", p.GetTarget())
	case p.GetConnected():
		line("P4Runtime", "%s, not primary", p.GetTarget())
	default:
		line("P4Runtime", "%s, not connected: %s", p.GetTarget(), p.GetError())
	}
	if f := p.GetFastPath(); f != "" {
		line("fast path", "%s", f)
	}
	line("pipeline", "pushed %s, reconnected %s", times(p.GetPushes()), times(p.GetReconnects()))
	if why := p.GetCleared(); why != "" {
		line("cleared", "%s", why)
	}
	line("routing", "%s, %s", s.GetRouting(), cli.Either(s.GetSettled(), "settled", "not settled yet"))
	line("ICRC", "%s", icrcMode(s))
	line("groups", "%d, steps %d", s.GetGroups(), s.GetSteps())
	for _, x := range s.AllProblems() {
		line("problem", "%s", x)
	}
	return b.String() + statusTables(s, now)
}

// statusTables returns the tables of a status that have rows.
func statusTables(s *mcrdmav1.GetStatusResponse, now time.Time) string {
	var ports, peers, hosts, usage [][]any
	sessions := bgpRows(s.GetBgp(), now)
	for _, p := range s.GetPorts() {
		ports = append(ports, []any{p.GetPort(), cmp.Or(p.GetNeighbor(), "(hosts)"), p.GetState(), p.GetMac(), cli.Since(p.GetSince(), now), p.GetReason()})
	}
	for _, p := range s.GetPeers() {
		peers = append(peers, []any{p.GetName(), p.GetAgent(), peerState(p), p.GetBranches(), p.GetHeld(), p.GetError()})
	}
	for _, h := range s.GetHosts() {
		hosts = append(hosts, []any{h.GetAddress(), h.GetMac(), h.GetPort()})
	}
	for _, u := range s.GetUsage() {
		full := ""
		if u.GetSize() > 0 {
			full = fmt.Sprintf("%.0f %%", 100*float64(u.GetUsed())/float64(u.GetSize()))
		}
		usage = append(usage, []any{u.GetResource(), u.GetUsed(), unlessZero(u.GetSize()), full})
	}
	return cli.Tables(
		cli.Table{Header: []string{"port", "neighbor", "state", "mac", "since", "reason"}, Rows: ports},
		cli.Table{Header: bgpHeader, Rows: sessions},
		cli.Table{Header: []string{"peer", "agent", "state", "branches there", "held here", "error"}, Rows: peers},
		cli.Table{Header: []string{"host", "mac", "port"}, Rows: hosts},
		cli.Table{Header: []string{"table", "used", "size", "full"}, Rows: usage})
}

// peerState returns the state of an agent's connection with another.
func peerState(p *mcrdmav1.PeerStatus) string {
	switch {
	case p.GetAgent() == "":
		return "not programmable"
	case p.GetReachable():
		return "reachable"
	case p.GetError() == "":
		return "not needed yet"
	}
	return "unreachable"
}

// routesCommand shows unicast routes.
func routesCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "routes [ADDRESS] [flags]",
		Short: "Show switches' unicast routes",
		Long: `Shows the unicast routes of switches, with their next hops and ports. With an address,
shows only the route of packets to it.

A route without a port is for the switch itself, or for a subnet of its hosts, or is
unreachable; the note says which.

The JSON is a list with the address of each agent and its ListRoutesResponse
(api/mcrdma/v1/switch.proto).`,
		Example: `  switchctl routes
  switchctl routes 10.2.0.11 --agent 192.0.2.1:9560`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 1 {
				return cli.Usagef("%d arguments: at most one address", len(args))
			}
			for _, arg := range args {
				if to, err := netip.ParseAddr(arg); err != nil || !to.Is4() {
					return cli.Usagef("%q is not an IPv4 address, such as 10.2.0.11", arg)
				}
			}
			return nil
		},
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	return asking(cmd, func(ctx context.Context, a *agents.Agent, args []string) (*mcrdmav1.ListRoutesResponse, error) {
		r, err := a.Status.ListRoutes(ctx, &mcrdmav1.ListRoutesRequest{})
		if err == nil && len(args) > 0 {
			r.Routes = routeTo(r.GetRoutes(), netip.MustParseAddr(args[0]))
		}
		return r, err
	}, func(answers []answer[*mcrdmav1.ListRoutesResponse], args []string) string {
		rows := routeRows(answers)
		if len(rows) == 0 && len(args) > 0 {
			return fmt.Sprintf("no route to %s\n", args[0])
		}
		return agentTable(len(answers) > 1, []string{"prefix", "port", "neighbor", "mac", "next hop", "note"}, rows)
	}, nil)
}

// routeTo keeps the route with the longest prefix that contains the address.
func routeTo(routes []*mcrdmav1.RouteStatus, to netip.Addr) (best []*mcrdmav1.RouteStatus) {
	bits := -1
	for _, r := range routes {
		p, err := netip.ParsePrefix(r.GetPrefix())
		if err == nil && p.Contains(to) && p.Bits() > bits {
			best, bits = []*mcrdmav1.RouteStatus{r}, p.Bits()
		}
	}
	return best
}

// routeRows returns a row for each next hop; the first column is the agent.
func routeRows(answers []answer[*mcrdmav1.ListRoutesResponse]) (rows [][]any) {
	for _, a := range answers {
		for _, r := range a.got.GetRoutes() {
			from, prefix, note := a.agent.Address.HostPort, r.GetPrefix(), r.GetNote()
			if len(r.GetHops()) == 0 {
				rows = append(rows, []any{from, prefix, "", "", "", "", cmp.Or(note, "unreachable")})
			}
			for _, h := range r.GetHops() {
				rows = append(rows, []any{from, prefix, h.GetPort(), cmp.Or(h.GetNeighbor(), "(host)"), h.GetMac(), h.GetNextHop(), note})
				from, prefix, note = "", "", ""
			}
		}
	}
	return rows
}

func times(n uint64) string {
	if n == 1 {
		return "once"
	}
	return fmt.Sprintf("%d times", n)
}

func unlessZero(n uint64) any {
	if n == 0 {
		return ""
	}
	return n
}

// icrcMode describes how the agent handles the ICRC. Agents of earlier releases have two modes.
func icrcMode(s *mcrdmav1.GetStatusResponse) string {
	switch {
	case s.GetIcrcOff():
		return "not checked, not recomputed"
	case s.GetIcrc() == "auto":
		return "auto: kept right in copies where that can be, else checked and recomputed"
	case s.GetIcrc() == "neutral":
		return "neutral: kept right in copies"
	}
	return "checked and recomputed"
}
