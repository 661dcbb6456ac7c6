package p4rtserver

import (
	"bytes"
	"slices"

	p4 "github.com/p4lang/p4runtime/go/p4/v1"

	"github.com/mcrdma/mcrdma/internal/softswitch/match"
	"github.com/mcrdma/mcrdma/internal/softswitch/pipeline"
)

// tables adds table entries ("Wildcard Reads" of table entries).
func (r *reader) tables(te *p4.TableEntry) error {
	if te.GetMeterCounterData() != nil {
		return noColors("table entry")
	}
	if te.GetTableId() == 0 {
		if len(te.GetMatch()) > 0 || te.GetAction() != nil || te.GetPriority() != 0 ||
			te.GetControllerMetadata() != 0 || len(te.GetMetadata()) > 0 { //nolint:staticcheck // deprecated, yet to be kept
			return invalid("table id 0 means all tables; match, action, priority and metadata need a table id")
		}
		for _, t := range r.c.tables.list {
			if te.GetIsDefaultAction() {
				r.defaultEntry(t, te)
			} else {
				r.entries(t, te, func(*pipeline.Entry) bool { return true })
			}
		}
		return nil
	}
	t, err := r.c.tables.find(te.GetTableId())
	if err != nil {
		return err
	}
	if te.GetTimeSinceLastHit() != nil && (!t.idle || te.GetIsDefaultAction()) {
		return invalid("%s: time_since_last_hit is asked for, but there are no idle time-outs", t)
	}
	if te.GetIsDefaultAction() {
		if len(te.GetMatch()) > 0 || te.GetPriority() != 0 {
			return invalid("%s: default entry: it has neither match fields nor priority", t)
		}
		r.defaultEntry(t, te)
		return nil
	}
	wanted, err := t.filter(te)
	if err != nil {
		return err
	}
	if key, prio, err := t.readKey(te); err == nil && len(te.GetMatch()) > 0 { // one entry
		var e *pipeline.Entry
		r.access(func() { e = t.state.Find(key, prio) })
		if e != nil && wanted(e) {
			r.access(func() { r.add(r.entry(t, e, te)) })
		}
		return nil
	}
	r.entries(t, te, wanted)
	return nil
}

// filter returns a function that selects among a table's entries.
func (t *table) filter(te *p4.TableEntry) (func(*pipeline.Entry) bool, error) {
	var key match.Key
	if len(te.GetMatch()) > 0 {
		var err error
		if key, err = t.key.fields(te.GetMatch()); err != nil {
			return nil, err
		}
	}
	switch prio := te.GetPriority(); {
	case prio < 0:
		return nil, invalid("%s: priority %d", t, prio)
	case prio != 0 && !t.prioritized:
		return nil, invalid("%s: priority %d: its entries have no priority", t, prio)
	}
	does, err := t.actionFilter(te.GetAction())
	if err != nil {
		return nil, err
	}
	return func(e *pipeline.Entry) bool {
		n := noteOf(e)
		return (key == nil || sameMatch(key, e.Key)) &&
			(te.GetPriority() == 0 || te.GetPriority() == e.Priority) &&
			does(e) &&
			(te.GetControllerMetadata() == 0 || te.GetControllerMetadata() == n.controller) && //nolint:staticcheck // deprecated, yet to be kept
			(len(te.GetMetadata()) == 0 || bytes.Equal(te.GetMetadata(), n.metadata))
	}, nil
}

