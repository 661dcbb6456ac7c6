package p4rtserver

import (
	"time"

	p4cfg "github.com/p4lang/p4runtime/go/p4/config/v1"
	p4 "github.com/p4lang/p4runtime/go/p4/v1"
	"google.golang.org/grpc/codes"

	"github.com/mcrdma/mcrdma/internal/softswitch/match"
	"github.com/mcrdma/mcrdma/internal/softswitch/pipeline"
)

// A note is what the server stores with a table entry (pipeline.Entry.Cookie): data that only the
// controller understands, and a one-shot set as it was written. An entry with neither has no note.
type note struct {
	controller uint64
	metadata   []byte
	set        *p4.ActionProfileActionSet
}

func noteOf(e *pipeline.Entry) note {
	if n, ok := e.Cookie.(*note); ok {
		return *n
	}
	return note{}
}

func (n note) cookie() any {
	if n.controller == 0 && len(n.metadata) == 0 && n.set == nil {
		return nil
	}
	return &n
}

// table applies an update to a table entry ("TableEntry").
func (x *txn) table(kind p4.Update_Type, te *p4.TableEntry) error {
	t, err := x.c.tables.find(te.GetTableId())
	if err != nil {
		return err
	}
	switch {
	case te.GetIsConst():
		return invalid("%s: is_const is set; it is for reading only", t)
	case te.GetIsDefaultAction():
		return x.defaultEntry(kind, t, te)
	case len(t.key.spec) == 0:
		return invalid("%s has no key and therefore no entries but the default one (is_default_action)", t)
	}
	key, prio, err := t.readKey(te)
	if err != nil {
		return err
	}
	if t.constant {
		return x.constEntry(kind, t, te, key, prio)
	}
	if kind != p4.Update_DELETE {
		return x.putEntry(kind, t, te, key, prio)
	}
	old := t.state.Find(key, prio)
	if err := t.state.Delete(key, prio); err != nil {
		return err
	}
	x.done(func() error { return t.state.Insert(old) })
	return nil
}

// readKey reads the key and priority that identify an entry.
func (t *table) readKey(te *p4.TableEntry) (match.Key, int32, error) {
	key, err := t.key.fields(te.GetMatch())
	if err != nil {
		return nil, 0, err
	}
	switch prio := te.GetPriority(); {
	case t.prioritized && prio <= 0:
		return nil, 0, invalid("%s: priority %d: its key has a ternary, range or optional field, so entries need a priority of 1 or more", t, prio)
	case !t.prioritized && prio != 0:
		return nil, 0, invalid("%s: priority %d: its key has no ternary, range or optional field, so entries have no priority", t, prio)
	}
	return key, te.GetPriority(), nil
}

// putEntry inserts or modifies an entry. In a modification, an absent action or counter leaves the
// present one unchanged; an absent meter resets it.
func (x *txn) putEntry(kind p4.Update_Type, t *table, te *p4.TableEntry, key match.Key, prio int32) error {
	e := &pipeline.Entry{Key: key, Priority: prio, LastHit: x.now}
	var old *pipeline.Entry
	if kind == p4.Update_MODIFY {
		if old = t.state.Find(key, prio); old == nil {
			return t.state.Modify(e) // returns the error of a missing entry
		}
		*e = *old
	}
	n := noteOf(e)
	n.controller, n.metadata = te.GetControllerMetadata(), te.GetMetadata() //nolint:staticcheck // deprecated, yet to be kept
	if te.GetAction() != nil {
		e.Call, e.Ref, e.Member, e.Group, e.Set, n.set = pipeline.Call{}, pipeline.RefNone, 0, 0, nil, nil
		if err := x.setAction(t, te.GetAction(), e, &n); err != nil {
			return err
		}
	} else if old == nil {
		return invalid("%s: a new entry needs an action", t)
	}
	if err := t.checkTimeout(te); err != nil {
		return err
	}
	e.IdleTimeout = time.Duration(te.GetIdleTimeoutNs())
	config, err := t.directResources(te)
	if err != nil {
		return err
	}
	e.Cookie = n.cookie()
	if old == nil {
		e.Meter, e.Counts = config, readCounts(te.GetCounterData())
		if err := t.state.Insert(e); err != nil {
			return err
		}
		x.done(func() error { return t.state.Delete(key, prio) })
		return nil
	}
	before := *old
	if err := t.state.Modify(e); err != nil {
		return err
	}
	x.done(func() error { return t.state.Modify(&before) })
	return x.setResources(t, old, te, config)
}

