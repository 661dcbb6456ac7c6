package connmgr

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/mcrdma/mcrdma/internal/grouptree"
)

// treeTime limits the request for a tree, which is only for people.
const treeTime = 500 * time.Millisecond

// draw describes what the switch does for a formation, in lines of text, and why switches copy;
// nil: it is not known.
func (m *Manager) draw(ctx context.Context, f *formation) (tree, why []string) {
	steps := m.tor.Steps(ctx, f.MCID)
	if len(steps) == 0 {
		return nil, nil
	}
	hosts := map[string]string{}
	for _, r := range f.Receivers {
		hosts[r.Addr.String()] = r.Host
	}
	tree = append([]string{fmt.Sprintf("%s (%v) sends to %s, which merges", m.cfg.Name, m.cfg.Address, m.tor.Name)}, grouptree.Lines(steps, hosts)...)
	return tree, []string{fmt.Sprintf("by switches: %s merges, %s behind %s", m.tor.Name, plural(len(f.Receivers), "receiver"),
		strings.Join(grouptree.Behind(steps, m.tor.Name), ", "))}
}

// plural formats a count for people.
func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
