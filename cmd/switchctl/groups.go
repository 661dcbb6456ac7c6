package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/cmd/internal/cli"
	"github.com/mcrdma/mcrdma/cmd/switchctl/internal/agents"
	"github.com/mcrdma/mcrdma/internal/grouptree"
)

// groupsCommand lists groups.
func groupsCommand() *cobra.Command {
	var source string
	cmd := &cobra.Command{
		Use:   "groups [flags]",
		Short: "List the groups that are installed at switches",
		Long: `Lists the groups that are installed at the switches of the given agents. A group is
installed at the switch that merges its answers, usually the sender's top-of-rack
switch; --peers asks all agents that can be found.

The JSON is a list with the address of each agent and its ListResponse
(api/mcrdma/v1/switch.proto).`,
		Example: `  switchctl groups
  switchctl groups --agent 192.0.2.1:9560 --peers --source 10.1.0.1`,
		Args: func(cmd *cobra.Command, args []string) error {
			if a, err := netip.ParseAddr(source); source != "" && (err != nil || !a.Is4()) {
				return cli.Usagef("--source %q is not an IPv4 address, such as 10.1.0.11", source)
			}
			return cli.NoArgs(cmd, args)
		},
	}
	cmd.Flags().StringVar(&source, "source", "", "only groups of the sender with this `address`")
	return asking(cmd, func(ctx context.Context, a *agents.Agent, _ []string) (*mcrdmav1.ListResponse, error) {
		return a.Groups.List(ctx, &mcrdmav1.ListRequest{Source: source})
	}, func(answers []answer[*mcrdmav1.ListResponse], _ []string) string {
		return cli.Table{Header: []string{"group", "mc_id", "switch", "sender qpn", "receivers", "lease", "problems"}, Rows: groupRows(answers, cli.Now(cmd.Context()))}.String()
	}, nil)
}

// groupRows returns the rows of a table of groups.
func groupRows(answers []answer[*mcrdmav1.ListResponse], now time.Time) (rows [][]any) {
	for _, a := range answers {
		for _, g := range a.got.GetGroups() {
			rows = append(rows, []any{
				keyText(g), cli.QPN(g.GetGroup().GetKey().GetMcId()), g.GetSwitch(), cli.QPN(g.GetGroup().GetSenderQpn()), len(g.GetGroup().GetReceivers()),
				leaseText(g, now), strings.Join(g.GetProblems(), "; "),
			})
		}
	}
	return rows
}

func keyText(g *mcrdmav1.GroupStatus) string { return grouptree.KeyOf(g.GetGroup().GetKey()) }

// leaseText returns how long a group stays without being renewed.
func leaseText(g *mcrdmav1.GroupStatus, now time.Time) string {
	if g.GetExpires() == nil {
		return "-"
	}
	left := g.GetExpires().AsTime().Sub(now)
	if left < 0 {
		return "expired"
	}
	return cli.Age(left)
}

// groupCommand has the subcommands for one group.
func groupCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "group",
		Short: "Show one group",
	}
	cli.Parent(cmd)
	cmd.AddCommand(groupShowCommand())
	return cmd
}

const groupShowHelp = `Shows the path of a group's packets from its sender to its receivers: at which switches
they are copied, through which ports the copies leave, and what is wrong.

The tree is collected from agent to agent, beginning with the given ones. Any agent will
do if the sender's switch can be found through its peers. Give an agent whose address the
others do not know as --agent SWITCH=HOST:PORT.

A group has a permanent number at its sender's daemon, and an MC_ID at switches and in
packets, which changes when the group is re-formed. Either names the group: the number in
decimal, the MC_ID in hexadecimal after 0x, or also in decimal if no group has that number.

Formats: text; json; dot, for Graphviz; and svg, a drawing that browsers show.

The JSON has source, number, mc_id and ok; group, a GroupStatus (api/mcrdma/v1/switch.proto);
nodes, the switches with their copies, and roots, where the tree begins; and problems.
Roots, and "to" of copies, are places in nodes, from 0.

Exit code 1 means that the group was not found, or that something is wrong with it.`

