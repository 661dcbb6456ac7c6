package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/cmd/internal/cli"
	"github.com/mcrdma/mcrdma/cmd/switchctl/internal/agents"
	"github.com/mcrdma/mcrdma/cmd/switchctl/internal/doctor"
)

const countersHelp = `Shows the counters of switches: first the drops by reason, the most frequent
first, then all others. Only those that have counted something are shown, unless
--all is given.

With --watch, they are shown again and again with how much was added in each
second, until Ctrl-C: those that changed, or with --all all of them.

The JSON is a list with the address of each agent and its GetCountersResponse
(api/mcrdma/v1/switch.proto); with --watch, one such list for each time.`

// countersCommand shows counters.
func countersCommand() *cobra.Command {
	var all bool
	var watch time.Duration
	cmd := &cobra.Command{
		Use:   "counters [flags]",
		Short: "Show switches' counters: drops by reason, and all others",
		Long:  countersHelp,
		Example: `  switchctl counters
  switchctl counters --watch --agent 192.0.2.1:9560
  switchctl counters --watch=5s --all`,
		Args: cli.NoArgs,
	}
	out, client := cli.AddOutputFlag(cmd), addClientFlags(cmd, true, false)
	cmd.Flags().BoolVar(&all, "all", false, "show counters that are zero too")
	cmd.Flags().DurationVarP(&watch, "watch", "w", 0, "show rates at this `interval`, 1s if none is given")
	cmd.Flags().Lookup("watch").NoOptDefVal = "1s"
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if watch < 0 || cmd.Flags().Changed("watch") && watch < 100*time.Millisecond {
			return cli.Usagef("--watch %v: it is at least 100ms", watch)
		}
		ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
		defer stop()
		fleet := client.fleet()
		defer fleet.Close()
		list, err := client.connect(ctx, fleet)
		if err != nil {
			return err
		}
		c := counterView{cmd: cmd, out: out, list: list, all: all}
		if watch == 0 {
			return c.once(ctx)
		}
		return c.watch(ctx, watch)
	}
	return cmd
}

type counterView struct {
	cmd  *cobra.Command
	out  *cli.Output
	list []*agents.Agent
	all  bool
}

func (c *counterView) ask(ctx context.Context) ([]answer[*mcrdmav1.GetCountersResponse], error) {
	return askAll(c.list, func(a *agents.Agent) (*mcrdmav1.GetCountersResponse, error) {
		return a.Status.GetCounters(ctx, &mcrdmav1.GetCountersRequest{})
	})
}

func (c *counterView) once(ctx context.Context) error {
	answers, failed := c.ask(ctx)
	return show(c.cmd, c.out, answers, failed, func(w io.Writer) error {
		return agentTable(w, c.out, len(answers) > 1, []string{"counter", "cell", "packets", "bytes", "meaning"}, counterRows(answers, c.all))
	})
}

// watch shows what changed, until ctx ends or no agent answers.
func (c *counterView) watch(ctx context.Context, every time.Duration) error {
	before := map[counterKey]*mcrdmav1.Counter{}
	last := time.Time{}
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		answers, failed := c.ask(ctx)
		now := time.Now()
		switch {
		case ctx.Err() != nil:
			return nil
		case failed != nil && !slices.ContainsFunc(answers, func(a answer[*mcrdmav1.GetCountersResponse]) bool { return a.err == nil }):
			return failed
		case failed != nil:
			fmt.Fprintf(c.cmd.ErrOrStderr(), "%s: %v\n", c.cmd.CommandPath(), failed)
		}
		if c.out.IsJSON() || !last.IsZero() {
			err := show(c.cmd, c.out, answers, nil, func(w io.Writer) error {
				fmt.Fprintf(w, "%s\n", now.Format(time.TimeOnly))
				return agentTable(w, c.out, len(answers) > 1, []string{"counter", "cell", "packets", "packets/s", "bytes/s"},
					rateRows(answers, before, now.Sub(last), c.all))
			})
			if err != nil {
				return err
			}
		}
		for _, a := range answers {
			for _, x := range a.got.GetCounters() {
				before[keyOfCounter(a.agent, x)] = x
			}
		}
		last = now
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

type counterKey struct{ agent, name, cell string }

func keyOfCounter(a *agents.Agent, c *mcrdmav1.Counter) counterKey {
	return counterKey{a.Address.HostPort, c.GetName(), c.GetCell()}
}

// inOrder lists drops before others, and what counted most first; then by name.
func inOrder(list []*mcrdmav1.Counter) []*mcrdmav1.Counter {
	rank := func(c *mcrdmav1.Counter) int {
		switch {
		case doctor.IsDrop(c) && c.GetPackets() > 0:
			return 0
		case doctor.IsDrop(c):
			return 1
		}
		return 2
	}
	return slices.SortedStableFunc(slices.Values(list), func(a, b *mcrdmav1.Counter) int {
		byRank := cmp.Compare(rank(a), rank(b))
		if byRank == 0 && rank(a) == 0 {
			byRank = cmp.Compare(b.GetPackets(), a.GetPackets())
		}
		return cmp.Or(byRank, cmp.Compare(a.GetName(), b.GetName()))
	})
}

// counterRows are the rows of a table; the first column is the agent.
func counterRows(answers []answer[*mcrdmav1.GetCountersResponse], all bool) (rows [][]any) {
	for _, a := range answers {
		for _, c := range inOrder(a.got.GetCounters()) {
			if c.GetPackets() == 0 && c.GetBytes() == 0 && !all {
				continue
			}
			meaning := ""
			if doctor.IsDrop(c) {
				r := doctor.DropReasons[c.GetCell()]
				meaning = r.Meaning + cli.Either(r.Usual, " (usual)", "")
			}
			rows = append(rows, []any{a.agent.Address.HostPort, c.GetName(), c.GetCell(), c.GetPackets(), unlessZero(c.GetBytes()), meaning})
		}
	}
	return rows
}

// rateRows are likewise rows, with what was added per second since before.
func rateRows(answers []answer[*mcrdmav1.GetCountersResponse], before map[counterKey]*mcrdmav1.Counter, span time.Duration, all bool) (rows [][]any) {
	for _, a := range answers {
		for _, c := range inOrder(a.got.GetCounters()) {
			was := before[keyOfCounter(a.agent, c)]
			packets, bytes := rate(was.GetPackets(), c.GetPackets(), span), rate(was.GetBytes(), c.GetBytes(), span)
			if packets == 0 && bytes == 0 && !all {
				continue
			}
			rows = append(rows, []any{
				a.agent.Address.HostPort, c.GetName(), c.GetCell(), c.GetPackets(), perSecond(packets), perSecond(bytes),
			})
		}
	}
	return rows
}

// rate is how much was added in each second. A counter that fell began anew.
func rate(before, now uint64, span time.Duration) float64 {
	if span <= 0 {
		return 0
	}
	if now < before {
		before = 0
	}
	return float64(now-before) / span.Seconds()
}

// perSecond is a rate for people: 0.5, 12, 3.4k, 79M.
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