// actionFilter selects by action, without arguments. Beyond the specification, it also selects by
// member or group id.
func (t *table) actionFilter(a *p4.TableAction) (func(*pipeline.Entry) bool, error) {
	switch a := a.GetType().(type) {
	case *p4.TableAction_Action:
		ta := findAction(t.actions, a.Action.GetActionId())
		if ta == nil {
			return nil, invalid("%s: action id %d is not one of its actions", t, a.Action.GetActionId())
		}
		return func(e *pipeline.Entry) bool { return e.Ref == pipeline.RefNone && e.Call.Action == ta.prog }, nil
	case *p4.TableAction_ActionProfileMemberId:
		return func(e *pipeline.Entry) bool {
			return e.Ref == pipeline.RefMember && e.Member == a.ActionProfileMemberId
		}, nil
	case *p4.TableAction_ActionProfileGroupId:
		return func(e *pipeline.Entry) bool {
			return e.Ref == pipeline.RefGroup && e.Group == a.ActionProfileGroupId
		}, nil
	case *p4.TableAction_ActionProfileActionSet:
		return func(e *pipeline.Entry) bool { return e.Ref == pipeline.RefSet }, nil
	}
	return func(*pipeline.Entry) bool { return true }, nil
}

// sameMatch compares keys of one table.
func sameMatch(a, b match.Key) bool {
	return slices.EqualFunc(a, b, func(x, y match.Field) bool {
		return x.PrefixLen == y.PrefixLen && x.Value.Equal(y.Value) && x.Mask.Equal(y.Mask) && x.High.Equal(y.High)
	})
}

// entries adds the entries of a table for which wanted returns true.
func (r *reader) entries(t *table, te *p4.TableEntry, wanted func(*pipeline.Entry) bool) {
	if r.brief && t.constant {
		return
	}
	all := r.entriesOf(t)
	r.each(len(all), chunk, func(i int) {
		if wanted(all[i]) {
			r.add(r.entry(t, all[i], te))
		}
	})
}

// entriesOf returns a table's entries. No Write runs during a Read, so they stay in the table.
func (r *reader) entriesOf(t *table) (all []*pipeline.Entry) {
	r.access(func() { all = slices.AppendSeq(make([]*pipeline.Entry, 0, t.state.Len()), t.state.All()) })
	return all
}

// entry converts an entry to an entity, with the requested resources.
func (r *reader) entry(t *table, e *pipeline.Entry, asked *p4.TableEntry) *p4.Entity {
	out := t.identity(e)
	out.Action = t.writeAction(e)
	out.IdleTimeoutNs = int64(e.IdleTimeout)
	out.IsConst = t.constant
	if asked.GetTimeSinceLastHit() != nil && t.idle {
		out.TimeSinceLastHit = &p4.TableEntry_IdleTimeout{ElapsedNs: int64(max(r.now-e.LastHit, 0))}
	}
	t.writeResources(out, e, asked)
	return &p4.Entity{Entity: &p4.Entity_TableEntry{TableEntry: out}}
}

// identity returns what identifies an entry: its key, and the data that only the controller
// understands.
func (t *table) identity(e *pipeline.Entry) *p4.TableEntry {
	n := noteOf(e)
	return &p4.TableEntry{
		TableId:            t.id,
		Match:              writeKey(t.key.spec, t.key.byID, e.Key),
		Priority:           e.Priority,
		ControllerMetadata: n.controller, //nolint:staticcheck // deprecated, yet to be kept
		Metadata:           n.metadata,
	}
}

func (t *table) writeResources(out *p4.TableEntry, e *pipeline.Entry, asked *p4.TableEntry) {
	if asked.GetCounterData() != nil && t.counter != nil {
		out.CounterData = counterData(e.Counted())
	}
	if asked.GetMeterConfig() != nil && t.meter != nil {
		out.MeterConfig = writeMeter(e.Meter)
	}
}

func (t *table) writeAction(e *pipeline.Entry) *p4.TableAction {
	switch e.Ref {
	case pipeline.RefMember:
		return &p4.TableAction{Type: &p4.TableAction_ActionProfileMemberId{ActionProfileMemberId: e.Member}}
	case pipeline.RefGroup:
		return &p4.TableAction{Type: &p4.TableAction_ActionProfileGroupId{ActionProfileGroupId: e.Group}}
	case pipeline.RefSet:
		return &p4.TableAction{Type: &p4.TableAction_ActionProfileActionSet{ActionProfileActionSet: noteOf(e).set}}
	}
	return directAction(writeCall(t.actions, e.Call))
}

