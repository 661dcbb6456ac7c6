package program

import (
	"fmt"
	"math/big"
	"slices"
)

const tableRequired = "name id key match_type type max_size actions next_tables"

const tableOptional = "with_counters support_timeout direct_meters action_ids base_default_next default_entry " +
	"entries action_profile act_prof_name selector default_action"

func (c *control) table(n node) Table {
	n = n.object(tableRequired, tableOptional)
	t := Table{
		Name:    n.get("name").str(),
		Egress:  c.egress,
		Size:    n.get("max_size").size(maxCells),
		Counter: None,
		Meter:   None,
		Profile: None,
		Timeout: n.flag("support_timeout", false),
		Source:  n.source,
	}
	if n.flag("with_counters", false) {
		t.Counter = pending
	}
	if m := n.get("direct_meters"); !m.isNull() {
		t.Meter = c.l.meters.named(m, "meter")
	}
	c.key(n, &t)
	c.actions(n, &t)
	c.transitions(n, &t)
	c.implementation(n, &t)
	if d := n.get("default_entry"); !d.isNull() {
		t.Default = c.defaultEntry(d.under("default_entry"), &t)
	}
	if n.has("entries") {
		c.entries(n, &t)
	}
	return t
}

// next loads the name of a node, or null for the end of the control.
func (c *control) next(n node) Node {
	if n.isNull() {
		return Node{}
	}
	next, ok := c.nodes[n.str()]
	if !ok {
		n.invalid("it goes on to %s, which does not exist in this control", quote(n.str()))
	}
	return next
}

// matchKind reads the name of a match kind.
func matchKind(n node) MatchKind {
	k, ok := map[string]MatchKind{"exact": Exact, "valid": Exact, "lpm": LPM, "ternary": Ternary, "range": Range}[n.str()]
	if !ok {
		n.unsupported("match kind %s", quote(n.str()))
	}
	return k
}

func (c *control) key(n node, t *Table) {
	lpm := 0
	for i, k := range n.get("key").list() {
		k = k.under("key %d", i).object("match_type target", "mask name")
		f := KeyField{Match: matchKind(k.get("match_type"))}
		if k.get("match_type").v == "valid" { // P4_14's, for a header
			f.Field = FieldRef{c.l.realHeader(k.get("target")), Valid}
			f.Name = k.get("target").str()
		} else {
			f.Field = c.l.readable(k.get("target"))
		}
		if name := k.get("name"); !name.isNull() {
			f.Name = name.name()
		} else if f.Name == "" {
			f.Name = c.l.prog.Headers[f.Field.Header].Name + "." + c.l.fieldAt(f.Field).Name
		}
		f.Bits = c.l.fieldAt(f.Field).Bits
		if m := k.get("mask"); !m.isNull() {
			f.Mask = m.unsigned(f.Bits)
		}
		if f.Match == LPM {
			lpm++
		}
		t.Kind = max(t.Kind, f.Match)
		t.Key = append(t.Key, f)
	}
	if lpm > 1 {
		n.unsupported("a key with %d lpm fields", lpm)
	}
	kind := matchKind(n.get("match_type"))
	if kind < t.Kind {
		n.invalid("match_type %s, but a more general field in the key", quote(n.get("match_type").str()))
	}
	t.Kind = kind
}

func (c *control) actions(n node, t *Table) {
	names := n.get("actions").list()
	ids := n.optional("action_ids")
	if n.has("action_ids") && len(ids) != len(names) {
		n.invalid("%d action_ids for %d actions", len(ids), len(names))
	}
	seen := map[string]bool{}
	for i, name := range names {
		var a int
		if len(ids) > 0 {
			a = c.l.actions.numbered(n, "action", ids[i].integer(0, maxID))
		} else {
			a = c.l.actions.named(name, "action")
		}
		if have := c.l.prog.Actions[a].Name; have != name.str() || seen[have] {
			n.invalid("action %s does not fit its id, or comes twice", quote(name.str()))
		}
		seen[name.str()] = true
		t.Actions = append(t.Actions, a)
	}
}

// transitions loads the next nodes: after a hit and a miss, or after each action.
func (c *control) transitions(n node, t *Table) {
	next := n.get("next_tables")
	o, ok := next.v.(*object)
	if !ok {
		next.want("an object as next_tables")
	}
	t.After = c.next(n.get("base_default_next"))
	if next.has("__HIT__") || next.has("__MISS__") {
		next = next.object("__HIT__ __MISS__", "")
		t.HitMiss, t.Hit, t.Miss = true, c.next(next.get("__HIT__")), c.next(next.get("__MISS__"))
		t.After = t.Miss
		return
	}
	if len(o.names) != len(t.Actions) {
		n.invalid("%d next_tables for %d actions", len(o.names), len(t.Actions))
	}
	for _, a := range t.Actions {
		name := c.l.prog.Actions[a].Name
		if !next.has(name) {
			n.invalid("no next table after action %s", quote(name))
		}
		t.Next = append(t.Next, c.next(next.get(name)))
	}
}

