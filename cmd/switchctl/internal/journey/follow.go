package journey

import (
	"fmt"
	"slices"
	"strings"

	"github.com/mcrdma/mcrdma/cmd/internal/cli"
	"github.com/mcrdma/mcrdma/internal/grouptree"
	"github.com/mcrdma/mcrdma/pkg/ackmerge"
	"github.com/mcrdma/mcrdma/pkg/rocev2"
)

// A copyOf is a copy that a switch should make of a packet.
type copyOf struct {
	edge *grouptree.Edge
	seen bool
}

// A follower processes packets in order.
type follower struct {
	*Explainer
	before map[rocev2.PSN][]*parsed // earlier packets by PSN; some are expected to be seen again
	passed map[rocev2.PSN][]*parsed // earlier answers, by the PSNs with which they may have left
	merger merger
}

// follow comments on all packets.
func (e *Explainer) follow(list []*parsed) {
	f := &follower{Explainer: e, before: map[rocev2.PSN][]*parsed{}, passed: map[rocev2.PSN][]*parsed{}, merger: newMerger(&e.group, list)}
	for _, x := range list {
		switch {
		case x.answer && x.Out:
			f.answerOut(x)
		case x.answer:
			f.answerIn(x)
		case x.Out:
			f.dataOut(x)
		default:
			f.dataIn(x)
		}
		f.before[x.h.PSN] = append(f.before[x.h.PSN], x)
	}
	for _, x := range list {
		f.missing(x)
	}
}

// lookBack is how many packets earlier a matching packet can be: more than are in flight at a time,
// at all ports.
const lookBack = 1 << 13

// last returns the latest matching packet before x.
func last(before []*parsed, x *parsed, fits func(y *parsed) bool) *parsed {
	for _, y := range slices.Backward(before) {
		if x.n-y.n > lookBack {
			return nil
		}
		if fits(y) {
			return y
		}
	}
	return nil
}

// node returns the tree's node for packets that a switch gets; nil: none.
func (e *Explainer) node(sw, destination string) *grouptree.Node {
	i := slices.IndexFunc(e.tree.Nodes, func(n *grouptree.Node) bool { return n.Switch == sw && n.Destination == destination && n.Step != nil })
	if i < 0 {
		return nil
	}
	return e.tree.Nodes[i]
}

func (f *follower) dataIn(x *parsed) {
	if f.group.fromSender(x) && x.Switch == f.group.root {
		again := last(f.before[x.h.PSN], x, func(y *parsed) bool {
			return !y.answer && !y.Out && y.Switch == x.Switch && y.dst == x.dst
		})
		x.note("%s sent by %v to the group (MC_ID %s), addressed to %v, which stands for all", cli.Either(again != nil, "again", "as"), x.src, qpn(f.group.mcid), x.dst)
	}
	if x.from = last(f.before[x.h.PSN], x, func(y *parsed) bool {
		return y.Out && !y.answer && !y.seen && slices.Contains(y.to, x.Switch) && y.dst == x.dst
	}); x.from != nil {
		x.from.seen = true
		x.note("comes from %s", x.from.Switch)
	}
	n := f.node(x.Switch, x.dst.String())
	switch {
	case !x.intact: // the result depends on the switch's mode, and is seen
		if n != nil && copied(x.h.Opcode) {
			for i := range n.Edges {
				x.copies = append(x.copies, &copyOf{edge: &n.Edges[i]})
			}
		}
	case f.group.receiver(x) >= 0 || n == nil || len(n.Edges) == 0:
		x.note("not copied here: it passes by its unicast route")
	case !copied(x.h.Opcode):
		x.note("dropped: groups take WRITEs and SENDs, not %v (opcode)", x.h.Opcode)
	case x.ip.TTL <= 1:
		x.note("dropped: its TTL is %d (ttl)", x.ip.TTL)
	default:
		var list []string
		for i := range n.Edges {
			x.copies = append(x.copies, &copyOf{edge: &n.Edges[i]})
			list = append(list, goal(&n.Edges[i]))
		}
		switch {
		case len(list) == 1 && n.Edges[0].Unicast:
			x.note("not copied here: it passes %s", list[0])
		case len(list) == 1:
			x.note("one copy, %s", list[0])
		default:
			x.note("replicated: %d copies, %s", len(list), strings.Join(list, " and "))
		}
	}
}

func copied(o rocev2.Opcode) bool { return o.IsWrite() || o.IsSend() }

// goal returns the destination of a copy.
func goal(e *grouptree.Edge) string {
	by := "by its unicast route"
	if !e.Unicast {
		by = "by port " + ports(e)
	}
	if e.Receiver != "" {
		return by + " to receiver " + e.Receiver
	}
	return fmt.Sprintf("%s to %s for %s", by, strings.Join(names(e.To), " or "), strings.Join(e.Receivers, ", "))
}

func ports(e *grouptree.Edge) string {
	var list []string
	for _, p := range e.Ports {
		list = append(list, fmt.Sprint(p))
	}
	return strings.Join(list, " or ")
}

func names(nodes []*grouptree.Node) (list []string) {
	for _, n := range nodes {
		list = append(list, n.Switch)
	}
	return list
}

// fits reports whether a leaving packet is this copy.
func (c *copyOf) fits(g *groupInfo, x *parsed) bool {
	if c.seen || !c.edge.Unicast && !slices.Contains(c.edge.Ports, x.Port) {
		return false
	}
	if c.edge.Receiver != "" {
		return x.dst.String() == c.edge.Receiver && (x.h.DestQP == rocev2.QPN(c.edge.QPN) || c.edge.Unicast && x.h.DestQP == g.mcid)
	}
	return x.dst.String() == c.edge.Destination && x.h.DestQP == g.mcid
}