func directAction(a *p4.Action) *p4.TableAction {
	if a == nil {
		return nil
	}
	return &p4.TableAction{Type: &p4.TableAction_Action{Action: a}}
}

// defaultEntry adds a table's default entry.
func (r *reader) defaultEntry(t *table, asked *p4.TableEntry) {
	out := &p4.TableEntry{TableId: t.id, IsDefaultAction: true, IsConst: t.constAction || t.profile != nil}
	if r.brief && out.IsConst {
		return
	}
	r.access(func() {
		e := t.state.DefaultEntry()
		if e == nil {
			out.Action = directAction(t.initial)
			return
		}
		n := noteOf(e)
		out.ControllerMetadata, out.Metadata = n.controller, n.metadata //nolint:staticcheck // deprecated, yet to be kept
		out.Action = directAction(writeCall(t.actions, e.Call))
		t.writeResources(out, e, asked)
	})
	if r.brief && out.Action == nil {
		return
	}
	r.add(&p4.Entity{Entity: &p4.Entity_TableEntry{TableEntry: out}})
}

func (r *reader) directCounters(d *p4.DirectCounterEntry) error {
	return r.direct(d.GetTableEntry(), "counter", func(t *table) bool { return t.counter != nil }, func(t *table, te *p4.TableEntry, e *pipeline.Entry) {
		r.add(&p4.Entity{Entity: &p4.Entity_DirectCounterEntry{DirectCounterEntry: &p4.DirectCounterEntry{
			TableEntry: te, Data: counterData(e.Counted()),
		}}})
	})
}

func (r *reader) directMeters(d *p4.DirectMeterEntry) error {
	if d.GetCounterData() != nil {
		return noColors("direct meter entry")
	}
	return r.direct(d.GetTableEntry(), "meter", func(t *table) bool { return t.meter != nil }, func(t *table, te *p4.TableEntry, e *pipeline.Entry) {
		r.add(&p4.Entity{Entity: &p4.Entity_DirectMeterEntry{DirectMeterEntry: &p4.DirectMeterEntry{
			TableEntry: te, Config: writeMeter(e.Meter),
		}}})
	})
}

// direct calls f for each table entry that a request for direct resources selects: those of all
// tables, those of one, or one entry.
func (r *reader) direct(te *p4.TableEntry, what string, has func(*table) bool, f func(*table, *p4.TableEntry, *pipeline.Entry)) error {
	if te == nil {
		return invalid("direct %s: no table entry is given", what)
	}
	if te.GetTableId() == 0 {
		for _, t := range r.c.tables.list {
			if has(t) {
				r.directAll(t, f)
			}
		}
		return nil
	}
	t, err := r.c.tables.find(te.GetTableId())
	switch {
	case err != nil:
		return err
	case !has(t):
		return invalid("%s has no direct %s", t, what)
	case len(te.GetMatch()) == 0 && te.GetPriority() == 0 && !te.GetIsDefaultAction():
		r.directAll(t, f)
		return nil
	}
	r.access(func() {
		var e *pipeline.Entry
		if t, e, err = r.c.entryOf(te); err != nil {
			return
		}
		f(t, t.entryName(e, te.GetIsDefaultAction()), e)
	})
	return err
}

func (r *reader) directAll(t *table, f func(*table, *p4.TableEntry, *pipeline.Entry)) {
	all := r.entriesOf(t)
	r.each(len(all), chunk, func(i int) { f(t, t.entryName(all[i], false), all[i]) })
}

// entryName returns what identifies an entry in P4Runtime.
func (t *table) entryName(e *pipeline.Entry, isDefault bool) *p4.TableEntry {
	if isDefault {
		return &p4.TableEntry{TableId: t.id, IsDefaultAction: true}
	}
	return &p4.TableEntry{TableId: t.id, Match: writeKey(t.key.spec, t.key.byID, e.Key), Priority: e.Priority}
}
