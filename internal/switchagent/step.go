package switchagent

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/mcrdma/mcrdma/internal/switchagent/config"
	"github.com/mcrdma/mcrdma/internal/switchagent/groups"
	"github.com/mcrdma/mcrdma/internal/switchagent/planner"
	"github.com/mcrdma/mcrdma/internal/switchagent/unicast"
	"github.com/mcrdma/mcrdma/internal/switchspec"
	"github.com/mcrdma/mcrdma/pkg/bifurcation"
	"github.com/mcrdma/mcrdma/pkg/rocev2"
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
	a.uni.with(func(t *unicast.Table) { p, err = a.planBy(t, key, s, early, leaveOut) })
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

// icrcModes are the switch's modes. In mode neutral it recomputes the ICRC where a copy has no
// constant.
var icrcModes = map[string]switchspec.ICRC{config.ICRCAuto: switchspec.ICRCNeutral, config.ICRCNeutral: switchspec.ICRCNeutral,
	config.ICRCRecompute: switchspec.ICRCRecompute, config.ICRCOff: switchspec.ICRCOff}

// keepsICRC reports whether constants keep the ICRC of copies to these receivers right, and if not,
// why. A receiver whose device does not see the identification affects all copies, because packets
// may have been changed before they arrive here; a region at another address affects the WRITEs
// that begin in it.
func (a *Agent) keepsICRC(receivers []bifurcation.Receiver) (keeps bool, whyNot string) {
	if icrcModes[a.cfg.ICRC] != switchspec.ICRCNeutral {
		return false, ""
	}
	var blind, moved []string
	for _, r := range receivers {
		switch {
		case !r.SeesIdentification:
			blind = append(blind, r.Addr.String())
		case slices.ContainsFunc(r.Regions, func(m bifurcation.Region) bool { return m.ReceiverVA != m.VA }):
			moved = append(moved, r.Addr.String())
		}
	}
	switch {
	case len(blind) > 0:
		return false, fmt.Sprintf("the device of %s does not see the IPv4 identification", strings.Join(blind, ", "))
	case len(moved) > 0:
		return true, fmt.Sprintf("memory of %s is not registered at the address that the sender's packets carry", strings.Join(moved, ", "))
	}
	return true, ""
}

// takesWrites reports whether there may be WRITEs, whose packets with a RETH get a different source
// port than those without.
func takesWrites(receivers []bifurcation.Receiver) bool {
	return slices.ContainsFunc(receivers, func(r bifurcation.Receiver) bool { return len(r.Regions) > 0 })
}

// neutral is the constant that cancels a change.
func neutral(c bifurcation.Change) uint32 {
	var h rocev2.HeaderChange
	if c.Dst.IsValid() {
		old, now := c.Dst.As4(), c.NewDst.As4()
		for i := range h.Dst {
			h.Dst[i] = old[i] ^ now[i]
		}
	}
	h.QPN, h.RKey = rocev2.QPN(c.QPN^c.NewQPN), c.RKey^c.NewRKey
	return uint32(rocev2.NeutralOf(h))
}
