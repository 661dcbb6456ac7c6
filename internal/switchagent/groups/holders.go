package groups

import (
	"fmt"
	"slices"
	"time"

	"github.com/mcrdma/mcrdma/internal/failure"
	"github.com/mcrdma/mcrdma/internal/switchagent/planner"
	"github.com/mcrdma/mcrdma/pkg/bifurcation"
)

// A Holder is a switch that sends packets of a step to this one.
type Holder struct {
	Spec
	Sequence uint64
	expires  time.Time
}

// An Offer is what a step is to be for a switch that asks for it.
type Offer struct {
	Spec   Spec
	Record []byte // nil: it is stored already
	Done   bool   // the step is so already, and held
	First  bool   // no other switch holds the step
}

// Hold returns what a step has to become to be held by a switch. If it is that already, the switch
// holds it.
func (t *Table) Hold(s *Step, from bifurcation.Switch, h Holder, now time.Time) (o Offer, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if o.Spec, err = s.with(from, h); err != nil {
		return Offer{}, err
	}
	was := s.holders[from]
	if was == nil || !was.Spec.equal(h.Spec) || !o.Spec.equal(s.state.Spec) {
		o.Record = s.heldRecord(o.Spec, from, &h)
	} else if o.Done = !s.state.Behind; o.Done {
		s.hold(from, h, now.Add(t.Config.Leases.Branch))
	}
	o.First = len(s.holders) == 0
	return o, nil
}

// Held records that a switch holds a step.
func (t *Table) Held(s *Step, from bifurcation.Switch, h Holder, now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	s.hold(from, h, now.Add(t.Config.Leases.Branch))
}

func (s *Step) hold(from bifurcation.Switch, h Holder, until time.Time) {
	h.expires = until
	s.holders[from] = &h
}

// with returns the step's spec after a switch's Hold. The highest generation wins; within a
// generation, holders must agree, because nothing in a packet shows which of them sent it.
func (s *Step) with(from bifurcation.Switch, h Holder) (Spec, error) {
	if s.group != nil {
		return Spec{}, fmt.Errorf("%w: group %v was installed at this switch, and its packets come back", bifurcation.ErrLoop, s.Key.Key)
	}
	if was, ok := s.holders[from]; ok && h.Sequence < was.Sequence {
		return Spec{}, &failure.Error{Sequence: was.Sequence, Cause: ErrStale,
			Text: fmt.Sprintf("%v: number %d, after %d", ErrStale, h.Sequence, was.Sequence)}
	}
	next := h.Spec
	next.Via = slices.Clone(h.Via)
	for name, o := range s.holders {
		if name == from {
			continue
		}
		if o.Generation > next.Generation {
			next.Generation, next.Receivers = o.Generation, o.Receivers
		} else if o.Generation == h.Generation && !planner.Equal(o.Receivers, h.Receivers) {
			return Spec{}, fmt.Errorf("%w: switch %s reaches %d receivers by %v, and switch %s %d",
				bifurcation.ErrAmbiguous, name, len(o.Receivers), s.Key.Dst, from, len(h.Receivers))
		}
		for _, v := range o.Via {
			if !slices.Contains(next.Via, v) {
				next.Via = append(next.Via, v)
			}
		}
	}
	slices.Sort(next.Via)
	return next, nil
}

// A Branch is a step that a switch holds.
type Branch struct {
	Key  StepKey
	From bifurcation.Switch
}

// UpTo ends a hold unless the switch has held the step again since.
func UpTo(sequence uint64) func(*Holder) bool {
	return func(h *Holder) bool { return h.Sequence <= sequence }
}

// Lapsed ends a hold whose lease has ended.
func Lapsed(h *Holder) bool { return time.Now().After(h.expires) }

// Has reports whether there is a step.
func (t *Table) Has(k StepKey) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.steps[k] != nil
}

// Unhold ends a switch's hold of a step, and reports whether it did. Without a record no switch
// holds the step any more.
func (t *Table) Unhold(s *Step, from bifurcation.Switch, over func(*Holder) bool) (record []byte, ended bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if h := s.holders[from]; h == nil || !over(h) {
		return nil, false
	}
	delete(s.holders, from)
	if len(s.holders) == 0 {
		return nil, true
	}
	return s.heldRecord(s.state.Spec, from, nil), true
}

// Sync compares the list of everything that a switch holds here, as of a sequence number, with the
// table, and renews what is held. It returns which steps on the list are missing here, and which
// are not on the list.
func (t *Table) Sync(from bifurcation.Switch, sequence uint64, list map[StepKey]uint64, now time.Time) (missing, stale []StepKey) {
	until := now.Add(t.Config.Leases.Branch)
	seen := make(map[StepKey]bool, len(list))
	t.mu.Lock()
	for _, s := range t.steps {
		h := s.holders[from]
		want, ok := list[s.Key]
		switch {
		case h == nil:
		case ok:
			h.expires = until
			seen[s.Key] = h.Sequence == want
		case h.Sequence <= sequence:
			stale = append(stale, s.Key)
		}
	}
	t.mu.Unlock()
	for k := range list {
		if !seen[k] {
			missing = append(missing, k)
		}
	}
	return missing, stale
}

// Overdue returns the groups and the branches that were not renewed in time.
func (t *Table) Overdue(now time.Time) (groups []Key, branches []Branch) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, s := range t.steps {
		for from, h := range s.holders {
			if now.After(h.expires) {
				branches = append(branches, Branch{s.Key, from})
			}
		}
	}
	for k, g := range t.groups {
		if g.step != nil && now.After(g.Expires) {
			groups = append(groups, k)
		}
	}
	return groups, branches
}
