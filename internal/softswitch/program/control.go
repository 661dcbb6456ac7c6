package program

// pending marks a table whose direct counter is not known yet, and such a counter.
const pending = -2

func (l *loader) loadPipelines(root node) {
	list := root.get("pipelines").list()
	seen := map[string]bool{}
	for _, n := range list {
		n = n.in("pipelines").object("name id init_table tables conditionals", "action_profiles action_calls")
		name := n.get("name").name()
		if seen[name] || name != "ingress" && name != "egress" {
			n.unsupported("pipeline %s; v1model has one ingress and one egress", quote(name))
		}
		seen[name] = true
		if len(n.optional("action_calls")) > 0 {
			n.unsupported("action_calls")
		}
		first := l.loadPipeline(n, name == "egress")
		if name == "egress" {
			l.prog.Egress = first
		} else {
			l.prog.Ingress = first
		}
	}
	if len(seen) != 2 {
		root.get("pipelines").invalid("ingress or egress is missing")
	}
}

// control is a control while it is loaded.
type control struct {
	l      *loader
	nodes  map[string]Node
	egress bool
}

// loadPipeline loads a pipeline's tables and conditionals and returns its first node. It loads all
// names first, because nodes refer to later ones.
func (l *loader) loadPipeline(n node, egress bool) Node {
	for _, p := range n.optional("action_profiles") {
		l.loadProfile(p.in("action profile"))
	}
	c := &control{l, map[string]Node{}, egress}
	tables, conds := n.get("tables").list(), n.get("conditionals").list()
	firstTable, firstCond := len(l.prog.Tables), len(l.prog.Conditionals)
	for i := range tables {
		c.declare(&tables[i], "table", NodeTable, firstTable+i, &l.tables)
	}
	for i := range conds {
		c.declare(&conds[i], "conditional", NodeConditional, firstCond+i, &l.conds)
	}
	for _, t := range tables {
		l.prog.Tables = append(l.prog.Tables, c.table(t))
	}
	for _, d := range conds {
		l.prog.Conditionals = append(l.prog.Conditionals, c.conditional(d))
	}
	c.checkCycles(n, firstTable, firstCond)
	return c.next(n.get("init_table"))
}

// declare registers the index of a table or conditional under its name.
func (c *control) declare(n *node, kind string, k NodeKind, index int, r *registry) {
	*n = n.in("a %s", kind)
	if !n.has("name") || !n.has("id") {
		n.invalid("it has no name or no id")
	}
	name := r.add(*n, index)
	*n = n.in("%s %s", kind, quote(name))
	if _, ok := c.nodes[name]; ok {
		n.invalid("a table has the same name")
	}
	c.nodes[name] = Node{k, index}
}

func (c *control) conditional(n node) Conditional {
	n = n.object("name id expression", "true_next false_next")
	return Conditional{
		Name:   n.get("name").str(),
		Cond:   c.l.condition(n.get("expression"), scope{}),
		True:   c.next(n.get("true_next")),
		False:  c.next(n.get("false_next")),
		Source: n.source,
	}
}

func (l *loader) loadProfile(n node) {
	n = n.object("name id max_size", "selector")
	name := l.profiles.add(n, len(l.prog.Profiles))
	n = n.in("action profile %s", quote(name))
	l.profile(n, Profile{Name: name, Size: n.get("max_size").size(maxCells), Source: n.source})
}

// successors returns the nodes that may come after n.
func (c *control) successors(n Node) []Node {
	if n.Kind == NodeConditional {
		d := c.l.prog.Conditionals[n.Index]
		return []Node{d.True, d.False}
	}
	t := c.l.prog.Tables[n.Index]
	return append([]Node{t.Hit, t.Miss, t.After}, t.Next...)
}

// checkCycles rejects a control with a cycle.
func (c *control) checkCycles(n node, firstTable, firstCond int) {
	open := map[Node]bool{} // false: no path from it leads back
	var visit func(at Node)
	visit = func(at Node) {
		if onPath, seen := open[at]; at.Kind == NodeEnd || seen && !onPath {
			return
		} else if onPath {
			c.refuseCycle(n, at)
		}
		open[at] = true
		for _, next := range c.successors(at) {
			visit(next)
		}
		open[at] = false
	}
	for i := firstTable; i < len(c.l.prog.Tables); i++ {
		visit(Node{NodeTable, i})
	}
	for i := firstCond; i < len(c.l.prog.Conditionals); i++ {
		visit(Node{NodeConditional, i})
	}
}

// refuseCycle rejects the program, naming one node of the cycle.
func (c *control) refuseCycle(n node, at Node) {
	if at.Kind == NodeTable {
		t := c.l.prog.Tables[at.Index]
		n, n.source = n.in("table %s", quote(t.Name)), t.Source
	} else {
		d := c.l.prog.Conditionals[at.Index]
		n, n.source = n.in("conditional %s", quote(d.Name)), d.Source
	}
	n.invalid("the control comes back to it")
}
