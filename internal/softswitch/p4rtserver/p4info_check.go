package p4rtserver

import (
	"fmt"
	"slices"
	"strings"

	p4cfg "github.com/p4lang/p4runtime/go/p4/config/v1"
	p4 "github.com/p4lang/p4runtime/go/p4/v1"

	"github.com/mcrdma/mcrdma/internal/softswitch/match"
	"github.com/mcrdma/mcrdma/internal/softswitch/pipeline"
	"github.com/mcrdma/mcrdma/internal/softswitch/program"
)

// An indexer builds an index and collects the problems found.
type indexer struct {
	*index
	info     *p4cfg.P4Info
	pipe     *pipeline.Pipeline
	prog     *program.Program // of the pipeline
	problems []string
	dropped  map[uint32]bool // ids of tables and action profiles that the program does not have
}

// maxProblems is the maximum number of problems in an error.
const maxProblems = 8

func (b *indexer) problem(format string, args ...any) {
	b.problems = append(b.problems, fmt.Sprintf(format, args...))
}

func (b *indexer) result() error {
	n := len(b.problems)
	if n == 0 {
		return nil
	}
	more := ""
	if n > maxProblems {
		more = fmt.Sprintf("; and %d more", n-maxProblems)
	}
	return invalid("P4Info and P4 device config do not go together: %s%s", strings.Join(b.problems[:min(n, maxProblems)], "; "), more)
}

// declare registers an object's id and name. It returns false if the object is unusable.
func (b *indexer) declare(kind string, pre *p4cfg.Preamble) (object, bool) {
	o := object{kind, pre.GetId(), pre.GetName()}
	switch {
	case o.name == "":
		b.problem("a %s with id %d has no name", kind, o.id)
	case o.id == 0:
		b.problem("%s has no id", o)
	case b.kinds[o.id] != "":
		b.problem("%s has the id %d of %s", o, o.id, b.kinds[o.id])
	default:
		b.kinds[o.id] = o.String()
		return o, true
	}
	return o, false
}

// common checks the parts of the P4Info outside of objects.
func (b *indexer) common() {
	pkg := b.info.GetPkgInfo()
	if arch := pkg.GetArch(); arch != "" && arch != "v1model" {
		b.problem("the P4Info is for the architecture %s, this switch runs v1model", arch)
	}
	for _, e := range b.info.GetExterns() {
		for _, i := range e.GetInstances() {
			b.problem("extern %s of type %s: this switch has only the externs of v1model", i.GetPreamble().GetName(), e.GetExternTypeName())
		}
	}
}

// width returns the width of an item with bits bits in the P4Info and have bits in the program. A
// translated type has the controller's width in the P4Info ("User-defined types"): this switch
// translates by keeping the number.
func (b *indexer) width(what string, bits int, typ *p4cfg.P4NamedType, have int) int {
	if tr := b.info.GetTypeInfo().GetNewTypes()[typ.GetName()].GetTranslatedType(); tr != nil {
		if tr.GetSdnBitwidth() == 0 {
			b.problem("%s: values of type %s are strings to the controller, which this switch cannot translate", what, typ.GetName())
		}
		return have
	}
	if bits != have && bits != 0 { // a type such as error has no width in the P4Info
		b.problem("%s has %d bits in the P4Info and %d in the program", what, bits, have)
	}
	return have
}

func (b *indexer) readActions() {
	for _, a := range b.info.GetActions() {
		o, ok := b.declare("action", a.GetPreamble())
		if !ok {
			continue
		}
		x := &action{object: o}
		at := slices.IndexFunc(b.prog.Actions, func(p program.Action) bool { return p.Name == x.name })
		if at < 0 {
			b.actions[x.id] = x // unused, or else the table that calls it reports the problem
			continue
		}
		var got []declared
		for _, p := range a.GetParams() {
			got = append(got, declared{field{id: p.GetId(), name: p.GetName(), bits: int(p.GetBitwidth())}, p.GetTypeName()})
		}
		x.params, x.byID = b.order(x.String(), "parameter", got, b.prog.Actions[at].Params)
		for _, f := range x.params {
			x.words += match.Words(f.bits)
		}
		b.actions[x.id] = x
	}
}

// A declared is a field as in the P4Info.
type declared struct {
	field
	typ *p4cfg.P4NamedType
}

// order sorts the P4Info's fields as in the program, by name; fields with the same name keep their
// order. The second result has the index in the first for each field of the P4Info.
func (b *indexer) order(where, kind string, got []declared, want []program.Param) ([]field, []int) {
	out := make([]field, len(want))
	byID := make([]int, 0, len(got))
	ids := map[uint32]bool{}
	for i, f := range got {
		if f.id == 0 || ids[f.id] {
			b.problem("%s: %s %s has the id %d, which is none or another's", where, kind, f.name, f.id)
			continue
		}
		ids[f.id] = true
		free := func(j int) bool { return want[j].Name == f.name && out[j].id == 0 }
		at := i
		if i >= len(want) || !free(i) {
			for at = 0; at < len(want) && !free(at); at++ {
			}
		}
		if at == len(want) {
			b.problem("%s: %s %s is not in the program", where, kind, f.name)
			continue
		}
		out[at] = f.field
		out[at].bits = b.width(fmt.Sprintf("%s: %s %s", where, kind, f.name), f.bits, f.typ, want[at].Bits)
		byID = append(byID, at)
	}
	for i, p := range want {
		if out[i].id == 0 {
			b.problem("%s: %s %s of the program is not in the P4Info", where, kind, p.Name)
		}
	}
	return out, byID
}

