package grouptree

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
)

// ErrNoGroup tells that no agent knows the group.
var ErrNoGroup = errors.New("no such group")

// An Agent is how one is asked.
type Agent struct {
	Status mcrdmav1.SwitchStatusClient
	Groups mcrdmav1.SwitchGroupsClient
}

// A Source finds agents by their addresses. Several may be asked at once.
type Source func(address string) (Agent, error)

// Limits bound what is collected, whatever the agents say.
type Limits struct {
	Agents int // that are asked; 0: 256
	Nodes  int // of the tree; 0: 1024
}

// atOnce is how many agents are asked at the same time.
const atOnce = 16

// Collect finds the group, beginning at the agents that are named, and follows it from
// switch to switch. Directory holds addresses of agents by switch, beyond what the
// agents say themselves; it may be nil.
//
// An error is ErrNoGroup, that none of the first agents can be reached, or ctx's. All
// else that is wrong is in the tree.
func Collect(ctx context.Context, src Source, key Key, first []string, directory map[string]string, limits Limits) (*Tree, error) {
	c := &collector{
		src: src, limits: Limits{Agents: cmp.Or(limits.Agents, 256), Nodes: cmp.Or(limits.Nodes, 1024)}, tree: &Tree{Key: key},
		byAddr: map[string]*answer{}, address: map[string]string{}, nodes: map[nodeKey]*Node{},
	}
	maps.Copy(c.address, directory)
	if err := c.findRoots(ctx, first); err != nil {
		return nil, err
	}
	c.expand(ctx)
	if err := ctx.Err(); err != nil {
		c.tree.Problems = append(c.tree.Problems, fmt.Sprintf("not all agents were asked in time: %v", err))
	}
	c.tree.check()
	return c.tree, nil
}

// A nodeKey is a node's switch, and the destination of the packets that come there.
type nodeKey struct{ at, destination string }

// answer is what an agent says, asked once.
type answer struct {
	address string
	agent   Agent
	name    string
	peers   []*mcrdmav1.PeerStatus
	steps   []*mcrdmav1.Step // of the group
	err     error
}

type collector struct {
	src    Source
	limits Limits
	tree   *Tree

	byAddr  map[string]*answer
	asked   []*answer         // in order
	address map[string]string // of switches' agents
	nodes   map[nodeKey]*Node
	full    bool // a limit was reached
}

// ask asks those agents that were not asked before, at once.
func (c *collector) ask(ctx context.Context, addresses []string) {
	var fresh []*answer
	for _, addr := range addresses {
		switch {
		case addr == "" || c.byAddr[addr] != nil:
		case len(c.asked) >= c.limits.Agents:
			c.full = true
		default:
			a := &answer{address: addr}
			c.byAddr[addr] = a
			c.asked = append(c.asked, a)
			fresh = append(fresh, a)
		}
	}
	var g errgroup.Group
	g.SetLimit(atOnce)
	for _, a := range fresh {
		g.Go(func() error {
			c.question(ctx, a)
			return nil // the answer holds its error
		})
	}
	_ = g.Wait()
	for _, a := range fresh {
		if a.err != nil {
			continue
		}
		if _, known := c.address[a.name]; !known {
			c.address[a.name] = a.address
		}
		for _, p := range a.peers {
			if _, known := c.address[p.GetName()]; !known && p.GetAgent() != "" {
				c.address[p.GetName()] = p.GetAgent()
			}
		}
	}
}

// question fills in what one agent says.
func (c *collector) question(ctx context.Context, a *answer) {
	if a.agent, a.err = c.src(a.address); a.err != nil {
		return
	}
	var status *mcrdmav1.GetStatusResponse
	if status, a.err = a.agent.Status.GetStatus(ctx, &mcrdmav1.GetStatusRequest{}); a.err != nil {
		return
	}
	a.name, a.peers = status.GetName(), status.GetPeers()
	var steps *mcrdmav1.ListStepsResponse
	if steps, a.err = a.agent.Status.ListSteps(ctx, &mcrdmav1.ListStepsRequest{Group: c.tree.Key.Proto()}); a.err != nil {
		return
	}
	for _, s := range steps.GetSteps() {
		if k := s.GetGroup(); k.GetSource() == c.tree.Key.Source.String() && k.GetMcId() == c.tree.Key.ID {
			a.steps = append(a.steps, s)
		}
	}
}

