package bifurcation

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// Link is a next hop of a switch, and the switch at its other end.
type Link struct {
	Hop
	To Switch // "" is the destination itself
}

// Fabric is a network as Plan sees it. Results are only read, and must not change while a
// call of this package runs.
type Fabric interface {
	// Uplinks returns the switches that a host is connected to; none if the host is unknown.
	Uplinks(host netip.Addr) []Switch

	// NextHops are the equal-cost next hops of a switch to a host.
	NextHops(at Switch, dst netip.Addr) []Link

	// Programmable says whether the switch can hold rules.
	Programmable(at Switch) bool
}

// Ahead returns a switch's route to a host, with the next programmable switches on its paths. It
// looks through non-programmable switches, and follows all of their equal-cost paths. Errors are
// ErrNoRoute and ErrLoop.
func Ahead(f Fabric, at Switch, dst netip.Addr) (Route, error) {
	links := f.NextHops(at, dst)
	r := Route{Hops: make([]Hop, 0, len(links)), Next: make([]Switch, 0, len(links))}
	arrive := func(s Switch) bool {
		switch {
		case s == "":
			r.Direct = true
		case s == at || !f.Programmable(s):
			return false
		case !slices.Contains(r.Next, s):
			r.Next = append(r.Next, s)
		}
		return true
	}
	w := walk{f: f, dst: dst, stop: arrive, open: []Switch{at}}
	for _, l := range links {
		r.Hops = append(r.Hops, l.Hop)
		if err := w.from(l.To); err != nil {
			return Route{}, err
		}
	}
	if len(links) == 0 {
		return Route{}, fmt.Errorf("%w to %v from switch %q", ErrNoRoute, dst, at)
	}
	return r, nil
}

// walk goes all unicast paths to a host, depth first.
type walk struct {
	f    Fabric
	dst  netip.Addr
	stop func(Switch) bool // called on each arrival, "" at the host: go no further?

	open, done []Switch // on the path to here; gone behind
}

func (w *walk) from(at Switch) error {
	if w.stop(at) || slices.Contains(w.done, at) {
		return nil
	}
	if slices.Contains(w.open, at) {
		return fmt.Errorf("%w: packets to %v come by switch %q again", ErrLoop, w.dst, at)
	}
	links := w.f.NextHops(at, w.dst)
	if len(links) == 0 {
		return fmt.Errorf("%w to %v from switch %q", ErrNoRoute, w.dst, at)
	}
	w.open = append(w.open, at)
	for _, l := range links {
		if err := w.from(l.To); err != nil {
			return err
		}
	}
	w.open = w.open[:len(w.open)-1]
	w.done = append(w.done, at)
	return nil
}

// paths goes all paths from a host to another, as far as the switch. It fails if
// one of them loops or ends before, and says whether one of them avoids the switch.
func paths(f Fabric, from, to netip.Addr, without Switch) (avoids bool, err error) {
	uplinks := f.Uplinks(from)
	if len(uplinks) == 0 {
		return false, fmt.Errorf("%w from %v: it is attached to no switch", ErrNoRoute, from)
	}
	w := walk{f: f, dst: to, stop: func(s Switch) bool {
		avoids = avoids || s == ""
		return s == "" || s == without
	}}
	for _, s := range uplinks {
		if err := w.from(s); err != nil {
			return false, err
		}
	}
	return avoids, nil
}

// MergePoint returns the programmable switch nearest to the sender that all of the sender's packets
// and all answers pass, whatever equal-cost path they take. The sender's packets are those to
// Group.Destination. If that is no receiver's address, the paths behind the merge point do not
// matter: they may end there, or loop. Errors are ErrNoMergePoint, which says why each switch on a
// path of the packets is unsuitable, ErrNoRoute and ErrLoop.
func MergePoint(f Fabric, g Group) (Switch, error) {
	if err := g.Validate(); err != nil {
		return "", err
	}
	dst := g.Destination()
	if _, err := paths(f, g.Source, dst, ""); err != nil && (!g.astray() || len(f.Uplinks(g.Source)) == 0) {
		return "", err
	}
	for _, r := range g.Receivers {
		if _, err := paths(f, r.Addr, g.Source, ""); err != nil {
			return "", err
		}
	}
	// A switch that all paths pass is on any one of them.
	var gone []Switch
	var why []string
	for at := f.Uplinks(g.Source)[0]; at != "" && !slices.Contains(gone, at); {
		fault := misses(f, g, at)
		if fault == "" {
			return at, nil
		}
		gone, why = append(gone, at), append(why, fmt.Sprintf("%s %s", at, fault))
		links := f.NextHops(at, dst)
		if len(links) == 0 {
			break
		}
		at = links[0].To
	}
	return "", fmt.Errorf("%w: no programmable switch is on all paths from and to %v: %s", ErrNoMergePoint, g.Source, strings.Join(why, "; "))
}

