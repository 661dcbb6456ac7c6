package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/cmd/internal/cli"
	"github.com/mcrdma/mcrdma/cmd/switchctl/internal/agents"
)

// maxTopGroups is how many groups' counters are read from each switch. Each group takes a read of
// the switch's tables.
const maxTopGroups = 64

// topCommand is the live view.
func topCommand() *cobra.Command {
	var once bool
	interval := time.Second
	cmd := &cobra.Command{
		Use:   "top [flags]",
		Short: "Watch switches live: groups' packet rates, answers, ports, drops",
		Long: `Shows switches, their groups with packet rates and how each receiver answers, ports
that are not up, and packets that are dropped, and refreshes that each second until
Ctrl-C. If the output is not a terminal, or with --once, it is shown once, after one
interval. With -o json, that is an object in a line, with rates per second and the
agents' GetStatusResponses (api/mcrdma/v1/switch.proto). Of each switch, only the
counters of the first ` + fmt.Sprint(maxTopGroups) + ` groups are read; the rates of the others are not known.`,
		Example: `  switchctl top --agent 192.0.2.1:9560
  switchctl top --once --peers=false`,
		Args: cli.NoArgs,
	}
	out, client := cli.AddOutputFlag(cmd), addClientFlags(cmd, true, true)
	cmd.Flags().BoolVar(&once, "once", false, "show one interval and end")
	cmd.Flags().DurationVar(&interval, "interval", interval, "`time` between two polls")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if interval < 100*time.Millisecond {
			return cli.Usagef("--interval %v: it is at least 100ms", interval)
		}
		ctx, stop := cli.Interruptible(cmd.Context())
		defer stop()
		fleet := client.fleet()
		defer fleet.Close()
		list, err := client.connect(ctx, fleet)
		if err != nil {
			return err
		}
		t := &top{list: list, interval: interval}
		terminal, _ := cmd.OutOrStdout().(*os.File)
		if out.IsJSON() {
			return t.once(ctx, cmd.OutOrStdout(), writeTopJSON)
		}
		if once || terminal == nil || !cli.IsTerminal(terminal) {
			return t.once(ctx, cmd.OutOrStdout(), writeTopLines)
		}
		return t.live(ctx, terminal, func() (int, int) { return cli.TerminalSize(terminal) })
	}
	return cmd
}

// top reads agents repeatedly.
type top struct {
	list     []*agents.Agent
	interval time.Duration
}

// A look is what all agents reported at one time.
type look struct {
	at     time.Time
	agents []agentLook
}

// agentLook is what one agent reported; nothing if err is set.
type agentLook struct {
	address  string
	err      error
	status   *mcrdmav1.GetStatusResponse
	groups   []*mcrdmav1.GroupStatus // with counters
	counters []*mcrdmav1.Counter
}

func (t *top) look(ctx context.Context) *look {
	l := &look{agents: make([]agentLook, len(t.list))}
	agents.Each(len(t.list), func(i int) {
		l.agents[i] = lookAt(ctx, t.list[i])
	})
	l.at = time.Now()
	return l
}

func lookAt(ctx context.Context, a *agents.Agent) agentLook {
	l := agentLook{address: a.Address.HostPort}
	if l.err = a.Silent; l.err != nil {
		return l
	}
	if l.status, l.err = a.Status.GetStatus(ctx, &mcrdmav1.GetStatusRequest{}); l.err != nil {
		return l
	}
	counters, err := a.Status.GetCounters(ctx, &mcrdmav1.GetCountersRequest{})
	if err != nil {
		l.status.Problems = append(l.status.Problems, err.Error())
	}
	l.counters = counters.GetCounters()
	groups, err := a.Groups.List(ctx, &mcrdmav1.ListRequest{})
	if err != nil {
		l.status.Problems = append(l.status.Problems, err.Error())
	}
	l.groups = groups.GetGroups()
	agents.Each(min(len(l.groups), maxTopGroups), func(i int) {
		r, err := a.Groups.Get(ctx, &mcrdmav1.GetRequest{Key: l.groups[i].GetGroup().GetKey(), Counters: true, Acked: true})
		if err == nil { // otherwise the group or the agent has gone: seen at the next look
			l.groups[i] = r.GetGroup()
		}
	})
	return l
}

// once shows one interval. The error is also that of agents that do not answer.
func (t *top) once(ctx context.Context, w io.Writer, write func(w io.Writer, before, now *look) error) error {
	before := t.look(ctx)
	now := before
	for i, a := range before.agents {
		t.list[i].Silent = a.err
	}
	if slices.ContainsFunc(before.agents, func(a agentLook) bool { return a.err == nil }) {
		select {
		case <-time.After(t.interval):
		case <-ctx.Done():
			return nil
		}
		now = t.look(ctx)
	}
	if ctx.Err() != nil {
		return nil
	}
	err := write(w, before, now)
	for _, a := range now.agents {
		err = errors.Join(err, a.err)
	}
	return err
}

func writeTopLines(w io.Writer, before, now *look) error {
	_, err := fmt.Fprintln(w, strings.Join(topLines(before, now), "\n"))
	return err
}

// Sequences that all current terminals know.
const (
	enterScreen = "\x1b[?1049h\x1b[?25l" // the alternate screen, no cursor
	leaveScreen = "\x1b[?25h\x1b[?1049l"
	goHome      = "\x1b[H"
	clearRight  = "\x1b[K"
	clearBelow  = "\x1b[J"
)

// live fills a terminal until ctx ends, and restores it.
func (t *top) live(ctx context.Context, w io.Writer, size func() (columns, rows int)) (err error) {
	for _, a := range t.list {
		a.Silent = nil // it may come back
	}
	if _, err := io.WriteString(w, enterScreen); err != nil {
		return err
	}
	defer func() {
		_, failed := io.WriteString(w, leaveScreen)
		err = errors.Join(err, failed)
	}()
	tick := time.NewTicker(t.interval)
	defer tick.Stop()
	var before *look
	for {
		now := t.look(ctx)
		if ctx.Err() != nil {
			return nil
		}
		columns, rows := size()
		if _, err := io.WriteString(w, screen(topLines(before, now), columns, rows)); err != nil {
			return err
		}
		before = now
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// screen fills a terminal with lines, cut to its size, without flicker.
func screen(lines []string, columns, rows int) string {
	rows = max(rows, 1)
	if len(lines) > rows {
		left := len(lines) - rows + 1
		lines = append(lines[:rows-1:rows-1], fmt.Sprintf("… and %s; make the window higher, or use --once", cli.Plural(left, "more line")))
	}
	var b strings.Builder
	b.WriteString(goHome)
	for i, l := range lines {
		if r := []rune(l); len(r) > columns {
			l = string(r[:max(columns-1, 0)]) + "…"
		}
		b.WriteString(l + clearRight)
		if i < len(lines)-1 {
			b.WriteString("\r\n")
		}
	}
	b.WriteString(clearBelow)
	return b.String()
}
