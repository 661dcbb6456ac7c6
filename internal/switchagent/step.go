package switchagent

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/mcrdma/mcrdma/internal/switchagent/config"
	"github.com/mcrdma/mcrdma/internal/switchagent/groups"
	"github.com/mcrdma/mcrdma/internal/switchagent/planner"
	"github.com/mcrdma/mcrdma/internal/switchagent/unicast"
	"github.com/mcrdma/mcrdma/pkg/bifurcation"
)

// A plan is the new version of a step.
type plan struct {
	groups.State        // without numbers
	ways         uint64 // version of the routes
}

// plan computes the new version of a step from the current routes. The next hops of its rules count
// as used: the caller must unuse them. With leaveOut, receivers that cannot be reached are left
// out, and named among the problems; an error then means that none can be reached.
func (a *Agent) plan(key groups.StepKey, s groups.Spec, early []netip.Addr, leaveOut bool) (p plan, err error) {
	a.uni.read(func(t *unicast.Table) { p, err = a.planBy(t, key, s, early, leaveOut) })
	return p, at(a.name, err)
}

func (a *Agent) planBy(t *unicast.Table, key groups.StepKey, s groups.Spec, early []netip.Addr, leaveOut bool) (plan, error) {
	p := plan{State: groups.State{Spec: s, Branches: planner.Branches{}}}
	receivers := s.Receivers
	if leaveOut {
		receivers = nil
		for _, r := range s.Receivers {
			if _, err := t.Resolve(r.Addr); err != nil {
				p.Problems = append(p.Problems, fmt.Sprintf("%v: %v", r.Addr, err))
				continue
			}
			receivers = append(receivers, r)
		}
	}
	req := bifurcation.Request{Source: key.Source, ID: key.ID, Dst: key.Dst, Receivers: receivers, Early: early,
		Via: append(slices.Clone(s.Via), a.name), MaxPREGroups: a.cfg.Limits.PREGroups}
	keeps, whyNot := a.keepsICRC(receivers)
	if a.cfg.ICRC == config.ICRCNeutral && whyNot != "" {
		return plan{}, invalid("the switch cannot compute ICRCs (icrc: neutral), and %s", whyNot)
	}
	p.Recomputes = whyNot
	req.Late = keeps && takesWrites(receivers)
	res, err := bifurcation.Step(req, t.Resolve)
	if err != nil {
		return plan{}, err
	}
	if keeps {
		res.Rules.Neutralize(key.Dst, key.ID, neutral)
	}
	p.Installation.Rules, p.ways = res.Rules, t.WaysVersion()
	slices.SortFunc(res.Rules.Translations, groups.CompareTranslations)
	for _, n := range p.Installation.Hops() {
		t.Use(n)
	}
	for _, b := range res.Branches {
		for _, next := range b.Next {
			p.Branches[planner.Branch{Next: next, Dst: b.Receivers[0].Addr}] = b.Receivers
		}
	}
	return p, nil
}