// constEntry applies an update to an entry of a const table: only direct resources can change
// ("Constant Tables").
func (x *txn) constEntry(kind p4.Update_Type, t *table, te *p4.TableEntry, key match.Key, prio int32) error {
	if kind != p4.Update_MODIFY {
		return fail(codes.PermissionDenied, "%s is constant: its entries are those of the program, %v is not possible", t, kind)
	}
	if te.GetAction() != nil || len(te.GetMetadata()) > 0 || te.GetControllerMetadata() != 0 || te.GetIdleTimeoutNs() != 0 { //nolint:staticcheck // deprecated
		return fail(codes.PermissionDenied, "%s is constant: of an entry, only direct resources can be modified", t)
	}
	e := t.state.Find(key, prio)
	if e == nil {
		return fail(codes.NotFound, "%s: there is no such entry", t)
	}
	config, err := t.directResources(te)
	if err != nil {
		return err
	}
	return x.setResources(t, e, te, config)
}

// setAction reads an action into an entry.
func (x *txn) setAction(t *table, a *p4.TableAction, e *pipeline.Entry, n *note) error {
	switch v := a.GetType().(type) {
	case *p4.TableAction_Action:
		if t.profile != nil {
			return invalid("%s: its entries refer to members or groups of %s, or have an action set; they call no action themselves", t, t.profile)
		}
		call, ta, err := readCall(t, t.actions, v.Action)
		if err != nil {
			return err
		}
		e.Call = call
		if ta.scope == p4cfg.ActionRef_DEFAULT_ONLY {
			return fail(codes.PermissionDenied, "%s: %s can only be the default action", t, ta)
		}
		return nil
	case nil:
		return invalid("%s: the entry's action is empty", t)
	}
	if t.profile == nil {
		return invalid("%s: its entries call actions; it has no action profile whose members, groups or sets they could name", t)
	}
	switch v := a.GetType().(type) {
	case *p4.TableAction_ActionProfileMemberId:
		e.Ref, e.Member = pipeline.RefMember, v.ActionProfileMemberId
	case *p4.TableAction_ActionProfileGroupId:
		if !t.profile.selector {
			return invalid("%s: %s has no selector, hence no groups", t, t.profile)
		}
		e.Ref, e.Group = pipeline.RefGroup, v.ActionProfileGroupId
	case *p4.TableAction_ActionProfileActionSet:
		set, err := x.readSet(t, v.ActionProfileActionSet)
		if err != nil {
			return err
		}
		e.Ref, e.Set, n.set = pipeline.RefSet, set, keepSet(v.ActionProfileActionSet)
	}
	return nil
}

func (t *table) checkTimeout(te *p4.TableEntry) error {
	switch {
	case te.GetTimeSinceLastHit() != nil:
		return invalid("%s: time_since_last_hit is set; it is for reading only", t)
	case te.GetIdleTimeoutNs() < 0:
		return invalid("%s: idle_timeout_ns is %d", t, te.GetIdleTimeoutNs())
	case te.GetIdleTimeoutNs() != 0 && !t.idle:
		return invalid("%s: idle_timeout_ns is set, but the table does not support idle time-outs", t)
	}
	return nil
}

// directResources checks the counter and meter of an entry, and returns the meter's configuration.
func (t *table) directResources(te *p4.TableEntry) (pipeline.MeterConfig, error) {
	if te.GetMeterCounterData() != nil {
		return pipeline.MeterConfig{}, noColors(t)
	}
	if c := te.GetCounterData(); c != nil {
		if t.counter == nil {
			return pipeline.MeterConfig{}, invalid("%s: counter_data is set, but the table has no direct counter", t)
		}
		if err := checkCounts(t.counter, c); err != nil {
			return pipeline.MeterConfig{}, err
		}
	}
	m := te.GetMeterConfig()
	if m == nil {
		return pipeline.MeterConfig{}, nil
	}
	if t.meter == nil {
		return pipeline.MeterConfig{}, invalid("%s: meter_config is set, but the table has no direct meter", t)
	}
	return readMeter(t.meter, t.meter.kind, m)
}

// setResources sets an entry's counter and meter, which have been checked.
func (x *txn) setResources(t *table, e *pipeline.Entry, te *p4.TableEntry, config pipeline.MeterConfig) error {
	if c := te.GetCounterData(); c != nil {
		x.setCounts(e, c)
	}
	if t.meter == nil {
		return nil
	}
	return x.setMeter(t, e, config)
}

func (x *txn) setCounts(e *pipeline.Entry, c *p4.CounterData) {
	before := e.Counted()
	x.done(func() error {
		e.Counted() // includes the counts since the set in what is undone
		e.Counts = before
		return nil
	})
	e.Counts = readCounts(c)
}

func (x *txn) setMeter(t *table, e *pipeline.Entry, config pipeline.MeterConfig) error {
	before := e.Meter
	if err := t.state.SetMeter(e, config); err != nil {
		return err
	}
	x.done(func() error { return t.state.SetMeter(e, before) })
	return nil
}

