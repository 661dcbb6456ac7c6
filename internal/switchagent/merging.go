package switchagent

import (
	"context"
	"fmt"

	"github.com/mcrdma/mcrdma/internal/p4rt"
	"github.com/mcrdma/mcrdma/internal/switchagent/groups"
	"github.com/mcrdma/mcrdma/internal/switchspec"
)

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