// implementation loads whether the table has an action profile.
func (c *control) implementation(n node, t *Table) {
	typ := n.get("type").str()
	switch typ {
	case "simple":
		if n.has("action_profile") || n.has("act_prof_name") {
			n.invalid("a simple table with an action profile")
		}
		return
	case "indirect", "indirect_ws":
	default:
		n.unsupported("table type %s", quote(typ))
	}
	switch {
	case n.has("action_profile"):
		t.Profile = c.l.profiles.named(n.get("action_profile"), "action profile")
	case n.has("act_prof_name"):
		t.Profile = c.l.ownProfile(n)
	default:
		n.invalid("an indirect table without an action profile")
	}
	if p := c.l.prog.Profiles[t.Profile]; p.Selector != (typ == "indirect_ws") {
		n.invalid("type %s does not suit action profile %s", quote(typ), quote(p.Name))
	}
	if n.has("entries") {
		n.unsupported("const entries in a table with an action profile")
	}
}

// ownProfile loads a profile that an older compiler declared inside its table.
func (l *loader) ownProfile(n node) (index int) {
	index = len(l.prog.Profiles)
	name := n.get("act_prof_name").name()
	if _, ok := l.profiles.byName[name]; ok {
		n.invalid("the name %s is taken", quote(name))
	}
	l.profile(n, Profile{Name: name, Source: n.source})
	if l.profiles.byName == nil {
		l.profiles.byName, l.profiles.byID = map[string]int{}, map[int]int{}
	}
	l.profiles.byName[name] = index
	return index
}

// profile adds a profile, with the selector in n, if any.
func (l *loader) profile(n node, p Profile) {
	if n.has("selector") {
		p.Selector = true
		s := n.get("selector").under("selector").object("algo input", "")
		p.Algo = algorithm(s.get("algo"))
		for _, in := range s.get("input").list() {
			p.Input = append(p.Input, l.fieldElement(in))
		}
	}
	l.prog.Profiles = append(l.prog.Profiles, p)
}

func (c *control) defaultEntry(n node, t *Table) *DefaultEntry {
	n = n.object("action_id action_data", "action_const action_entry_const")
	d := &DefaultEntry{
		Call:        c.call(n, t),
		ConstAction: n.flag("action_const", false),
		ConstEntry:  n.flag("action_entry_const", false),
	}
	if t.Profile != None {
		n.unsupported("a default entry in a table with an action profile")
	}
	return d
}

// call reads an action of the table with its arguments.
func (c *control) call(n node, t *Table) Call {
	call := Call{Action: c.l.actions.numbered(n, "action", n.get("action_id").integer(0, maxID))}
	a := c.l.prog.Actions[call.Action]
	if !slices.Contains(t.Actions, call.Action) {
		n.invalid("action %s is not one of the table's", quote(a.Name))
	}
	args := n.get("action_data").list()
	if len(args) != len(a.Params) {
		n.invalid("%d arguments for action %s, want %d", len(args), quote(a.Name), len(a.Params))
	}
	for i, p := range a.Params {
		call.Args = append(call.Args, args[i].argument(p.Bits))
	}
	return call
}

func (c *control) entries(n node, t *Table) {
	seen := map[string]bool{}
	t.Entries = []Entry{}
	for i, e := range n.get("entries").list() {
		e = e.under("entry %d", i).object("match_key action_entry priority", "")
		key := e.get("match_key").list()
		if len(key) != len(t.Key) {
			e.invalid("a key of %d fields, want %d", len(key), len(t.Key))
		}
		entry := Entry{Priority: e.get("priority").integer(0, 1<<31-2)}
		for k, f := range t.Key {
			entry.Key = append(entry.Key, entryKey(key[k].under("entry %d, key %d", i, k), f))
		}
		call := e.get("action_entry").object("action_id action_data", "")
		entry.Call = c.call(call, t)
		if id := entry.identity(t); seen[id] {
			e.invalid("an earlier entry has the same key")
		} else {
			seen[id] = true
		}
		t.Entries = append(t.Entries, entry)
	}
	t.Size = max(t.Size, len(t.Entries))
}

// identity returns the same string for two entries that cannot both be in the table.
func (e Entry) identity(t *Table) string {
	id := ""
	for _, k := range e.Key {
		id += fmt.Sprintf("%v/%v/%v/%d ", k.Value, k.Mask, k.High, k.PrefixLen)
	}
	if t.Kind >= Ternary {
		id += fmt.Sprint(e.Priority)
	}
	return id
}

// entryKey loads a field of an entry's key. Irrelevant bits of the value become zeros.
func entryKey(n node, f KeyField) EntryKey {
	want := map[MatchKind]string{Exact: "key", LPM: "key prefix_length", Ternary: "key mask", Range: "start end"}
	n = n.object("match_type "+want[f.Match], "")
	if matchKind(n.get("match_type")) != f.Match {
		n.invalid("match kind %s is not the table's", quote(n.get("match_type").str()))
	}
	if f.Match == Range {
		k := EntryKey{Value: n.get("start").unsigned(f.Bits), High: n.get("end").unsigned(f.Bits)}
		if k.Value.Cmp(k.High) > 0 {
			n.invalid("an empty range")
		}
		return k
	}
	k := EntryKey{Value: n.get("key").unsigned(f.Bits)}
	switch f.Match {
	case LPM:
		k.PrefixLen = n.get("prefix_length").integer(0, f.Bits)
		if f.Bits > word && k.PrefixLen == 0 && k.Value.Sign() != 0 {
			// p4c writes 0 for the length of any mask that ends above the 64th bit.
			n.invalid("%#x with a prefix of no bits; write longer masks, or insert the entry at run time", k.Value)
		}
		k.Value.AndNot(k.Value, ones(f.Bits-k.PrefixLen))
	case Ternary:
		k.Mask = n.get("mask").unsigned(f.Bits)
		k.Value = new(big.Int).And(k.Value, k.Mask)
	}
	return k
}
