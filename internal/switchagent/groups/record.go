package groups

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/mcrdma/mcrdma/internal/p4rt"
	"github.com/mcrdma/mcrdma/internal/store"
	"github.com/mcrdma/mcrdma/internal/switchagent/planner"
	"github.com/mcrdma/mcrdma/internal/switchspec"
	"github.com/mcrdma/mcrdma/pkg/bifurcation"
)

// bucket holds a record for each step.
const bucket = "steps"

// A stepRecord is a step in the state file. It does not contain the switch's entries, which are
// read back.
type stepRecord struct {
	Spec    Spec
	Group   *groupRecord                  `json:",omitempty"`
	Holders map[bifurcation.Switch]Holder `json:",omitempty"` // without receivers if those are the step's
}

type groupRecord struct {
	SenderQPN, InitialPSN uint32
	CNPGap, Lease         time.Duration
	// The values of the slot's counters when this use of it began.
	Use  uint64              `json:",omitempty"`
	Base []p4rt.MemberCounts `json:",omitempty"`
}

// storeEdit puts a record, or deletes it if it is nil.
func storeEdit(k StepKey, record []byte) store.Edit {
	return store.Edit{Bucket: bucket, Key: k.appendTo(nil), Value: record}
}

// Store stores the record of a group's first step.
func (t *Table) Store(ctx context.Context, s *Step, g *Group) error {
	t.mu.Lock()
	r := stepRecord{Spec: g.Spec(), Group: &groupRecord{SenderQPN: g.SenderQPN, InitialPSN: g.InitialPSN,
		CNPGap: g.CNPGap, Lease: g.Lease, Use: g.merging.use, Base: g.merging.base}}
	t.mu.Unlock()
	return t.Persist(ctx, s, store.Encode(r))
}

// heldRecord returns the record of a step that others hold, with one holder changed; nil: it no
// longer holds the step.
func (s *Step) heldRecord(sp Spec, from bifurcation.Switch, h *Holder) []byte {
	holders := maps.Clone(s.holders)
	if holders[from] = h; h == nil {
		delete(holders, from)
	}
	r := stepRecord{Spec: sp, Holders: make(map[bifurcation.Switch]Holder, len(holders))}
	for name, h := range holders {
		x := *h
		if planner.Equal(x.Receivers, sp.Receivers) {
			x.Receivers = nil
		}
		r.Holders[name] = x
	}
	return store.Encode(r)
}

// Persist stores a step's record, or deletes it if it is nil.
func (t *Table) Persist(ctx context.Context, s *Step, record []byte) error {
	if err := commit(ctx, t.File, storeEdit(s.Key, record)); err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	s.state.Record = record
	return nil
}

// decode reads the record of a step with that key. An invalid record is an error.
func decode(k StepKey, b []byte) (stepRecord, error) {
	var r stepRecord
	if err := store.Decode(b, &r); err != nil {
		return r, err
	}
	if k.ID == 0 || (r.Group == nil) == (len(r.Holders) == 0) {
		return r, fmt.Errorf("it has no owner, or more than one")
	}
	g := bifurcation.Group{Source: k.Source, ID: k.ID, Address: k.Dst, Receivers: r.Spec.Receivers}
	if r.Group != nil {
		g.SenderQPN, g.InitialPSN = r.Group.SenderQPN, r.Group.InitialPSN
		if err := CheckTimes(r.Group.CNPGap, r.Group.Lease); err != nil {
			return r, err
		}
		if n := len(r.Group.Base); n != 0 && n != switchspec.MaxMembers || r.Group.Use >= useEnd {
			return r, fmt.Errorf("use %d of a slot, with counts of %d members", r.Group.Use, n)
		}
	}
	err := g.Validate()
	for _, h := range r.Holders {
		if g.Receivers = h.Receivers; len(h.Receivers) > 0 {
			err = errors.Join(err, g.Validate())
		}
	}
	return r, err
}

// load restores the steps of the state file; adopt reads the switch's entries.
func (t *Table) load(now time.Time) error {
	for key, value := range t.File.Load(bucket) {
		k, err := parseStepKey(key)
		var r stepRecord
		if err == nil {
			r, err = decode(k, value)
		}
		if err == nil && r.Group != nil && t.groups[k.Key] != nil {
			err = fmt.Errorf("group %v is there twice", k.Key)
		}
		if err != nil {
			return fmt.Errorf("%w: %w", ErrRecord, err)
		}
		s := newStep(k)
		s.state = State{Spec: r.Spec, Behind: true, Record: slices.Clone(value)}
		for name, h := range r.Holders {
			h.expires = now.Add(t.Config.Leases.Branch)
			if len(h.Receivers) == 0 {
				h.Receivers = r.Spec.Receivers
			}
			s.holders[name] = &h
		}
		if r.Group != nil {
			t.loadGroup(s, *r.Group, now)
		}
		t.steps[k] = s
	}
	return nil
}

func (t *Table) loadGroup(s *Step, r groupRecord, now time.Time) {
	sp := s.state.Spec
	g := &Group{Info: Info{CNPGap: r.CNPGap, Lease: r.Lease, Expires: now.Add(r.Lease), Group: bifurcation.Group{Source: s.Key.Source, ID: s.Key.ID,
		SenderQPN: r.SenderQPN, InitialPSN: r.InitialPSN, Address: s.Key.Dst, Receivers: sp.Receivers}}, generation: sp.Generation, step: s}
	g.merging = newMerging(g)
	g.merging.use, g.merging.base = r.Use, r.Base
	s.group = g
	t.add(g)
}
