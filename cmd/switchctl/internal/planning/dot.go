package planning

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
)

// DOT writes each group that could be planned as a graph for Graphviz: the links that
// packets take, with the mean number of copies for each packet.
func (r Report) DOT(w io.Writer) error {
	var out strings.Builder
	for _, g := range r.Groups {
		if g.Error != "" {
			continue
		}
		fmt.Fprintf(&out, "digraph %s {\n\trankdir=LR;\n\tnode [shape=ellipse];\n", quote(g.Name))
		fmt.Fprintf(&out, "\t%s [style=bold];\n", quote(g.Source))
		var seen []string
		for i, s := range slices.Backward(g.Steps) {
			if slices.Contains(seen, s.Switch) {
				continue
			}
			seen = append(seen, s.Switch)
			label := s.Switch
			if i == len(g.Steps)-1 {
				label += "\nmerges answers"
			}
			shape := "box"
			if slices.ContainsFunc(g.Steps, func(o Step) bool { return o.Switch == s.Switch && o.PREGroups > 0 }) {
				shape = "box, style=filled, fillcolor=lightgrey"
			}
			fmt.Fprintf(&out, "\t%s [shape=%s, label=%s];\n", quote(s.Switch), shape, quote(label))
		}
		for _, l := range g.Links.Each {
			if l.Group > 0 && l.Port > 0 && !slices.Contains(seen, l.From) { // a switch that only forwards
				seen = append(seen, l.From)
				fmt.Fprintf(&out, "\t%s [shape=box, style=dashed];\n", quote(l.From))
			}
			if l.Group > 0 {
				fmt.Fprintf(&out, "\t%s -> %s [label=%s];\n", quote(l.From), quote(l.To), quote(Number(l.Group)))
			}
		}
		out.WriteString("}\n")
	}
	_, err := io.WriteString(w, out.String())
	return err
}

// quote makes a string of Graphviz's.
func quote(s string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`).Replace(s) + `"`
}

// Number writes a mean with up to two decimals.
func Number(x float64) string {
	s := strconv.FormatFloat(x, 'f', 2, 64)
	return strings.TrimSuffix(strings.TrimRight(s, "0"), ".")
}
