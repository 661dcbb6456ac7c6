package main

import (
	"context"
	"fmt"
	"io"
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
		Long: `Lists the groups that were installed at the switches whose agents are asked. A
group is installed at the switch where its sender's answers are merged, which is
usually the sender's top-of-rack switch; --peers asks all agents that can be found.

The JSON is a list with the address of each agent and its ListResponse
(api/mcrdma/v1/switch.proto).`,
		Example: `  switchctl groups
  switchctl groups --agent 192.0.2.1:9560 --peers --source 10.1.0.1`,
		Args: cli.NoArgs,
	}
	cmd.Flags().StringVar(&source, "source", "", "only groups of the sender with this `address`")
	return asking(cmd, func(ctx context.Context, a *agents.Agent, _ []string) (*mcrdmav1.ListResponse, error) {
		return a.Groups.List(ctx, &mcrdmav1.ListRequest{Source: source})
	}, func(w io.Writer, out *cli.Output, answers []answer[*mcrdmav1.ListResponse], _ []string) error {
		return out.Table(w, []string{"group", "mc_id", "switch", "sender qpn", "receivers", "lease", "problems"}, groupRows(answers, time.Now()))
	})
}

// groupRows are the rows of a table of groups.
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

// leaseText is how long a group stays unless it is renewed.
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

// groupCommand holds what there is to do with one group.
func groupCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "group",
		Short: "Look at one group",
	}
	cli.Parent(cmd)
	cmd.AddCommand(groupShowCommand())
	return cmd
}

const groupShowHelp = `Shows how a group's packets go from its sender to its receivers: at which switch
they are copied, by which ports the copies leave, and what is wrong.

The tree is collected from agent to agent, beginning at those that are named. Any
agent will do as long as the sender's switch can be found through its peers.
An agent whose address the others do not know is given as --agent SWITCH=HOST:PORT.

Formats: text; json; dot, for Graphviz; and svg, a drawing that browsers show.

Exit code 1 tells that the group was not found, or that something is wrong with it.`

// groupShowCommand shows a group's tree.
func groupShowCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "show SOURCE/MC_ID [flags]",
		Short: "Show a group's tree of switches, and what is wrong with it",
		Long:  groupShowHelp,
		Example: `  switchctl group show 10.1.0.1/2049
  switchctl group show 10.1.0.1/0x801 -o svg > group.svg
  switchctl group show 10.1.0.1/2049 -o dot | dot -Tpdf -o group.pdf`,
		Args: cli.ExactArg("one group, SOURCE/MC_ID, such as 10.1.0.1/2049"),
	}
	out, client := cli.AddOutputFlag(cmd, "dot", "svg"), addClientFlags(cmd, false, false)
	cmd.ValidArgsFunction = completeGroups(client)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		key, err := grouptree.ParseKey(args[0])
		if err != nil {
			return cli.Usage(err)
		}
		t, err := client.tree(cmd.Context(), key)
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
			err = t.Text(w, grouptree.TextOptions{Now: time.Now(), Color: cli.Colored(w)})
		}
		if n := len(t.All()); err == nil && n > 0 {
			err = fmt.Errorf("group %v: %s", key, cli.Either(n == 1, "there is a problem", fmt.Sprintf("there are %d problems", n)))
		}
		return err
	}
	return cmd
}

// tree collects a group's tree. All in all it takes no longer than four answers may.
func (f *clientFlags) tree(ctx context.Context, key grouptree.Key) (*grouptree.Tree, error) {
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
		if _, err := fleet.Agent(a); err != nil { // that there are no such files is said once
			return nil, err
		}
		first = append(first, a.HostPort)
		if a.Switch != "" {
			directory[a.Switch] = a.HostPort
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
		return grouptree.Agent{Status: agent.Status, Groups: agent.Groups}, nil
	}, key, first, directory, grouptree.Limits{Agents: maxAgents})
}
