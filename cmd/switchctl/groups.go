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
	out, client := cli.AddOutputFlag(cmd), addClientFlags(cmd, true, false)
	cmd.Flags().StringVar(&source, "source", "", "only groups of the sender with this `address`")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		ctx := cmd.Context()
		answers, failed, err := queryAgents(ctx, client, func(a *agents.Agent) (*mcrdmav1.ListResponse, error) {
			return a.Groups.List(ctx, &mcrdmav1.ListRequest{Source: source})
		})
		if err != nil {
			return err
		}
		return show(cmd, out, answers, failed, func(w io.Writer) error {
			return out.Table(w, []string{"group", "switch", "sender qpn", "receivers", "lease", "problems"}, groupRows(answers, time.Now()))
		})
	}
	return cmd
}

// groupRows are the rows of a table of groups.
func groupRows(answers []answer[*mcrdmav1.ListResponse], now time.Time) (rows [][]any) {
	for _, a := range answers {
		for _, g := range a.got.GetGroups() {
			rows = append(rows, []any{
				keyText(g), g.GetSwitch(), fmt.Sprintf("0x%06x", g.GetGroup().GetSenderQpn()), len(g.GetGroup().GetReceivers()),
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
		return "over"
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
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return cli.Usagef("%d arguments: name one group, SOURCE/MC_ID, such as 10.1.0.1/2049", len(args))
			}
			return nil
		},
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
			err = fmt.Errorf("group %v: %s", key, problemCount(n))
		}
		return err
	}
	return cmd
}

func problemCount(n int) string {
	if n == 1 {
		return "there is a problem"
	}
	return fmt.Sprintf("there are %d problems", n)
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
	return grouptree.Collect(ctx, treeSource{fleet}, key, first, directory, grouptree.Limits{Agents: maxAgents})
}

// treeSource asks agents for package grouptree.
type treeSource struct{ fleet *agents.Fleet }

func (s treeSource) agent(address string) (*agents.Agent, error) {
	a, err := agents.ParseAddress(address)
	if err != nil {
		return nil, fmt.Errorf("agent %w", err)
	}
	return s.fleet.Agent(a)
}

func (s treeSource) Status(ctx context.Context, address string) (*mcrdmav1.GetStatusResponse, error) {
	a, err := s.agent(address)
	if err != nil {
		return nil, err
	}
	return a.Status.GetStatus(ctx, &mcrdmav1.GetStatusRequest{})
}

func (s treeSource) Steps(ctx context.Context, address string, group *mcrdmav1.GroupKey) (*mcrdmav1.ListStepsResponse, error) {
	a, err := s.agent(address)
	if err != nil {
		return nil, err
	}
	return a.Status.ListSteps(ctx, &mcrdmav1.ListStepsRequest{Group: group})
}

func (s treeSource) Group(ctx context.Context, address string, group *mcrdmav1.GroupKey) (*mcrdmav1.GroupStatus, error) {
	a, err := s.agent(address)
	if err != nil {
		return nil, err
	}
	r, err := a.Groups.Get(ctx, &mcrdmav1.GetRequest{Key: group, Counters: true})
	return r.GetGroup(), err
}
