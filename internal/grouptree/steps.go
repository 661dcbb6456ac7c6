package grouptree

import (
	"fmt"
	"slices"
	"strings"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/internal/failure"
)

// Behind returns the switches at which copies reach receivers, as far as the steps of the group's
// first switch tell: those behind it, and itself if it has receivers of its own.
func Behind(steps []*mcrdmav1.Step, first string) []string {
	behind, direct := []string{first}, false
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
		return behind[1:]
	}
	return behind
}

// Lines says in words what one switch does for a group: its steps. hosts are names of hosts by
// address.
func Lines(steps []*mcrdmav1.Step, hosts map[string]string) (lines []string) {
	label := func(addr string) string {
		if n := hosts[addr]; n != "" {
			return fmt.Sprintf("%s (%s)", n, addr)
		}
		return failure.Clip(addr, failure.MaxName)
	}
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