// findRoots looks for the switch where the group was installed: against the stream,
// by the holders of steps, and else at the peers of all that were asked.
func (c *collector) findRoots(ctx context.Context, first []string) error {
	for next := first; len(next) > 0; {
		before := len(c.asked)
		c.ask(ctx, next)
		if len(c.asked) == before {
			break
		}
		for _, a := range c.asked {
			for _, s := range a.steps {
				if s.GetRoot() {
					c.root(ctx, a, s)
					return nil
				}
			}
		}
		if next = c.unasked(c.holders()); len(next) == 0 {
			next = c.unasked(c.peers())
		}
	}
	if len(c.asked) == 0 {
		return fmt.Errorf("%w: %v: there is no agent to ask", ErrNoGroup, c.tree.Key)
	}
	if !slices.ContainsFunc(c.asked, func(a *answer) bool { return a.err == nil }) {
		var all []error
		for _, a := range c.asked {
			all = append(all, a.err)
		}
		return errors.Join(all...)
	}
	return c.rootless()
}

// root takes the group from where it was installed.
func (c *collector) root(ctx context.Context, a *answer, s *mcrdmav1.Step) {
	r, err := a.agent.Groups.Get(ctx, &mcrdmav1.GetRequest{Key: c.tree.Key.Proto(), Counters: true, Acked: true})
	if err != nil {
		c.tree.Problems = append(c.tree.Problems, fmt.Sprintf("%s does not tell the group: %v", a.name, err))
	}
	c.tree.Group = r.GetGroup()
	if err == nil { // which may not be what it was asked for by
		c.tree.Key.Number = c.tree.Group.GetGroup().GetKey().GetNumber()
	}
	c.tree.Roots = []*Node{c.node(a.name, s.GetDestination())}
}

// rootless makes do without the switch where the group was installed.
func (c *collector) rootless() error {
	var silent []string
	known := map[nodeKey]bool{}
	for _, a := range c.asked {
		if a.err != nil {
			silent = append(silent, a.err.Error())
		}
		for _, s := range a.steps {
			known[nodeKey{a.name, s.GetDestination()}] = true
		}
	}
	for _, a := range c.asked {
		for _, s := range a.steps {
			below := func(h string) bool { return known[nodeKey{h, s.GetDestination()}] }
			if slices.ContainsFunc(s.GetHolders(), below) {
				continue
			}
			if n := c.node(a.name, s.GetDestination()); n != nil {
				c.tree.Roots = append(c.tree.Roots, n)
			}
		}
	}
	why := "; it was looked for at " + count(len(c.asked), "agent")
	if len(silent) > 0 {
		why += ", of which some did not answer: " + strings.Join(silent, "; ")
	}
	if c.full {
		why += ", which is the most; name the agent of the sender's switch with --agent"
	}
	if len(c.tree.Roots) == 0 {
		return fmt.Errorf("%w: %v%s", ErrNoGroup, c.tree.Key, why)
	}
	c.tree.Problems = append(c.tree.Problems, "the switch where the group was installed was not found"+why)
	return nil
}

// holders are the agents of the switches that the known steps get packets from.
func (c *collector) holders() (addresses []string) {
	for _, a := range c.asked {
		for _, s := range a.steps {
			for _, h := range s.GetHolders() {
				addresses = append(addresses, c.address[h])
			}
		}
	}
	return addresses
}

func (c *collector) peers() (addresses []string) {
	for _, a := range c.asked {
		for _, p := range a.peers {
			addresses = append(addresses, c.address[p.GetName()])
		}
	}
	return addresses
}

func (c *collector) unasked(addresses []string) (out []string) {
	for _, a := range addresses {
		if a != "" && c.byAddr[a] == nil && !slices.Contains(out, a) {
			out = append(out, a)
		}
	}
	return out
}

// of is what a switch's agent said; nil if it was not asked.
func (c *collector) of(name string) *answer {
	if a := c.byAddr[c.address[name]]; a != nil {
		return a
	}
	for _, a := range c.asked {
		if a.err == nil && a.name == name {
			return a
		}
	}
	return nil
}

// node is that of a switch and a destination; nil if there are too many.
func (c *collector) node(at, destination string) *Node {
	p := nodeKey{at, destination}
	if n := c.nodes[p]; n != nil {
		return n
	}
	if len(c.tree.Nodes) >= c.limits.Nodes {
		c.full = true
		return nil
	}
	n := &Node{Switch: at, Agent: c.address[at], Destination: destination}
	c.nodes[p] = n
	c.tree.Nodes = append(c.tree.Nodes, n)
	return n
}

