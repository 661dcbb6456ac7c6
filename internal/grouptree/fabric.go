package grouptree

import "io"

// A Fabric is a drawing of switches and the links between them.
type Fabric struct {
	Title    string
	Switches []FabricSwitch
	// Links are drawn from left to right. There must be no loop of them.
	Links []FabricLink
}

// A FabricSwitch is a box. What is gray is not known now: what the box says is old.
type FabricSwitch struct {
	Name     string
	Lines    []string
	Problems []string
	Gray     bool
}

// A FabricLink is a line between two switches, or several of them that are drawn as one.
type FabricLink struct {
	From, To  string // names of switches
	Label     string
	Bad, Gray bool
}

// SVG draws the fabric. Links of switches that it does not have are left out.
func (f *Fabric) SVG(w io.Writer) error {
	g := &graph{title: f.Title}
	boxes := map[string]*box{}
	for _, s := range f.Switches {
		b := &box{lines: append([]string{s.Name}, s.Lines...), problem: s.Problems, gray: s.Gray}
		boxes[s.Name] = b
		g.boxes = append(g.boxes, b)
	}
	for _, l := range f.Links {
		if from, to := boxes[l.From], boxes[l.To]; from != nil && to != nil {
			g.arrows = append(g.arrows, arrow{from: from, to: to, label: l.Label, problem: l.Bad, gray: l.Gray, link: true})
		}
	}
	return g.svg(w)
}
