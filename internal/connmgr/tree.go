package connmgr

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/internal/failure"
)

// treeTime limits the request for a tree, which is only for people.
const treeTime = 500 * time.Millisecond

// steps asks the agent what its switch does for a formation; nil: it is not known.
func (m *Manager) steps(ctx context.Context, f *formation) []*mcrdmav1.Step {
	if m.tor == nil {
		return nil
	}
	res, err := m.tor.status.ListSteps(ctx, &mcrdmav1.ListStepsRequest{Group: m.tor.key(f.MCID)})
	if err != nil {
		return nil
	}
	return res.GetSteps()
}

// draw describes what the switch does for a formation, in lines of text, and why switches copy;
// nil: it is not known.
func (m *Manager) draw(ctx context.Context, f *formation) (tree, why []string) {
	steps := m.steps(ctx, f)
	if len(steps) == 0 {
		return nil, nil
	}
	behind := []string{m.tor.name}
	direct := false
	for _, s := range steps {
		for _, c := range s.GetCopies() {
			direct = direct || c.GetLast()
			for _, n := range c.GetNext() {
				if n = failure.Clip(n, failure.MaxName); !slices.Contains(behind, n) {
					behind = append(behind, n)
				}
			}
		}
	}
	if !direct && len(behind) > 1 {
		behind = behind[1:]
	}
	return m.treeLines(f, steps), []string{fmt.Sprintf("by switches: %s merges, %s behind %s", m.tor.name, plural(len(f.Receivers), "receiver"), strings.Join(behind, ", "))}
}

func (m *Manager) treeLines(f *formation, steps []*mcrdmav1.Step) []string {
	names := map[string]string{}
	for _, r := range f.Receivers {
		names[r.Addr.String()] = r.Host
	}
	label := func(addr string) string {
		if n := names[addr]; n != "" {
			return fmt.Sprintf("%s (%s)", n, addr)
		}
		return failure.Clip(addr, failure.MaxName)
	}
	lines := []string{fmt.Sprintf("%s (%v) sends to %s, which merges", m.name, m.addr, m.tor.name)}
	for _, s := range steps {
		if len(s.GetCopies()) == 0 {
			lines = append(lines, fmt.Sprintf("  as unicast to %s", label(s.GetDestination())))
		}
		for _, c := range s.GetCopies() {
			ports := make([]string, 0, len(c.GetPorts()))
			for _, p := range c.GetPorts() {
				ports = append(ports, fmt.Sprint(p))
			}
			line := fmt.Sprintf("  port %s -> ", strings.Join(ports, " or "))
			if c.GetLast() {
				lines = append(lines, line+label(c.GetDestination()))
				continue
			}
			var to []string
			for _, r := range c.GetReceivers() {
				to = append(to, label(r))
			}
			lines = append(lines, line+failure.Clip(strings.Join(c.GetNext(), ", "), failure.MaxName)+" -> "+strings.Join(to, ", "))
		}
	}
	return lines
}