// defaultEntry applies an update to the default entry ("Default Entry").
func (x *txn) defaultEntry(kind p4.Update_Type, t *table, te *p4.TableEntry) error {
	switch {
	case kind != p4.Update_MODIFY:
		return invalid("%s: default entry: %v is not possible: it is always there and can only be modified", t, kind)
	case len(te.GetMatch()) > 0:
		return invalid("%s: default entry: it has no match fields", t)
	case te.GetPriority() != 0:
		return invalid("%s: default entry: it has no priority", t)
	case te.GetIdleTimeoutNs() != 0 || te.GetTimeSinceLastHit() != nil:
		return invalid("%s: default entry: it has no idle time-out", t)
	case t.profile != nil:
		return fail(codes.PermissionDenied, "%s: default entry: that of a table with an action profile is constant", t)
	case t.constAction:
		return fail(codes.PermissionDenied, "%s: default entry: it is constant", t)
	}
	config, err := t.directResources(te)
	if err != nil {
		return err
	}
	undo := x.keepDefault(t)
	if te.GetAction() == nil {
		if err := t.state.ResetDefault(); err != nil {
			return err
		}
		x.done(undo)
		if e := t.state.DefaultEntry(); e != nil {
			e.Cookie = nil
			x.setCounts(e, te.GetCounterData())
			return x.setMeter(t, e, config)
		}
		return nil
	}
	a, ok := te.GetAction().GetType().(*p4.TableAction_Action)
	if !ok {
		return invalid("%s: default entry: it needs an action, not a member, group or set", t)
	}
	call, ta, err := readCall(t, t.actions, a.Action)
	if err != nil {
		return in("default entry", err)
	}
	if ta.scope == p4cfg.ActionRef_TABLE_ONLY {
		return fail(codes.PermissionDenied, "%s: default entry: %s can only be in entries", t, ta)
	}
	if err := t.state.SetDefault(call); err != nil {
		return err
	}
	x.done(undo)
	e := t.state.DefaultEntry()
	e.Cookie = note{te.GetControllerMetadata(), te.GetMetadata(), nil}.cookie() //nolint:staticcheck // deprecated, yet to be kept
	return x.setResources(t, e, te, config)
}

// keepDefault returns a function that restores the present default entry.
func (x *txn) keepDefault(t *table) func() error {
	if !x.keep {
		return nil
	}
	e := t.state.DefaultEntry()
	if e == nil {
		return t.state.ResetDefault
	}
	call, cookie := e.Call, e.Cookie
	return func() error {
		if err := t.state.SetDefault(call); err != nil {
			return err
		}
		t.state.DefaultEntry().Cookie = cookie
		return nil
	}
}

// entryOf finds the entry to which a DirectCounterEntry or DirectMeterEntry refers.
func (c *config) entryOf(te *p4.TableEntry) (*table, *pipeline.Entry, error) {
	t, err := c.tables.find(te.GetTableId())
	if err != nil {
		return nil, nil, err
	}
	var e *pipeline.Entry
	if te.GetIsDefaultAction() {
		if len(te.GetMatch()) > 0 || te.GetPriority() != 0 {
			return nil, nil, invalid("%s: default entry: it has neither match fields nor priority", t)
		}
		e = t.state.DefaultEntry()
	} else {
		key, prio, err := t.readKey(te)
		if err != nil {
			return nil, nil, err
		}
		e = t.state.Find(key, prio)
	}
	if e == nil {
		return nil, nil, fail(codes.NotFound, "%s: there is no such entry", t)
	}
	return t, e, nil
}

// directCounter modifies the counter of a table entry.
func (x *txn) directCounter(kind p4.Update_Type, d *p4.DirectCounterEntry) error {
	if kind != p4.Update_MODIFY {
		return notModify("direct counter entry", kind)
	}
	t, e, err := x.c.entryOf(d.GetTableEntry())
	switch {
	case err != nil:
		return err
	case t.counter == nil:
		return invalid("%s has no direct counter", t)
	}
	if d.GetData() == nil {
		return nil
	}
	if err := checkCounts(t.counter, d.GetData()); err != nil {
		return err
	}
	x.setCounts(e, d.GetData())
	return nil
}

// directMeter modifies the meter of a table entry.
func (x *txn) directMeter(kind p4.Update_Type, d *p4.DirectMeterEntry) error {
	if kind != p4.Update_MODIFY {
		return notModify("direct meter entry", kind)
	}
	t, e, err := x.c.entryOf(d.GetTableEntry())
	switch {
	case err != nil:
		return err
	case t.meter == nil:
		return invalid("%s has no direct meter", t)
	case d.GetCounterData() != nil:
		return noColors(t.meter)
	}
	config, err := readMeter(t.meter, t.meter.kind, d.GetConfig())
	if err != nil {
		return err
	}
	return x.setMeter(t, e, config)
}
