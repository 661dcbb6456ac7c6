package grouptree

import (
	"fmt"
	"io"
	"slices"
	"strings"
)

// A graph is what is drawn of a tree: boxes and arrows.
type graph struct {
	title    string
	boxes    []*box
	arrows   []arrow
	problems []string
}

type box struct {
	lines   []string // the first is the name
	host    bool     // the sender or a receiver: rounded
	root    bool     // where answers are merged
	gray    bool     // not known: its agent does not answer
	problem []string
}

type arrow struct {
	from, to *box
	label    string
	problem  bool
	gray     bool // not known
	link     bool // of both directions: it has no tip
}

// graph makes boxes of nodes and receivers. A receiver is one box, whichever nodes reach it.
func (t *Tree) graph() *graph {
	g := &graph{title: "group " + t.Key.title(), problems: t.general()}
	add := func(b *box) *box {
		g.boxes = append(g.boxes, b)
		return b
	}
	sender := &box{host: true, lines: []string{t.Key.Source.String(), "sender"}}
	if t.Group != nil {
		sender.lines = append(sender.lines, "QPN "+qpnText(t.Group.GetGroup().GetSenderQpn()))
	}
	add(sender)
	boxes := map[*Node]*box{}
	for _, n := range t.Nodes {
		b := add(&box{lines: []string{n.title(), "for " + n.Destination}, problem: n.Problems, root: n.Step.GetRoot(), gray: !n.Asked})
		if b.root {
			b.lines = append(b.lines, "merges answers")
		}
		boxes[n] = b
	}
	for _, r := range t.Roots {
		g.arrows = append(g.arrows, arrow{from: sender, to: boxes[r], problem: !r.Step.GetRoot()})
	}
	receivers := map[string]*box{}
	receiver := func(addr string) *box {
		if receivers[addr] == nil {
			receivers[addr] = add(&box{host: true, lines: []string{addr}})
		}
		return receivers[addr]
	}
	reached := map[string]bool{}
	for _, n := range t.Nodes {
		for i := range n.Edges {
			e := &n.Edges[i]
			if e.Receiver != "" {
				b := receiver(e.Receiver)
				if len(b.lines) == 1 {
					b.lines = append(b.lines, "QPN "+qpnText(e.QPN))
				}
				reached[e.Receiver] = true
				g.arrows = append(g.arrows, arrow{from: boxes[n], to: b, label: e.portText()})
			}
			for _, to := range e.To {
				g.arrows = append(g.arrows, arrow{from: boxes[n], to: boxes[to], label: e.portText(), problem: to.Step == nil})
			}
		}
	}
	for _, r := range t.Group.GetGroup().GetReceivers() {
		if !reached[r.GetAddress()] {
			b := receiver(r.GetAddress())
			b.lines, b.problem = append(b.lines, "QPN "+qpnText(r.GetQpn())), []string{"no switch that was asked reaches it"}
		}
	}
	return g
}

// DOT writes the tree in the language of Graphviz.
func (t *Tree) DOT(w io.Writer) error {
	g := t.graph()
	number := map[*box]int{}
	var b strings.Builder
	fmt.Fprintf(&b, "digraph group {\n  label=%s;\n  labelloc=t;\n  rankdir=LR;\n", quote(append([]string{g.title}, g.problems...)))
	b.WriteString("  node [shape=box, fontname=\"sans-serif\", fontsize=11];\n  edge [fontname=\"sans-serif\", fontsize=9];\n")
	for i, x := range g.boxes {
		number[x] = i
		attributes := "label=" + quote(append(slices.Clone(x.lines), x.problem...))
		switch {
		case x.host:
			attributes += ", style=rounded"
		case x.root:
			attributes += ", penwidth=2"
		}
		if len(x.problem) > 0 {
			attributes += ", color=red, fontcolor=red"
		}
		fmt.Fprintf(&b, "  n%d [%s];\n", i, attributes)
	}
	for _, a := range g.arrows {
		attributes := "label=" + quote([]string{a.label})
		if a.problem {
			attributes += ", color=red"
		}
		fmt.Fprintf(&b, "  n%d -> n%d [%s];\n", number[a.from], number[a.to], attributes)
	}
	b.WriteString("}\n")
	_, err := io.WriteString(w, b.String())
	return err
}

// quote is a string of DOT, of several lines.
func quote(lines []string) string {
	for i, l := range lines {
		lines[i] = strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", " ").Replace(l)
	}
	return `"` + strings.Join(lines, `\n`) + `"`
}
