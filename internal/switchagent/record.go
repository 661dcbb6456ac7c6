package switchagent

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sync/semaphore"

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
	Spec    spec
	Group   *groupRecord                  `json:",omitempty"`
	Holders map[bifurcation.Switch]holder `json:",omitempty"` // without receivers if those are the step's
}

type groupRecord struct {
	SenderQPN, InitialPSN uint32
	CNPGap, Lease         time.Duration
	// The values of the slot's counters when this use of it began.
	Use  uint64              `json:",omitempty"`
	Base []p4rt.MemberCounts `json:",omitempty"`
}

// storeEdit puts a record, or deletes it if it is nil.
func storeEdit(k stepKey, record []byte) store.Edit {
	return store.Edit{Bucket: bucket, Key: k.appendTo(nil), Value: record}
}

// appendTo encodes a key in the order of source, MC_ID, destination.
func (k stepKey) appendTo(b []byte) []byte {
	b = append(b, k.source.AsSlice()...)
	b = append(b, byte(k.id>>16), byte(k.id>>8), byte(k.id)) //nolint:gosec // 24 bits
	return append(b, k.dst.AsSlice()...)
}

func parseStepKey(b []byte) (stepKey, error) {
	if len(b) != 11 {
		return stepKey{}, fmt.Errorf("a key of %d bytes", len(b))
	}
	source, _ := netip.AddrFromSlice(b[:4])
	dst, _ := netip.AddrFromSlice(b[7:])
	return stepKey{groupKey{source, uint32(b[4])<<16 | uint32(b[5])<<8 | uint32(b[6])}, dst}, nil
}

// groupRecord returns the record of a group's first step.
func (a *Agent) groupRecord(g *group) func() []byte {
	return func() []byte {
		a.mu.Lock()
		defer a.mu.Unlock()
		return store.Encode(stepRecord{Spec: g.spec(), Group: &groupRecord{SenderQPN: g.SenderQPN, InitialPSN: g.InitialPSN,
			CNPGap: g.cnpGap, Lease: g.lease, Use: g.merging.use, Base: g.merging.base}})
	}
}

// record returns the record of a step that others hold, with one holder changed; nil: it no longer
// holds the step.
func (a *Agent) record(s *step, sp spec, from bifurcation.Switch, h *holder) []byte {
	r := stepRecord{Spec: sp, Holders: map[bifurcation.Switch]holder{}}
	a.mu.Lock()
	defer a.mu.Unlock()
	add := func(name bifurcation.Switch, h holder) {
		if planner.Equal(h.Receivers, sp.Receivers) {
			h.Receivers = nil
		}
		r.Holders[name] = h
	}
	for name, o := range s.holders {
		if name != from {
			add(name, *o)
		}
	}
	if h != nil {
		add(from, *h)
	}
	return store.Encode(r)
}

// decode reads the record of a step with that key. An invalid record is an error.
func decode(k stepKey, b []byte) (stepRecord, error) {
	var r stepRecord
	if err := store.Decode(b, &r); err != nil {
		return r, err
	}
	if k.id == 0 || (r.Group == nil) == (len(r.Holders) == 0) {
		return r, fmt.Errorf("it has no owner, or more than one")
	}
	g := bifurcation.Group{Source: k.source, ID: k.id, Address: k.dst, Receivers: r.Spec.Receivers}
	if r.Group != nil {
		g.SenderQPN, g.InitialPSN = r.Group.SenderQPN, r.Group.InitialPSN
		if err := checkTimes(r.Group.CNPGap, r.Group.Lease); err != nil {
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
func (a *Agent) load() error {
	now := time.Now()
	for key, value := range a.store.Load(bucket) {
		k, err := parseStepKey(key)
		var r stepRecord
		if err == nil {
			r, err = decode(k, value)
		}
		if err == nil && r.Group != nil && a.groups[k.groupKey] != nil {
			err = fmt.Errorf("group %v is there twice", k.groupKey)
		}
		if err != nil {
			return fmt.Errorf("%w: the state in %s holds a record that cannot be read (%w); "+
				"move the file away to begin anew, and have the groups installed again", ErrConfig, a.cfg.State, err)
		}
		s := &step{key: k, turn: semaphore.NewWeighted(1), holders: map[bifurcation.Switch]*holder{}, persisted: slices.Clone(value),
			spec: r.Spec, behind: true}
		for name, h := range r.Holders {
			h.expires = now.Add(a.cfg.Leases.Branch)
			if len(h.Receivers) == 0 {
				h.Receivers = s.spec.Receivers
			}
			s.holders[name] = &h
		}
		if r.Group != nil {
			a.loadGroup(s, *r.Group, now)
		}
		a.steps[k] = s
	}
	return nil
}

func (a *Agent) loadGroup(s *step, r groupRecord, now time.Time) {
	g := &group{Group: bifurcation.Group{Source: s.key.source, ID: s.key.id, SenderQPN: r.SenderQPN, InitialPSN: r.InitialPSN,
		Address: s.key.dst, Receivers: s.spec.Receivers}, cnpGap: r.CNPGap, lease: r.Lease, expires: now.Add(r.Lease),
		generation: s.spec.Generation, step: s}
	g.merging = newMerging(g)
	g.merging.use, g.merging.base = r.Use, r.Base
	s.group = g
	a.groups[g.key()] = g
}
