package grouptree

import (
	"fmt"
	"slices"
)

// check looks for what is wrong with the tree that its switches do not see.
func (t *Tree) check() {
	w := &walker{state: map[*Node]int{}, reach: map[*Node]map[string]int{}}
	total := map[string]int{}
	for _, r := range t.Roots {
		for receiver, n := range w.visit(r) {
			total[receiver] += n
		}
	}
	for _, n := range t.Nodes {
		for i := range n.Edges {
			w.edge(n, &n.Edges[i])
		}
	}
	if t.Group == nil {
		return
	}
	var wanted []string
	for _, r := range t.Group.GetGroup().GetReceivers() {
		addr := r.GetAddress()
		wanted = append(wanted, addr)
		switch n := total[addr]; {
		case n == 0:
			t.Problems = append(t.Problems, fmt.Sprintf("receiver %s is not reached", addr))
		case n > 1:
			t.Problems = append(t.Problems, fmt.Sprintf("receiver %s gets each packet %d times", addr, n))
		}
		for _, n := range t.Nodes {
			for _, e := range n.Edges {
				if e.Receiver == addr && e.QPN != r.GetQpn() {
					n.problem("copies for %s go to QPN %s, and the receiver's is %s", addr, qpnText(e.QPN), qpnText(r.GetQpn()))
				}
			}
		}
	}
	for _, n := range t.Nodes {
		for _, e := range n.Edges {
			if e.Receiver != "" && !slices.Contains(wanted, e.Receiver) {
				n.problem("sends copies to %s, which is not a receiver of the group", e.Receiver)
			}
		}
	}
}

// walker finds who is reached from each node, and how many times.
type walker struct {
	state map[*Node]int // 0 new, 1 on the way to here, 2 done
	reach map[*Node]map[string]int
}

func (w *walker) visit(n *Node) map[string]int {
	switch w.state[n] {
	case 1:
		n.problem("packets for %s come by here again: a loop", n.Destination)
		return nil
	case 2:
		return w.reach[n]
	}
	w.state[n] = 1
	got := map[string]int{}
	for i := range n.Edges {
		e := &n.Edges[i]
		if e.Receiver != "" {
			got[e.Receiver]++
			continue
		}
		some := map[string]int{}
		for _, to := range e.To {
			reached := w.visit(to)
			if !to.Asked { // the benefit of the doubt
				reached = map[string]int{}
				for _, r := range e.Receivers {
					reached[r] = 1
				}
			}
			for r, times := range reached {
				some[r] = max(some[r], times)
			}
		}
		for r, times := range some {
			// More than that are no more telling, and may be very many.
			got[r] = min(got[r]+times, 99)
		}
	}
	w.state[n], w.reach[n] = 2, got
	return got
}

// edge checks what the switches at both ends say of it.
func (w *walker) edge(n *Node, e *Edge) {
	for _, to := range e.To {
		if to.Step == nil {
			continue
		}
		if !e.Unicast && !slices.Contains(to.Step.GetHolders(), n.Switch) {
			to.problem("does not know that %s sends it packets for %s", n.title(), e.Destination)
		}
		for _, r := range e.Receivers {
			if w.state[to] == 2 && w.reach[to][r] == 0 {
				to.problem("does not reach %s, which %s leaves to it", r, n.title())
			}
		}
	}
}