func (f *follower) dataOut(x *parsed) {
	var c *copyOf
	in := last(f.before[x.h.PSN], x, func(y *parsed) bool {
		if y.answer || y.Out || y.Switch != x.Switch || x.intact && !y.intact {
			return false
		}
		i := slices.IndexFunc(y.copies, func(c *copyOf) bool { return c.fits(&f.group, x) })
		if i < 0 {
			return false
		}
		c = y.copies[i]
		return true
	})
	if in == nil {
		if f.unicast(x) == nil {
			x.note("leaves %s; how it came in was not seen", x.Switch)
		}
		return
	}
	c.seen = true
	if x.to = names(c.edge.To); c.edge.Receiver != "" {
		x.note("rewritten for receiver %s: %s", c.edge.Receiver, changes(in, x))
		return
	}
	x.note("%s for %s; next is %s; changed: %s", cli.Either(c.edge.Unicast, "passed on", "copied"), strings.Join(c.edge.Receivers, ", "), strings.Join(x.to, " or "), changes(in, x))
}

// unicast finds the packet that leaves here unchanged by its unicast route, and comments on x.
func (f *follower) unicast(x *parsed) *parsed {
	in := last(f.before[x.h.PSN], x, func(y *parsed) bool {
		return !y.Out && !y.seen && len(y.copies) == 0 && y.Switch == x.Switch && y.src == x.src && y.dst == x.dst &&
			y.h.DestQP == x.h.DestQP && y.h.Opcode == x.h.Opcode
	})
	if in != nil {
		in.seen = true
		x.note("passed on by its unicast route; changed: %s", changes(in, x))
	}
	return in
}

func (f *follower) answerIn(x *parsed) {
	if x.Switch != f.group.root {
		x.note("%s; it passes by its unicast route to %s, where answers are merged", f.says(x), f.group.root)
		return
	}
	x.note("%s", f.says(x))
	if !x.intact {
		x.note("dropped: its ICRC is wrong (icrc)")
		return
	}
	f.merger.take(x, f.group.answerer(x))
	psn := x.h.PSN
	if x.state.known && x.h.Opcode != rocev2.CNP {
		psn = x.state.out.PSN
	}
	f.passed[psn] = append(f.passed[psn], x)
}

// says returns the meaning of an answer.
func (f *follower) says(x *parsed) string {
	switch s := x.h.AETH.Syndrome; {
	case x.h.Opcode == rocev2.CNP:
		return fmt.Sprintf("%v reports congestion", x.src)
	case s.IsAck():
		return fmt.Sprintf("%v acknowledges all up to PSN %d", x.src, x.h.PSN)
	case s.IsRNR():
		return fmt.Sprintf("%v has no receive posted for PSN %d, and has all before", x.src, x.h.PSN)
	default:
		return fmt.Sprintf("%v refuses PSN %d, %v, and has all before", x.src, x.h.PSN, s)
	}
}

func (f *follower) answerOut(x *parsed) {
	if !f.group.merged(x) {
		if f.unicast(x) == nil {
			x.note("leaves %s; how it came in was not seen", x.Switch)
		}
		return
	}
	in := last(f.passed[x.h.PSN], x, func(y *parsed) bool { return !y.seen && y.Switch == x.Switch && f.merger.became(y, x) })
	if in == nil {
		x.note("merged: the sender takes it for the answer of all; what it was made of was not seen")
		return
	}
	in.seen = true
	if x.h.Opcode == rocev2.CNP {
		x.note("merged: passed on to the sender; changed: %s", changes(in, x))
		return
	}
	x.note("merged: the sender takes it for the answer of all %d (%s); changed: %s", len(f.group.members), in.state.text(&f.group), changes(in, x))
}

// missing says which expected packets were not seen.
func (f *follower) missing(x *parsed) {
	if !x.Out && !x.answer && !x.intact {
		passed := x.seen || slices.ContainsFunc(x.copies, func(c *copyOf) bool { return c.seen })
		x.note("%s", cli.Either(passed, "its ICRC is wrong: passed on so, for who receives it to drop it", "dropped: its ICRC is wrong (icrc)"))
	}
	for _, c := range x.copies {
		switch {
		case c.seen || !x.intact:
		case !f.watched(x.Switch, c.edge):
			x.note("the copy %s was not watched", goal(c.edge))
		default:
			x.note("dropped: the copy %s did not leave: lost in the queue, by a test's rule, or for want of a next hop; \"switchctl counters\" says which", goal(c.edge))
		}
	}
	switch {
	case x.Out && !x.answer && len(x.to) > 0 && !x.seen && slices.ContainsFunc(x.to, f.watches):
		x.note("dropped: it did not arrive at %s: lost on the link", strings.Join(x.to, " or "))
	case !x.Out && x.answer && x.Switch == f.group.root && x.intact && x.state.verdict == ackmerge.Pass && x.state.known && !x.seen:
		x.note("dropped: it was to be passed on to the sender, and was not seen to leave")
	}
}

// watched reports whether a leaving copy would have been seen.
func (f *follower) watched(sw string, e *grouptree.Edge) bool {
	if e.Unicast {
		return f.watches(sw)
	}
	return !slices.ContainsFunc(e.Ports, func(p uint32) bool { return !f.ports[switchPort{sw, p}] })
}

// watches reports whether any port of a switch is watched.
func (f *follower) watches(sw string) bool {
	for p := range f.ports {
		if p.sw == sw {
			return true
		}
	}
	return false
}