func (b *indexer) readTable(o object, t *p4cfg.Table, state *pipeline.Table) *table {
	p := state.Info()
	x := &table{object: o, state: state, constant: t.GetIsConstTable() || p.Entries != nil} // even if the P4Info does not say so
	b.readKey(x, t, p)
	b.readTableActions(x, t, p)
	b.readImplementation(x, t, p)
	d := p.Default
	x.constAction = d != nil && (d.ConstAction || d.ConstEntry) || t.GetConstDefaultActionId() != 0
	if d := t.GetInitialDefaultAction(); d.GetActionId() != 0 {
		x.initial = &p4.Action{ActionId: d.GetActionId()}
		for _, a := range d.GetArguments() {
			x.initial.Params = append(x.initial.Params, &p4.Action_Param{ParamId: a.GetParamId(), Value: canonical(a.GetValue())})
		}
	}
	x.idle = t.GetIdleTimeoutBehavior() == p4cfg.Table_NOTIFY_CONTROL
	if x.idle != p.Timeout {
		b.problem("%s: idle time-outs are %s in the P4Info and %s in the program", x, yesNo(x.idle), yesNo(p.Timeout))
	}
	b.byState[state] = x
	return x
}

func yesNo(b bool) string {
	if b {
		return "supported"
	}
	return "not supported"
}

// programKind maps match types of the P4Info to those of the JSON.
var programKind = map[p4cfg.MatchField_MatchType]program.MatchKind{
	p4cfg.MatchField_EXACT:    program.Exact,
	p4cfg.MatchField_LPM:      program.LPM,
	p4cfg.MatchField_TERNARY:  program.Ternary,
	p4cfg.MatchField_RANGE:    program.Range,
	p4cfg.MatchField_OPTIONAL: program.Ternary,
}

func (b *indexer) readKey(x *table, t *p4cfg.Table, p *program.Table) {
	var want []program.Param
	for _, k := range p.Key {
		want = append(want, program.Param{Name: k.Name, Bits: k.Bits})
	}
	var got []declared
	for _, m := range t.GetMatchFields() {
		got = append(got, declared{field{m.GetId(), m.GetName(), m.GetMatchType(), int(m.GetBitwidth())}, m.GetTypeName()})
		if m.GetOtherMatchType() != "" {
			b.problem("%s: field %s has the match type %s, which is not of v1model", x, m.GetName(), m.GetOtherMatchType())
		}
	}
	x.key.of = x
	x.key.spec, x.key.byID = b.order(x.String(), "match field", got, want)
	for i, f := range x.key.spec {
		if f.id == 0 {
			continue
		}
		switch kind, ok := programKind[f.kind]; {
		case !ok:
			b.problem("%s: match field %s has no match type", x, f.name)
		case kind != p.Key[i].Match:
			b.problem("%s: match field %s is %v in the P4Info and %s in the program", x, f.name, f.kind, kindName(p.Key[i].Match))
		}
		n := match.Words(f.bits)
		switch f.kind {
		case p4cfg.MatchField_TERNARY, p4cfg.MatchField_RANGE, p4cfg.MatchField_OPTIONAL:
			x.prioritized = true
			n *= 2
		}
		x.key.words += n
	}
}

func kindName(k program.MatchKind) string {
	return [...]string{"EXACT", "LPM", "TERNARY", "RANGE"}[k]
}

func (b *indexer) readTableActions(x *table, t *p4cfg.Table, p *program.Table) {
	for _, ref := range t.GetActionRefs() {
		a := b.actions[ref.GetId()]
		if a == nil {
			b.problem("%s: its action with id %d is %s", x, ref.GetId(), kindOf(b.kinds, ref.GetId()))
			continue
		}
		at := slices.IndexFunc(p.Actions, func(i int) bool { return b.prog.Actions[i].Name == a.name })
		if at < 0 {
			b.problem("%s: %s is not among the table's actions in the program", x, a)
			continue
		}
		prog := p.Actions[at]
		if !sameParams(a, b.prog.Actions[prog].Params) {
			b.problem("%s: %s has other parameters in the program", x, a)
			continue
		}
		x.actions = append(x.actions, tableAction{a, prog, ref.GetScope()})
	}
}

func sameParams(a *action, params []program.Param) bool {
	return slices.EqualFunc(a.params, params, func(f field, p program.Param) bool { return f.name == p.Name && f.bits == p.Bits })
}

func (b *indexer) readImplementation(x *table, t *p4cfg.Table, p *program.Table) {
	id := t.GetImplementationId()
	x.profile = b.profiles.byID[id]
	var have string
	if p.Profile != program.None {
		have = b.prog.Profiles[p.Profile].Name
	}
	switch {
	case id == 0 && have == "":
	case id == 0:
		b.problem("%s: the program has the action profile %s for it, the P4Info none", x, have)
	case x.profile == nil:
		b.problem("%s: its implementation with id %d is %s", x, id, kindOf(b.kinds, id))
	case x.profile.name != have:
		b.problem("%s: its %s is not the program's (%q)", x, x.profile, have)
	default:
		x.profile.tables = append(x.profile.tables, x)
	}
}