// astray says whether the sender's packets may lead nowhere: their address is not
// a receiver's.
func (g Group) astray() bool {
	dst := g.Destination()
	return !slices.ContainsFunc(g.Receivers, func(r Receiver) bool { return r.Addr == dst })
}

// misses says why a switch is no merge point; empty: it is one. What ends or loops
// before it does not pass it.
func misses(f Fabric, g Group, at Switch) string {
	if !f.Programmable(at) {
		return "is not programmable"
	}
	if avoids, err := paths(f, g.Source, g.Destination(), at); avoids || err != nil {
		return fmt.Sprintf("is not on all paths to %v", g.Destination())
	}
	for _, r := range g.Receivers {
		if avoids, err := paths(f, r.Addr, g.Source, at); avoids || err != nil {
			return fmt.Sprintf("is not on all paths of answers from %v", r.Addr)
		}
	}
	return ""
}

// A SwitchStep is one switch's step.
type SwitchStep struct {
	At        Switch
	Dst       netip.Addr // what the rules match
	Receivers []Receiver // the representative first
	Result
}

// Planned is a group in the whole fabric.
type Planned struct {
	MergePoint Switch
	Merge      Merge // to be installed there

	// Steps in the order of installation: each after those that get its branches; the merge point's
	// last. Some have no rules.
	Steps []SwitchStep

	// Early counts the branches that were split early to avoid ErrAmbiguous.
	Early int
}

// Plan runs all steps of a group. maxPREGroups is as in Request. Errors are those
// of Step, and of MergePoint; not ErrAmbiguous, which Plan resolves itself.
func Plan(f Fabric, g Group, maxPREGroups int) (Planned, error) {
	at, err := MergePoint(f, g)
	if err != nil {
		return Planned{}, err
	}
	for _, r := range g.Receivers {
		w := walk{f: f, dst: r.Addr, stop: func(s Switch) bool { return s == "" }}
		if err := w.from(at); err != nil {
			return Planned{}, err
		}
	}
	p := planner{f: f, g: g, max: maxPREGroups, early: map[Switch][]netip.Addr{}}
	for n := 0; ; n++ {
		p.steps, p.known = nil, map[stepKey][]Receiver{}
		dst := g.Destination()
		err := p.visit(at, dst, toFront(dst, g.Receivers), nil)
		var clash *clash
		switch {
		case err == nil:
			return Planned{MergePoint: at, Merge: MergeOf(g), Steps: p.steps, Early: n}, nil
		case !errors.As(err, &clash):
			return Planned{}, err
		}
		// Each time, some switch gets a receiver that it did not have, so the loop ends.
		for _, r := range clash.receivers {
			p.early[clash.from] = append(p.early[clash.from], r.Addr)
		}
	}
}

// clash is an ErrAmbiguous that records which switch could have avoided it.
type clash struct {
	from, at  Switch
	receivers []Receiver
}

func (c *clash) Error() string {
	return fmt.Sprintf("%v: at switch %q, that of %v from %q is the second", ErrAmbiguous, c.at, c.receivers[0].Addr, c.from)
}

func (c *clash) Unwrap() error { return ErrAmbiguous }

// A stepKey is a step's switch, and the destination of the packets that come there.
type stepKey struct {
	at Switch
	as netip.Addr
}

type planner struct {
	f     Fabric
	g     Group
	max   int
	early map[Switch][]netip.Addr
	steps []SwitchStep
	known map[stepKey][]Receiver // receivers reached from there
}

// visit makes the step of a switch, after those behind it. Unicast routes are known
// to be free of loops, and so are the branches, which follow them.
func (p *planner) visit(at Switch, dst netip.Addr, receivers []Receiver, via []Switch) error {
	key := stepKey{at, dst}
	if before := p.known[key]; before != nil {
		if !slices.EqualFunc(before, receivers, func(a, b Receiver) bool { return a.Addr == b.Addr }) {
			return &clash{from: via[len(via)-1], at: at, receivers: receivers}
		}
		return nil
	}
	p.known[key] = receivers
	via = append(via, at)
	result, err := Step(Request{
		Source: p.g.Source, ID: p.g.ID, Receivers: receivers, Dst: dst, Via: via, Early: p.early[at], Late: p.g.Late, MaxPREGroups: p.max,
	}, func(dst netip.Addr) (Route, error) { return Ahead(p.f, at, dst) })
	if err != nil {
		return err
	}
	for _, b := range result.Branches {
		for _, next := range b.Next {
			if err := p.visit(next, b.Receivers[0].Addr, b.Receivers, via); err != nil {
				return err
			}
		}
	}
	p.steps = append(p.steps, SwitchStep{At: at, Dst: dst, Receivers: receivers, Result: result})
	return nil
}