// expand follows the copies, level by level, until no new node turns up.
func (c *collector) expand(ctx context.Context) {
	for from := 0; from < len(c.tree.Nodes) && ctx.Err() == nil; {
		level := c.tree.Nodes[from:]
		from = len(c.tree.Nodes)
		var next []string
		for _, n := range level {
			if a := c.of(n.Switch); a == nil {
				next = append(next, c.address[n.Switch])
			}
		}
		c.ask(ctx, next)
		next = nil
		for _, n := range level {
			c.fill(n)
			if n.Step != nil && len(n.Step.GetCopies()) == 0 {
				next = append(next, c.behind(n)...)
			}
		}
		c.ask(ctx, next)
		for _, n := range level {
			if n.Step != nil {
				c.follow(n)
			}
		}
	}
	if c.full {
		c.tree.Problems = append(c.tree.Problems, fmt.Sprintf(
			"the tree is larger than is looked at (%d agents, %d steps): it is not complete", c.limits.Agents, c.limits.Nodes))
	}
}

// fill takes a node's step from what its agent said.
func (c *collector) fill(n *Node) {
	a := c.of(n.Switch)
	switch {
	case a == nil && c.address[n.Switch] == "":
		n.problem("the address of its agent is not known; name it with --agent %s=HOST:PORT", n.Switch)
		return
	case a == nil:
		n.problem("its agent was not asked")
		return
	}
	n.Agent = a.address
	switch {
	case a.err != nil:
		n.problem("%v", a.err)
		return
	case a.name != n.Switch:
		n.problem("at %s, where its agent is said to be, is that of switch %q", a.address, a.name)
		return
	}
	n.Asked = true
	for _, s := range a.steps {
		if s.GetDestination() == n.Destination {
			n.Step = s
			n.Problems = append(n.Problems, s.GetProblems()...)
			return
		}
	}
	n.problem("does not know the branch of %s", n.Destination)
}

// follow makes the edges of a node, and the nodes that they lead to.
func (c *collector) follow(n *Node) {
	copies := n.Step.GetCopies()
	if len(copies) == 0 {
		c.pass(n)
	}
	for _, copied := range copies {
		e := Edge{Ports: copied.GetPorts(), Destination: copied.GetDestination(), Receivers: copied.GetReceivers()}
		if len(e.Ports) == 0 {
			n.problem("the copy for %s leaves by no port", e.Destination)
		}
		if copied.GetLast() {
			e.Receiver, e.QPN = e.Destination, copied.GetQpn()
		} else if len(copied.GetNext()) == 0 {
			n.problem("the copy for %s goes to no switch, and is not made for its receiver either", e.Destination)
		} else {
			c.connect(n, &e, copied.GetNext())
		}
		n.Edges = append(n.Edges, e)
	}
}

// connect leads an edge to the switches of these names.
func (c *collector) connect(n *Node, e *Edge, names []string) {
	for _, name := range names {
		to := c.node(name, e.Destination)
		switch {
		case to == nil:
			return
		case !slices.Contains(e.To, to):
			e.To = append(e.To, to)
		}
	}
}

// pass makes the edge of a switch that copies nothing. Only the next switches know
// that they are the next.
func (c *collector) pass(n *Node) {
	e := Edge{Destination: n.Destination, Unicast: true, Receivers: n.Step.GetReceivers()}
	var names []string
	for _, p := range c.of(n.Switch).peers {
		a := c.of(p.GetName())
		if a == nil || a.err != nil {
			continue
		}
		for _, s := range a.steps {
			if s.GetDestination() == n.Destination && slices.Contains(s.GetHolders(), n.Switch) {
				names = append(names, a.name)
			}
		}
	}
	if len(names) == 0 {
		n.problem("makes no copies, and no switch that could be asked takes the packets on")
	}
	c.connect(n, &e, names)
	n.Edges = append(n.Edges, e)
}

// behind are the agents that may hold the branch that a switch passes on.
func (c *collector) behind(n *Node) (addresses []string) {
	for _, p := range c.of(n.Switch).peers {
		if p.GetBranches() > 0 {
			addresses = append(addresses, c.address[p.GetName()])
		}
	}
	return addresses
}
