package bifurcation

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
)

// LinkLoad is the load of a link, in one direction, in copies per packet of the sender: the mean
// over all choices among equal-cost paths, which are equally likely.
type LinkLoad struct {
	From Switch // "": the sender
	Port uint32 // of From; 0 at the sender
	To   Switch // "": a receiver

	Group   float64 // copies for the group
	Unicast float64 // copies if the sender had a connection to each receiver
}

// Savings compares a group with as many connections as it has receivers.
type Savings struct {
	Links          []LinkLoad // that carry anything; by From, then Port, then To
	Group, Unicast float64    // sums over Links
}

// Save returns the load of the fabric's links with a group, and with unicast instead. p is Plan's
// result for the same fabric and group. Errors are ErrNoRoute and ErrLoop, of unicast paths from
// the sender.
func Save(f Fabric, g Group, p Planned) (Savings, error) {
	group := flows{f: f, source: g.Source, steps: map[stepKey]*SwitchStep{}}
	for i, s := range p.Steps {
		if !s.Rules.Empty() {
			group.steps[stepKey{s.At, s.Dst}] = &p.Steps[i]
		}
	}
	unicast := flows{f: f, source: g.Source}
	if err := group.send(g.Destination(), false); err != nil {
		return Savings{}, err
	}
	for _, r := range g.Receivers {
		if err := unicast.send(r.Addr, true); err != nil {
			return Savings{}, err
		}
	}
	sum := map[LinkLoad]LinkLoad{} // by the first three members
	for l, n := range group.load {
		sum[l] = LinkLoad{From: l.From, Port: l.Port, To: l.To, Group: n}
	}
	for l, n := range unicast.load {
		sum[l] = LinkLoad{From: l.From, Port: l.Port, To: l.To, Group: sum[l].Group, Unicast: n}
	}
	out := Savings{Links: make([]LinkLoad, 0, len(sum))}
	for _, l := range sum {
		out.Links = append(out.Links, l)
	}
	slices.SortFunc(out.Links, func(a, b LinkLoad) int {
		return cmp.Or(cmp.Compare(a.From, b.From), cmp.Compare(a.Port, b.Port), cmp.Compare(a.To, b.To))
	})
	for _, l := range out.Links { // in order, so that the sums are the same each time
		out.Group += l.Group
		out.Unicast += l.Unicast
	}
	return out, nil
}

// flows follows packets through a fabric.
type flows struct {
	f      Fabric
	source netip.Addr
	steps  map[stepKey]*SwitchStep
	load   map[LinkLoad]float64 // by the first three members
}

// A stage is a packet at a switch: where it is, where it goes, and whether steps
// concern it no longer.
type stage struct {
	at   Switch
	dst  netip.Addr
	last bool
}

// A leaving is one way on.
type leaving struct {
	port  uint32
	share float64
	to    stage // at "": arrived
}

// send adds what one packet of the sender's puts on each link.
func (w *flows) send(dst netip.Addr, last bool) error {
	uplinks := w.f.Uplinks(w.source)
	order := sorting{flows: w, state: map[stage]bool{}}
	for _, s := range uplinks {
		if err := order.visit(stage{s, dst, last}); err != nil {
			return err
		}
	}
	if w.load == nil {
		w.load = map[LinkLoad]float64{}
	}
	share := 1 / float64(len(uplinks))
	amount := map[stage]float64{}
	for _, s := range uplinks {
		w.load[LinkLoad{To: s}] += share
		amount[stage{s, dst, last}] += share
	}
	for _, s := range slices.Backward(order.done) { // all that leads to a stage comes before it
		out, _ := w.leave(s)
		for _, l := range out {
			n := amount[s] * l.share
			w.load[LinkLoad{From: s.at, Port: l.port, To: l.to.at}] += n
			amount[l.to] += n
		}
	}
	return nil
}

// leave says where a packet, or its copies, go on to.
func (w *flows) leave(s stage) ([]leaving, error) {
	var out []leaving
	step := w.steps[stepKey{s.at, s.dst}]
	if step == nil || s.last {
		links := w.f.NextHops(s.at, s.dst)
		if len(links) == 0 {
			return nil, fmt.Errorf("%w to %v from switch %q", ErrNoRoute, s.dst, s.at)
		}
		for _, l := range links {
			out = append(out, leaving{l.Port, 1 / float64(len(links)), stage{l.To, s.dst, s.last}})
		}
		return out, nil
	}
	for _, group := range step.Rules.PREGroups {
		for _, c := range group {
			r := step.Rules.Rewrites[c.RID-1]
			for _, l := range w.f.NextHops(s.at, r.Dst) {
				if l.Hop == (Hop{r.NextHop, c.Port}) {
					out = append(out, leaving{c.Port, 1 / float64(len(step.Rules.PREGroups)), stage{l.To, r.Dst, r.Last}})
					break
				}
			}
		}
	}
	return out, nil
}

// sorting puts stages in order: each behind those that it leads to.
type sorting struct {
	*flows
	done  []stage
	state map[stage]bool // there: was visited; true: done
}

func (o *sorting) visit(s stage) error {
	done, visited := o.state[s]
	switch {
	case s.at == "" || done:
		return nil
	case visited:
		return fmt.Errorf("%w: packets to %v come by switch %q again", ErrLoop, s.dst, s.at)
	}
	o.state[s] = false
	out, err := o.leave(s)
	if err != nil {
		return err
	}
	for _, l := range out {
		if err := o.visit(l.to); err != nil {
			return err
		}
	}
	o.state[s] = true
	o.done = append(o.done, s)
	return nil
}
