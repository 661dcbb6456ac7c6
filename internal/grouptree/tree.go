// Package grouptree collects a group's tree from the agents of its switches, checks that it is
// complete, and draws it: as text, as JSON, for Graphviz, and as SVG.
//
// It queries agents through a Source, and does not trust their answers: a tree may have loops or be
// infinite, and agents may be missing. Collecting always ends, and reports the problems that it
// found.
package grouptree

import (
	"fmt"
	"slices"
	"strings"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
)

// A Tree is a group as its switches see it.
type Tree struct {
	Key Key
	// Group is from the switch where the group was installed; nil if that was not found.
	Group *mcrdmav1.GroupStatus
	// Roots are where packets come in from the sender: one. If that one was not found,
	// they are where what was found of the tree begins.
	Roots []*Node
	// Nodes are all of them, in the order in which they were found.
	Nodes []*Node
	// Problems are those of the tree as a whole; its nodes have their own.
	Problems []string
}

// A Node is a switch in its part for packets of one destination address. A switch can
// be several nodes.
type Node struct {
	Switch      string
	Agent       string // address; empty: not known
	Destination string // that packets come with
	// Step is what the switch does; nil if its agent could not be asked or knows of none.
	Step     *mcrdmav1.Step
	Asked    bool // its agent answered
	Edges    []Edge
	Problems []string
}

// An Edge is a copy on its way: to a receiver, or to one of several switches.
type Edge struct {
	Ports       []uint32 // one of them for each flow
	Destination string   // as what it goes on
	Unicast     bool     // not copied here: passes by its unicast route
	Receiver    string   // empty: it goes on to To
	QPN         uint32   // of the receiver
	To          []*Node  // one of them for each flow
	Receivers   []string // that are to be reached
}

// OK says whether nothing is wrong anywhere in the tree.
func (t *Tree) OK() bool { return len(t.All()) == 0 }

// All lists the problems of the tree, of the group and of all switches.
func (t *Tree) All() []string {
	all := t.general()
	for _, n := range t.Nodes {
		for _, p := range n.Problems {
			all = append(all, n.Switch+": "+p)
		}
	}
	return all
}

// general lists the problems that are no single switch's. Those of the group that its
// first switch has too are said there.
func (t *Tree) general() []string {
	all := slices.Clone(t.Problems)
	for _, p := range t.Group.GetProblems() {
		if !slices.ContainsFunc(t.Roots, func(r *Node) bool { return slices.Contains(r.Problems, p) }) {
			all = append(all, p)
		}
	}
	return all
}

func (n *Node) problem(format string, args ...any) {
	n.Problems = append(n.Problems, fmt.Sprintf(format, args...))
}

// Title is the node's name for people.
func (n *Node) title() string {
	if n.Switch == "" {
		return "?"
	}
	return n.Switch
}

// portText is "port 9" or "port 9 or 10"; empty if there is none.
func (e *Edge) portText() string {
	var list []string
	for _, p := range e.Ports {
		list = append(list, fmt.Sprint(p))
	}
	switch {
	case e.Unicast:
		return "unicast route"
	case len(list) == 0:
		return ""
	case len(list) > 4:
		list = append(list[:3], "…")
	}
	return "port " + strings.Join(list, "/")
}

// count is "1 receiver" or "2 receivers".
func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
