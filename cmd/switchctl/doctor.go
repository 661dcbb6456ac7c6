package main

import (
	"cmp"
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/cmd/internal/cli"
	"github.com/mcrdma/mcrdma/cmd/internal/findings"
	"github.com/mcrdma/mcrdma/cmd/switchctl/internal/agents"
	"github.com/mcrdma/mcrdma/cmd/switchctl/internal/doctor"
)

const doctorHelp = `Looks for what is wrong with switches, with their agents, and with this host's
interfaces, and says why and what to do.

Agents: those that are named, and those that these name as their peers, and so on.
Whether they answer, control their switches, see their neighbors and each other,
have settled routes, room in their tables, the same version and ICRC mode; groups
that have problems; packets that were dropped and should not have been.

Interfaces: those named by --interface, and with --local all in this network
namespace that look like switch ports or links to one (veth, swpN). One that has an
IPv4 address is taken for a host's, others for a switch's port. Offloads that
damage packets, MTUs that are too small or differ, links that are down. Nothing is
changed.

Exit code 1 means that there is at least one error; warnings and notes do not count.

The JSON has the findings, with severity, subject, what, why and do, and how many
agents and interfaces were looked at.`

// doctorCommand diagnoses switches and interfaces.
func doctorCommand() *cobra.Command {
	var interfaces []string
	var local, hostOnly bool
	cmd := &cobra.Command{
		Use:   "doctor [flags]",
		Short: "Diagnose switches and this host: what is wrong, why, and what to do",
		Long:  doctorHelp,
		Example: `  switchctl doctor
  switchctl doctor --agent 192.0.2.1:9560 --local
  switchctl doctor --host-only --interface s1-eth1 --interface s1-eth2`,
		Args: cli.NoArgs,
	}
	out, client := cli.AddOutputFlag(cmd), addClientFlags(cmd, true, true)
	cmd.Flags().StringArrayVarP(&interfaces, "interface", "i", nil, "look at this network `interface` of this host too; may be repeated")
	cmd.Flags().BoolVar(&local, "local", false, "look at all interfaces here that look like switch ports or links to one")
	cmd.Flags().BoolVar(&hostOnly, "host-only", false, "look at no agents; without --interface this means --local")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		facts := doctor.Facts{Complete: true}
		if hostOnly && len(client.agents) > 0 {
			return cli.Usagef("--host-only looks at no agents, and --agent names one: leave one of them out")
		}
		if !hostOnly {
			if err := client.facts(cmd.Context(), &facts); err != nil {
				return err
			}
		}
		var err error
		if facts.Interfaces, err = doctor.Interfaces(interfaces, local || hostOnly && len(interfaces) == 0); err != nil {
			return err
		}
		facts.Now = cli.Now(cmd.Context())
		found := doctor.Diagnose(facts)
		if out.IsJSON() {
			err = out.JSON(cmd.OutOrStdout(), doctorReport{Agents: len(facts.Agents), Interfaces: len(facts.Interfaces),
				Findings: append([]findings.Finding{}, found...)})
		} else {
			err = findingsText(cmd.OutOrStdout(), found, &facts, cli.Colored(cmd.OutOrStdout()))
		}
		return cmp.Or(err, findings.Failed(found, findings.Error))
	}
	return cmd
}

// doctorReport is the JSON.
type doctorReport struct {
	Agents     int                `json:"agents"`
	Interfaces int                `json:"interfaces"`
	Findings   []findings.Finding `json:"findings"`
}

// facts asks agents for everything that the doctor needs.
func (f *clientFlags) facts(ctx context.Context, facts *doctor.Facts) error {
	given, err := f.addresses()
	if err != nil {
		return err
	}
	// Agents that do not answer cost a timeout on each level of the search.
	ctx, cancel := context.WithTimeout(ctx, 8*f.timeout)
	defer cancel()
	fleet := f.fleet()
	defer fleet.Close()
	found, complete, err := fleet.Discover(ctx, given, f.peers, maxAgents)
	if err != nil {
		return err
	}
	facts.Complete = complete
	facts.Agents = make([]doctor.Agent, len(found))
	agents.Each(len(found), func(i int) {
		x, a := found[i], &facts.Agents[i]
		*a = doctor.Agent{Address: x.Agent.Address.HostPort, Expected: x.Agent.Address.Switch, From: x.From, Err: x.Err, Status: x.Status}
		if x.Err != nil {
			return
		}
		failed := func(err error) {
			if err != nil {
				a.Failed = append(a.Failed, err)
			}
		}
		groups, err := x.Agent.Groups.List(ctx, &mcrdmav1.ListRequest{})
		failed(err)
		steps, err := x.Agent.Status.ListSteps(ctx, &mcrdmav1.ListStepsRequest{})
		failed(err)
		counters, err := x.Agent.Status.GetCounters(ctx, &mcrdmav1.GetCountersRequest{})
		failed(err)
		routes, err := x.Agent.Status.ListRoutes(ctx, &mcrdmav1.ListRoutesRequest{})
		failed(err)
		a.Groups, a.Steps, a.Counters, a.Routes = groups.GetGroups(), steps.GetSteps(), counters.GetCounters(), routes.GetRoutes()
	})
	return nil
}

// findingsText writes findings as text.
func findingsText(w io.Writer, list []findings.Finding, facts *doctor.Facts, color bool) error {
	looked := cli.Plural(len(facts.Agents), "agent") + " and " + cli.Plural(len(facts.Interfaces), "interface")
	if len(facts.Agents)+len(facts.Interfaces) == 0 {
		_, err := fmt.Fprintf(w, "there is nothing to look at; name interfaces with --interface; looked at %s\n", looked)
		return err
	}
	return findings.Text(w, list, looked, color)
}
