package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/cmd/internal/cli"
	"github.com/mcrdma/mcrdma/cmd/switchctl/internal/agents"
	"github.com/mcrdma/mcrdma/cmd/switchctl/internal/doctor"
)

// countersCommand shows counters.
func countersCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "counters [flags]",
		Short: "Show switches' counters: drops by reason, and all others",
		Long: `Shows the counters of switches: first the drops by reason, the most frequent first,
then all others. Counters that are 0 are shown only with --all. switchctl top shows
rates of groups and drops.

The JSON is a list with the address of each agent and its GetCountersResponse
(api/mcrdma/v1/switch.proto).`,
		Example: "  switchctl counters\n  switchctl counters --all --agent 192.0.2.1:9560",
		Args:    cli.NoArgs,
	}
	all := cmd.Flags().Bool("all", false, "show counters that are zero too")
	return asking(cmd, func(ctx context.Context, a *agents.Agent, _ []string) (*mcrdmav1.GetCountersResponse, error) {
		return a.Status.GetCounters(ctx, &mcrdmav1.GetCountersRequest{})
	}, func(answers []answer[*mcrdmav1.GetCountersResponse], _ []string) string {
		return agentTable(len(answers) > 1, []string{"counter", "cell", "packets", "bytes", "meaning"}, counterRows(answers, *all))
	}, nil)
}

// inOrder lists drops before others, and the highest counts first; then by name.
func inOrder(list []*mcrdmav1.Counter) []*mcrdmav1.Counter {
	drops := func(c *mcrdmav1.Counter) (other int, packets uint64) {
		if doctor.IsDrop(c.GetName()) {
			return 0, c.GetPackets()
		}
		return 1, 0
	}
	return slices.SortedStableFunc(slices.Values(list), func(a, b *mcrdmav1.Counter) int {
		otherA, packetsA := drops(a)
		otherB, packetsB := drops(b)
		return cmp.Or(cmp.Compare(otherA, otherB), cmp.Compare(packetsB, packetsA), cmp.Compare(a.GetName(), b.GetName()))
	})
}

// counterRows returns the rows of a table; the first column is the agent.
func counterRows(answers []answer[*mcrdmav1.GetCountersResponse], all bool) (rows [][]any) {
	for _, a := range answers {
		for _, c := range inOrder(a.got.GetCounters()) {
			if c.GetPackets() == 0 && c.GetBytes() == 0 && !all {
				continue
			}
			meaning := ""
			if doctor.IsDrop(c.GetName()) {
				r := doctor.DropReasons[c.GetCell()]
				meaning = r.Meaning + cli.Either(r.Usual, " (usual)", "")
			}
			rows = append(rows, []any{a.agent.Address.HostPort, c.GetName(), c.GetCell(), c.GetPackets(), unlessZero(c.GetBytes()), meaning})
		}
	}
	return rows
}

// rate returns the increase per second. A counter that is lower than before has restarted at 0.
func rate(before, now uint64, span time.Duration) float64 {
	if span <= 0 {
		return 0
	}
	if now < before {
		before = 0
	}
	return float64(now-before) / span.Seconds()
}

// perSecond returns a rate as text: 0.5, 12, 3.4k, 79M.
func perSecond(r float64) string {
	unit := ""
	for _, u := range []string{"k", "M", "G"} {
		if r < 999.5 {
			break
		}
		r, unit = r/1000, u
	}
	if r > 0 && r < 9.95 {
		return fmt.Sprintf("%.1f%s", r, unit)
	}
	return fmt.Sprintf("%.0f%s", r, unit)
}
