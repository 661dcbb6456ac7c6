package p4rtserver

import (
	"errors"
	"fmt"
	"time"

	p4 "github.com/p4lang/p4runtime/go/p4/v1"

	"github.com/mcrdma/mcrdma/internal/softswitch/pipeline"
)

// reconcile copies the whole state of one config to another one that is not loaded yet. Objects
// correspond if they have the same id and the same name.
func (s *Server) reconcile(from, to *config) error {
	var err error
	now := s.target.Now()
	s.do(from, func() { err = copyState(from, to, now) })
	return err
}

func copyState(from, to *config, now time.Duration) error {
	r := &reader{c: from, now: now, brief: true}
	for _, e := range everything() {
		if err := r.read(e); err != nil {
			return err
		}
	}
	x := &txn{c: to, now: now}
	for e := range r.all() {
		u := &p4.Update{Type: p4.Update_INSERT, Entity: e}
		if onlyModifiable(e) {
			u.Type = p4.Update_MODIFY
		}
		if err := sameNames(from, to, e); err != nil {
			return err
		}
		if err := x.update(u); err != nil {
			return err
		}
	}
	return copyConstant(from, to)
}

// copyConstant copies the direct resources of const entries and default entries, if the new program
// has the entries.
func copyConstant(from, to *config) error {
	for _, t := range from.tables.list {
		o := to.tables.byID[t.id]
		if o == nil || o.name != t.name || sameKey(t, o) != nil {
			continue
		}
		if t.constant && o.constant {
			for e := range t.state.All() {
				if err := copyResources(o, o.state.Find(e.Key, e.Priority), e); err != nil {
					return err
				}
			}
		}
		if t.constAction && o.constAction && t.state.DefaultEntry() != nil {
			if err := copyResources(o, o.state.DefaultEntry(), t.state.DefaultEntry()); err != nil {
				return err
			}
		}
	}
	return nil
}

func copyResources(t *table, to, from *pipeline.Entry) error {
	if to == nil {
		return nil
	}
	to.Counts = from.Counted()
	if t.meter == nil {
		return nil
	}
	return t.state.SetMeter(to, from.Meter)
}

// everything reads the whole state, in an order in which it can be written.
func everything() []*p4.Entity {
	return []*p4.Entity{
		{Entity: &p4.Entity_PacketReplicationEngineEntry{PacketReplicationEngineEntry: &p4.PacketReplicationEngineEntry{
			Type: &p4.PacketReplicationEngineEntry_MulticastGroupEntry{MulticastGroupEntry: &p4.MulticastGroupEntry{}}}}},
		{Entity: &p4.Entity_PacketReplicationEngineEntry{PacketReplicationEngineEntry: &p4.PacketReplicationEngineEntry{
			Type: &p4.PacketReplicationEngineEntry_CloneSessionEntry{CloneSessionEntry: &p4.CloneSessionEntry{}}}}},
		{Entity: &p4.Entity_ActionProfileMember{ActionProfileMember: &p4.ActionProfileMember{}}},
		{Entity: &p4.Entity_ActionProfileGroup{ActionProfileGroup: &p4.ActionProfileGroup{}}},
		{Entity: &p4.Entity_TableEntry{TableEntry: &p4.TableEntry{CounterData: &p4.CounterData{}, MeterConfig: &p4.MeterConfig{}}}},
		{Entity: &p4.Entity_TableEntry{TableEntry: &p4.TableEntry{IsDefaultAction: true, CounterData: &p4.CounterData{}, MeterConfig: &p4.MeterConfig{}}}},
		{Entity: &p4.Entity_CounterEntry{CounterEntry: &p4.CounterEntry{}}},
		{Entity: &p4.Entity_MeterEntry{MeterEntry: &p4.MeterEntry{}}},
		{Entity: &p4.Entity_RegisterEntry{RegisterEntry: &p4.RegisterEntry{}}},
		{Entity: &p4.Entity_ValueSetEntry{ValueSetEntry: &p4.ValueSetEntry{}}},
		{Entity: &p4.Entity_DigestEntry{DigestEntry: &p4.DigestEntry{}}},
	}
}

func onlyModifiable(e *p4.Entity) bool {
	switch x := e.GetEntity().(type) {
	case *p4.Entity_TableEntry:
		return x.TableEntry.GetIsDefaultAction()
	case *p4.Entity_CounterEntry, *p4.Entity_MeterEntry, *p4.Entity_RegisterEntry, *p4.Entity_ValueSetEntry:
		return true
	}
	return false
}

// sameNames returns an error if an entity's ids refer to other objects in the other config.
func sameNames(from, to *config, e *p4.Entity) error {
	var ids []uint32
	switch x := e.GetEntity().(type) {
	case *p4.Entity_TableEntry:
		t := from.tables.byID[x.TableEntry.GetTableId()]
		if err := sameKey(t, to.tables.byID[t.id]); err != nil {
			return err
		}
		ids = append(ids, t.id)
		ids = appendAction(ids, x.TableEntry.GetAction().GetAction())
		for _, a := range x.TableEntry.GetAction().GetActionProfileActionSet().GetActionProfileActions() {
			ids = appendAction(ids, a.GetAction())
		}
	case *p4.Entity_ActionProfileMember:
		ids = appendAction([]uint32{x.ActionProfileMember.GetActionProfileId()}, x.ActionProfileMember.GetAction())
	case *p4.Entity_ActionProfileGroup:
		ids = []uint32{x.ActionProfileGroup.GetActionProfileId()}
	case *p4.Entity_CounterEntry:
		ids = []uint32{x.CounterEntry.GetCounterId()}
	case *p4.Entity_MeterEntry:
		ids = []uint32{x.MeterEntry.GetMeterId()}
	case *p4.Entity_RegisterEntry:
		ids = []uint32{x.RegisterEntry.GetRegisterId()}
	case *p4.Entity_ValueSetEntry:
		ids = []uint32{x.ValueSetEntry.GetValueSetId()}
	case *p4.Entity_DigestEntry:
		ids = []uint32{x.DigestEntry.GetDigestId()}
	}
	for _, id := range ids {
		if a, b := kindOf(from.kinds, id), kindOf(to.kinds, id); a != b {
			return fmt.Errorf("%s has state, and its id %d is %s in the new P4Info", a, id, b)
		}
		if a, b := from.actions[id], to.actions[id]; a != nil && b != nil {
			if err := sameFields(a.String(), a.params, b.params); err != nil {
				return err
			}
		}
	}
	return nil
}

func appendAction(ids []uint32, a *p4.Action) []uint32 {
	if a == nil {
		return ids
	}
	return append(ids, a.GetActionId())
}

func sameKey(a, b *table) error {
	if b == nil {
		return nil // its id is checked with the others
	}
	return sameFields(a.String(), a.key.spec, b.key.spec)
}

// errChanged reports that an object with state differs in the new P4Info.
var errChanged = errors.New("has state, and has changed in the new P4Info")

func sameFields(what string, a, b []field) error {
	if len(a) != len(b) {
		return fmt.Errorf("%s %w", what, errChanged)
	}
	for _, f := range a {
		at := findField(b, nil, f.id)
		if at < 0 || b[at].name != f.name || b[at].kind != f.kind || b[at].bits != f.bits {
			return fmt.Errorf("%s %w: %s", what, errChanged, &f)
		}
	}
	return nil
}
