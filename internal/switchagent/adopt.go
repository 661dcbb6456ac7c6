package switchagent

import (
	"context"
	"fmt"

	"github.com/mcrdma/mcrdma/internal/p4rt"
	"github.com/mcrdma/mcrdma/internal/switchagent/groups"
	"github.com/mcrdma/mcrdma/internal/switchagent/unicast"
	"github.com/mcrdma/mcrdma/internal/switchspec"
)

// judge returns the reason why a switch's registers must be cleared; "": they need not.
func (a *Agent) judge(have *switchspec.State) (why string, err error) {
	e, _ := have.Find(switchspec.Settings{}.Key())
	return a.table.Judge(e.(switchspec.Settings), a.start.adopted.reached())
}

// found is called by the driver when it has connected to a switch and read it, before it writes the
// differences. blank: the switch's registers and counters are zero.
func (a *Agent) found(ctx context.Context, s *p4rt.Session, have, want *switchspec.State, blank bool) error {
	var begun []*groups.Merging
	var err error
	first := !a.start.adopted.reached()
	if first {
		begun, err = a.adopt(have, want)
	} else {
		begun, err = a.table.RenewMerging(have, want)
	}
	for _, m := range begun {
		if err == nil {
			err = a.baseline(ctx, s, m, blank)
		}
	}
	if err != nil || !first {
		return err
	}
	for r := range switchspec.Of[switchspec.Route](have) {
		a.start.forwards = a.start.forwards || r.To == switchspec.ToNextHop || r.To == switchspec.ToECMP
	}
	a.start.adopted.reach()
	a.rerun.wake()
	return nil
}

// adopt takes over the switch's entries when the agent first connects to it.
func (a *Agent) adopt(have, want *switchspec.State) ([]*groups.Merging, error) {
	base := &switchspec.State{}
	for e := range have.All() {
		switch e := e.(type) {
		case switchspec.PREGroup:
			if e.ID != unicast.FloodGroup {
				continue
			}
		case switchspec.Replica, switchspec.Region, switchspec.Match, switchspec.MergeGroup, switchspec.MergeMember, switchspec.Bypass, switchspec.Settings:
			continue
		}
		if err := base.Put(e); err != nil {
			return nil, err
		}
		if err := want.Put(e); err != nil {
			return nil, err
		}
	}
	begun, hops, err := a.table.Adopt(have, want)
	a.uni.adopt(base, hops)
	return begun, err
}

// mergePut returns the edit that writes the current merging. The settings first record that the
// use's number is taken.
func (a *Agent) mergePut(m *groups.Merging) edit {
	return func(d *draft) error {
		list, settings, err := a.table.Entities(m)
		if err == nil {
			err = d.keep(settings)
		}
		if err != nil {
			return err
		}
		return puts(list, nil)(d)
	}
}

// mergeDelete returns the edit that deletes it, except entries that another group or another slot
// has taken over.
func (a *Agent) mergeDelete(m *groups.Merging) edit {
	return func(d *draft) error { return puts(nil, a.table.Leaving(m, d.want))(d) }
}

// baseline records the counters of merging's slot, which continue from one use to the next; those
// of a blank switch are 0.
func (a *Agent) baseline(ctx context.Context, s *p4rt.Session, m *groups.Merging, blank bool) error {
	var base []p4rt.MemberCounts
	if !blank {
		counts, err := s.ReadMemberCounters(ctx, m.Slot())
		if err != nil {
			return fmt.Errorf("%w: %w", ErrNotReady, err)
		}
		if counts != [switchspec.MaxMembers]p4rt.MemberCounts{} {
			base = counts[:]
		}
	}
	a.table.Baseline(m, base)
	return nil
}

// begin reads the baseline of merging that is not on the switch yet.
func (a *Agent) begin(ctx context.Context, m *groups.Merging) error {
	s, err := a.driver.connected(ctx)
	if err != nil {
		return err
	}
	return a.baseline(ctx, s, m, false)
}