// groupShowCommand shows a group's tree.
func groupShowCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "show SOURCE/NUMBER|SOURCE/0xMC_ID [flags]",
		Short: "Show a group's tree of switches, and what is wrong with it",
		Long:  groupShowHelp,
		Example: `  switchctl group show 10.1.0.1/3
  switchctl group show 10.1.0.1/0x800001 -o svg > group.svg
  switchctl group show 10.1.0.1/3 -o dot | dot -Tpdf -o group.pdf`,
		Args: cli.ExactArg("one group, " + groupForm),
	}
	out, client := cli.AddOutputFlag(cmd, "dot", "svg"), addClientFlags(cmd, false, false)
	cmd.ValidArgsFunction = completeGroups(client)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		t, err := client.tree(cmd.Context(), args[0])
		if err != nil {
			return err
		}
		w := cmd.OutOrStdout()
		switch out.Format() {
		case cli.FormatJSON:
			err = out.JSON(w, t)
		case "dot":
			err = t.DOT(w)
		case "svg":
			err = t.SVG(w)
		default:
			err = t.Text(w, grouptree.TextOptions{Now: cli.Now(cmd.Context()), Color: cli.Colored(w)})
		}
		if n := len(t.All()); err == nil && n > 0 {
			err = fmt.Errorf("group %v: %s", t.Key, cli.Either(n == 1, "there is a problem", fmt.Sprintf("there are %d problems", n)))
		}
		return err
	}
	return cmd
}

// groupForm describes the names of groups.
const groupForm = "SOURCE/NUMBER or SOURCE/0xMC_ID, such as 10.1.0.1/3 or 10.1.0.1/0x800001"

// tree collects a group's tree. In all, it takes no longer than the timeout of four answers.
func (f *clientFlags) tree(ctx context.Context, name string) (*grouptree.Tree, error) {
	key, err := grouptree.ParseKey(name)
	if err != nil {
		return nil, cli.Usage(err)
	}
	given, err := f.addresses()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, 4*f.timeout)
	defer cancel()
	fleet := f.fleet()
	defer fleet.Close()
	var first []string
	directory := map[string]string{}
	for _, a := range given {
		if _, err := fleet.Agent(a); err != nil { // missing files are reported once
			return nil, err
		}
		first = append(first, a.HostPort)
		if a.Switch != "" {
			directory[a.Switch] = a.HostPort
		}
	}
	if key.ID == 0 {
		if key, err = findNumber(ctx, fleet, given, key); err != nil {
			return nil, err
		}
	}
	return grouptree.Collect(ctx, func(address string) (grouptree.Agent, error) {
		a, err := agents.ParseAddress(address)
		if err != nil {
			return grouptree.Agent{}, fmt.Errorf("agent %w", err)
		}
		agent, err := fleet.Agent(a)
		if err != nil {
			return grouptree.Agent{}, err
		}
		return agent.Agent, nil
	}, key, first, directory, grouptree.Limits{Agents: maxAgents})
}

// findNumber asks agents, the given ones first, for the group with that number at its sender's
// daemon. If there is none, the number may be an MC_ID.
func findNumber(ctx context.Context, fleet *agents.Fleet, given []agents.Address, key grouptree.Key) (grouptree.Key, error) {
	answered, silent := 0, []error(nil)
	for _, follow := range []bool{false, true} {
		found, _, err := fleet.Discover(ctx, given, follow, maxAgents)
		if err != nil {
			return key, err
		}
		silent = nil
		found = slices.DeleteFunc(found, func(a *agents.Found) bool {
			if a.Err != nil {
				silent = append(silent, a.Err)
			}
			return a.Err != nil
		})
		if answered = len(found); answered == 0 {
			return key, errors.Join(silent...)
		}
		ids := make([]uint32, len(found))
		agents.Each(len(found), func(i int) {
			l, _ := found[i].Agent.Groups.List(ctx, &mcrdmav1.ListRequest{Source: key.Source.String()}) // an agent that does not answer has none
			for _, g := range l.GetGroups() {
				if k := g.GetGroup().GetKey(); k.GetNumber() == key.Number {
					ids[i] = k.GetMcId()
				}
			}
		})
		if key.ID = slices.Max(append(ids, 0)); key.ID != 0 {
			return key, nil
		}
	}
	if key.Number >= 1<<24 {
		err := fmt.Errorf("%w: none of %s knows a group %v; \"switchctl groups --peers\" lists those there are", grouptree.ErrNoGroup, cli.Plural(answered, "agent"), key)
		return key, errors.Join(append([]error{err}, silent...)...)
	}
	key.ID = uint32(key.Number)
	return key, nil
}

// completeGroups completes the groups that the agents know, with a description each.
func completeGroups(f *clientFlags) cobra.CompletionFunc {
	return cli.CompleteArg(func(ctx context.Context) (names []string, err error) {
		fleet := f.fleet()
		defer fleet.Close()
		list, err := f.connect(ctx, fleet)
		if err != nil {
			return nil, err
		}
		answers, _ := askAll(list, func(a *agents.Agent) (*mcrdmav1.ListResponse, error) {
			return a.Groups.List(ctx, &mcrdmav1.ListRequest{})
		})
		for _, a := range answers {
			for _, g := range a.got.GetGroups() {
				names = append(names, fmt.Sprintf("%s\t%d receivers, at %s", keyText(g), len(g.GetGroup().GetReceivers()), g.GetSwitch()))
			}
		}
		return names, nil
	})
}
