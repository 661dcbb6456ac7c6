package program

// registry finds objects of one kind by their names and ids in the JSON.
type registry struct {
	byName map[string]int
	byID   map[int]int
	shared bool // names need not be unique
}

// add registers the object described by n, with its name and id, under an index.
func (r *registry) add(n node, index int) (name string) {
	if r.byName == nil {
		r.byName, r.byID = map[string]int{}, map[int]int{}
	}
	name, id := n.get("name").name(), n.get("id").integer(0, maxID)
	if _, ok := r.byID[id]; ok {
		n.invalid("id %d is taken", id)
	}
	r.byID[id] = index
	if _, ok := r.byName[name]; ok && !r.shared {
		n.invalid("the name %s is taken", quote(name))
	}
	r.byName[name] = index
	return name
}

// named returns the index of the object that the string n names.
func (r *registry) named(n node, kind string) int {
	i, ok := r.byName[n.str()]
	if !ok {
		n.invalid("no %s has the name %s", kind, quote(n.str()))
	}
	return i
}

// numbered returns the index of the object with that id.
func (r *registry) numbered(n node, kind string, id int) int {
	i, ok := r.byID[id]
	if !ok {
		n.invalid("no %s has the id %d", kind, id)
	}
	return i
}

// each calls f for the elements of a list of the root, each as a named construct.
func (l *loader) each(root node, list, kind string, f func(i int, n node)) {
	for i, n := range root.optional(list) {
		n = n.in("%s %d", kind, i)
		if n.has("name") {
			n = n.in("%s %s", kind, quote(n.get("name").name()))
		}
		f(i, n)
	}
}

// declared calls f for the objects of a list of the root, which have names, ids and the given
// members, and adds them to a registry.
func (l *loader) declared(root node, list, kind, required, optional string, r *registry, f func(i int, n node, name string)) {
	l.each(root, list, kind, func(i int, n node) {
		n = n.object("name id "+required, optional)
		f(i, n, r.add(n, i))
	})
}

// allocate subtracts bytes from the limit of the program's state.
func (l *loader) allocate(n node, cells, bytes int) {
	if l.state += cells * bytes; l.state > maxState {
		n.unsupported("%d cells of %d bytes bring counters, meters and registers to more than %d bytes",
			cells, bytes, maxState)
	}
}
