package dashboard

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"github.com/mcrdma/mcrdma/internal/grouptree"
)

// ends are the ports of a switch to another.
type ends struct {
	gray              bool // what is known of them is old
	all, up, watching int
}

// fabric draws switches and links as the agents tell them, hosts at the left.
func (s *state) fabric() *grouptree.Fabric {
	out := &grouptree.Fabric{Title: "switches"}
	sides := map[[2]string]*ends{} // from, to
	names := map[string]bool{}
	row := map[string]int{} // steps from the nearest switch with hosts, plus 1
	for _, address := range s.order {
		a := s.agents[address]
		if names[a.name] {
			continue // told by another agent, too
		}
		names[a.name] = true
		b := grouptree.FabricSwitch{Name: a.name, Gray: a.gray}
		if n := len(a.status.GetHosts()); n > 0 {
			b.Lines = append(b.Lines, fmt.Sprintf("hosts: %d", n))
			row[a.name] = 1
		}
		if a.status != nil {
			b.Lines = append(b.Lines, fmt.Sprintf("groups: %d, steps: %d", a.status.GetGroups(), a.status.GetSteps()))
			if why := controlText(a.status.GetP4Runtime()); why != "" {
				b.Problems = append(b.Problems, why)
			}
		}
		if a.err != nil {
			text := "the agent has not answered yet"
			if !a.at.IsZero() {
				text = "silent since " + a.at.UTC().Format("15:04:05 MST")
			}
			b.Problems = append(b.Problems, text)
		}
		out.Switches = append(out.Switches, b)
		for _, p := range a.status.GetPorts() {
			if p.GetNeighbor() == "" {
				continue
			}
			k := [2]string{a.name, p.GetNeighbor()}
			if sides[k] == nil {
				sides[k] = &ends{gray: a.gray}
			}
			sides[k].all++
			if p.GetState() != "-" {
				sides[k].watching++
			}
			if p.GetState() == "up" {
				sides[k].up++
			}
		}
	}
	keys := slices.SortedFunc(maps.Keys(sides), func(a, b [2]string) int { return slices.Compare(a[:], b[:]) })
	for _, k := range keys {
		if !names[k[1]] {
			names[k[1]] = true // it has no agent, or that is not known
			out.Switches = append(out.Switches, grouptree.FabricSwitch{Name: k[1], Gray: true, Lines: []string{"no agent is known"}})
		}
	}
	slices.SortStableFunc(out.Switches, func(a, b grouptree.FabricSwitch) int { return cmp.Compare(a.Name, b.Name) })
	for d := 1; d <= len(names); d++ {
		for _, k := range keys {
			if row[k[0]] == d && row[k[1]] == 0 {
				row[k[1]] = d + 1
			}
		}
	}
	for _, k := range keys {
		back := [2]string{k[1], k[0]}
		left := cmp.Or(cmp.Compare(row[k[0]], row[k[1]]), cmp.Compare(k[0], k[1])) < 0
		if other := sides[back]; left || other == nil {
			l := linkOf(k, sides[k], other)
			if !left {
				l.From, l.To = l.To, l.From
			}
			out.Links = append(out.Links, l)
		}
	}
	return out
}

// linkOf judges a link by both of its ends. An end of which nothing is known now does not count.
func linkOf(k [2]string, one, other *ends) grouptree.FabricLink {
	l := grouptree.FabricLink{From: k[0], To: k[1]}
	if other != nil && !other.gray && (one.gray || other.up < one.up) {
		one = other
	}
	switch {
	case one.gray:
		l.Gray, l.Label = true, "not known now"
	case one.watching == 0:
		l.Gray, l.Label = true, "not watched"
	case one.up < one.watching:
		l.Bad, l.Label = true, fmt.Sprintf("%d of %d up", one.up, one.watching)
	case one.all > 1:
		l.Label = fmt.Sprintf("%d links", one.all)
	}
	return l
}
