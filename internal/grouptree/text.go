package grouptree

import (
	"fmt"
	"io"
	"strings"
	"time"
)

// TextOptions say how a tree is written for people.
type TextOptions struct {
	Now   time.Time // to say how long the lease still is
	Color bool      // problems in red, by ANSI sequences
	// Names are what hosts are called, by address; nil: nothing.
	Names map[string]string
}

// Text writes the tree as tree(1) does directories. A switch that several ways lead to
// is written in full the first time only.
func (t *Tree) Text(w io.Writer, o TextOptions) error {
	p := &textPrinter{options: o, seen: map[*Node]bool{}}
	p.head(t)
	for _, r := range t.Roots {
		p.line("", "", p.nodeText(r))
		p.below(r, "")
	}
	p.members(t)
	_, err := io.WriteString(w, p.b.String())
	return err
}

type textPrinter struct {
	b       strings.Builder
	options TextOptions
	seen    map[*Node]bool
}

func (p *textPrinter) line(prefix, branch, text string) {
	p.b.WriteString(strings.TrimRight(prefix+branch+text, " ") + "\n")
}

func (p *textPrinter) red(s string) string {
	if !p.options.Color {
		return s
	}
	return "\x1b[31m" + s + "\x1b[0m"
}

// host is a host's address, after its name if it has one.
func (p *textPrinter) host(address string) string {
	if name := p.options.Names[address]; name != "" {
		return name + " " + address
	}
	return address
}

func (p *textPrinter) head(t *Tree) {
	facts := []string{t.Key.title()}
	if g := t.Group.GetGroup(); g != nil {
		facts = append(facts, "sender's QPN "+qpnText(g.GetSenderQpn()), count(len(g.GetReceivers()), "receiver"))
		if g.GetAddress() != "" {
			facts = append(facts, "sent to "+g.GetAddress())
		}
	}
	if at := t.Group.GetExpires(); at != nil {
		if left := at.AsTime().Sub(p.options.Now).Round(time.Second); left >= 0 {
			facts = append(facts, fmt.Sprintf("lease of another %v", left))
		} else {
			facts = append(facts, fmt.Sprintf("lease expired %v ago", -left))
		}
	}
	p.line("", "", strings.Join(facts, ", "))
	for _, problem := range t.general() {
		p.line("", "! ", p.red(problem))
	}
}

func (p *textPrinter) nodeText(n *Node) string {
	s := n.title()
	switch {
	case n.Step.GetRoot():
		s += "  merges answers"
	case n.Step == nil:
		s = p.red(s)
	}
	return s
}

// below writes what a node does, after the line that names it.
func (p *textPrinter) below(n *Node, prefix string) {
	if p.seen[n] {
		return
	}
	p.seen[n] = true
	bar := "│   "
	if len(n.Edges) == 0 {
		bar = "    "
	}
	for _, problem := range n.Problems {
		p.line(prefix+bar, "! ", p.red(problem))
	}
	if why := n.Step.GetRecomputes(); why != "" {
		p.line(prefix+bar, "", "computes ICRCs anew: "+why)
	}
	for i := range n.Edges {
		branch, deeper := fork(i, len(n.Edges))
		p.edge(&n.Edges[i], prefix, branch, prefix+deeper)
	}
}

// fork is what leads to the i-th of n branches, and what to what is below it.
func fork(i, n int) (branch, below string) {
	if i == n-1 {
		return "└── ", "    "
	}
	return "├── ", "│   "
}

func (p *textPrinter) edge(e *Edge, prefix, branch, deeper string) {
	way := e.portText()
	if way != "" {
		way += " → "
	}
	switch {
	case e.Receiver != "":
		p.line(prefix, branch, fmt.Sprintf("%s%s  QPN %s", way, p.host(e.Receiver), qpnText(e.QPN)))
	case len(e.To) == 0:
		p.line(prefix, branch, way+p.red("nowhere")+"  for "+e.Destination)
	case len(e.To) == 1:
		p.line(prefix, branch, way+p.toward(e.To[0]))
		p.below(e.To[0], deeper)
	default:
		p.line(prefix, branch, way+"one of these for each flow")
		for i, to := range e.To {
			branch, below := fork(i, len(e.To))
			p.line(deeper, branch, p.toward(to))
			p.below(to, deeper+below)
		}
	}
}

func (p *textPrinter) toward(n *Node) string {
	s := p.nodeText(n) + "  for " + n.Destination
	if p.seen[n] {
		s += "  (as above)"
	}
	return s
}

// members writes how each receiver answers, if that is known.
func (p *textPrinter) members(t *Tree) {
	counters, receivers := t.Group.GetMembers(), t.Group.GetGroup().GetReceivers()
	if len(counters) == 0 || len(counters) != len(receivers) {
		return
	}
	p.line("", "", "")
	p.line("", "", fmt.Sprintf("%d packets of the sender; answers:", t.Group.GetPackets()))
	const form = "%-15s  %8s  %10s  %8s  %8s  %8s  %8s"
	p.line("", "", fmt.Sprintf(form, "RECEIVER", "QPN", "ACKS", "SEQ NAKS", "RNR NAKS", "FATAL", "CNPS"))
	for i, m := range counters {
		p.line("", "", fmt.Sprintf("%-15s  %8s  %10d  %8d  %8d  %8d  %8d", receivers[i].GetAddress(), qpnText(receivers[i].GetQpn()),
			m.GetAcks(), m.GetSequenceNaks(), m.GetRnrNaks(), m.GetFatalNaks(), m.GetCnps()))
	}
}
