package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/cmd/internal/cli"
	"github.com/mcrdma/mcrdma/cmd/switchctl/internal/doctor"
	"github.com/mcrdma/mcrdma/internal/grpcserver"
)

// topLines returns the view of the changes between two looks. Without the first, rates are not
// known.
func topLines(before, now *look) ([]string, error) {
	v := newTopView(before, now)
	groups := 0
	for _, a := range now.agents {
		groups += len(a.groups)
	}
	v.lines = []string{fmt.Sprintf("%s  %s, %s", now.at.Format(time.TimeOnly), switches(len(now.agents)), cli.Plural(groups, "group"))}
	for _, section := range []func() ([]string, [][]any){v.switches, v.fastPaths, v.groupRows, v.ports, v.drops} {
		header, rows := section()
		if len(rows) == 0 {
			continue
		}
		var b strings.Builder
		if err := new(cli.Output).Table(&b, header, rows); err != nil {
			return nil, err
		}
		v.lines = append(v.lines, "")
		v.lines = append(v.lines, strings.Split(strings.TrimRight(b.String(), "\n"), "\n")...)
	}
	return v.lines, nil
}

func newTopView(before, now *look) *topView {
	v := &topView{now: now, groups: map[string]*mcrdmav1.GroupStatus{}, counters: map[counterKey]uint64{}}
	if before != nil {
		v.span = now.at.Sub(before.at)
		for _, a := range before.agents {
			for _, g := range a.groups {
				v.groups[a.address+" "+keyText(g)] = g
			}
			for _, c := range a.counters {
				v.counters[counterKey{a.address, c.GetName(), c.GetCell()}] = c.GetPackets()
			}
		}
	}
	return v
}

func switches(n int) string {
	if n == 1 {
		return "1 switch"
	}
	return fmt.Sprintf("%d switches", n)
}

type topView struct {
	now      *look
	span     time.Duration // 0: there was no earlier look
	groups   map[string]*mcrdmav1.GroupStatus
	counters map[counterKey]uint64
	lines    []string
}

// rate returns the rate of a counter that was seen before, or "-".
func (v *topView) rate(seen bool, before, now uint64) string {
	if v.span <= 0 || !seen {
		return "-"
	}
	return perSecond(rate(before, now, v.span))
}

// switches returns a row for each switch.
func (v *topView) switches() ([]string, [][]any) {
	var rows [][]any
	for _, a := range v.now.agents {
		if a.err != nil {
			rows = append(rows, []any{a.address, "", "", "", "", "", "", a.err.Error()})
			continue
		}
		s := a.status
		up, all := 0, 0
		for _, p := range s.GetPorts() {
			if p.GetState() != "-" {
				all++
				up += grpcserver.One(p.GetState() == "up")
			}
		}
		reached, peers := 0, 0
		for _, p := range s.GetPeers() {
			if p.GetAgent() != "" {
				peers++
				reached += grpcserver.One(p.GetReachable() || p.GetError() == "")
			}
		}
		control := "primary"
		switch {
		case !s.GetP4Runtime().GetConnected():
			control = "lost"
		case !s.GetP4Runtime().GetPrimary():
			control = "not primary"
		}
		rows = append(rows, []any{
			s.GetName(), control, cli.Either(s.GetSettled(), "settled", "learning"), fmt.Sprintf("%d of %d", up, all), fmt.Sprintf("%d of %d", reached, peers),
			s.GetGroups(), s.GetSteps(), strings.Join(s.AllProblems(), "; "),
		})
	}
	return []string{"switch", "control", "routes", "links up", "peers", "groups", "steps", "problems"}, rows
}

// fastPaths returns a row for each switch that reports where it processes packets.
func (v *topView) fastPaths() ([]string, [][]any) {
	var rows [][]any
	for _, a := range v.now.agents {
		if f := a.status.GetP4Runtime().GetFastPath(); f != "" {
			rows = append(rows, []any{a.status.GetName(), f})
		}
	}
	return []string{"switch", "fast path"}, rows
}

// groupRows returns a row for each receiver; the group is in the first of them.
func (v *topView) groupRows() ([]string, [][]any) {
	var rows [][]any
	for _, a := range v.now.agents {
		for _, g := range a.groups {
			was, seen := v.groups[a.address+" "+keyText(g)]
			lead := []any{keyText(g), cli.QPN(g.GetGroup().GetKey().GetMcId()), g.GetSwitch(), v.rate(seen, was.GetPackets(), g.GetPackets())}
			problems := strings.Join(g.GetProblems(), "; ")
			for i, r := range g.GetGroup().GetReceivers() {
				var now, old *mcrdmav1.MemberCounters
				if i < len(g.GetMembers()) {
					now = g.GetMembers()[i]
					old = memberOf(was, r.GetAddress())
				}
				counts := []any{"", "", "", "", ""}
				if now != nil {
					known := old != nil
					counts = []any{
						v.rate(known, old.GetAcks(), now.GetAcks()), v.rate(known, old.GetSequenceNaks(), now.GetSequenceNaks()),
						v.rate(known, old.GetRnrNaks(), now.GetRnrNaks()), now.GetFatalNaks(), v.rate(known, old.GetCnps(), now.GetCnps()),
					}
				}
				row := append(append(slices.Clone(lead), r.GetAddress()), counts...)
				rows = append(rows, append(row, problems))
				lead, problems = []any{"", "", "", ""}, ""
			}
		}
	}
	return []string{"group", "mc_id", "switch", "packets/s", "receiver", "acks/s", "naks/s", "rnr/s", "fatal", "cnps/s", "problems"}, rows
}

// memberOf returns a receiver's counters in an earlier look; nil if it was not seen.
func memberOf(g *mcrdmav1.GroupStatus, address string) *mcrdmav1.MemberCounters {
	for i, r := range g.GetGroup().GetReceivers() {
		if r.GetAddress() == address && i < len(g.GetMembers()) {
			return g.GetMembers()[i]
		}
	}
	return nil
}

// ports returns a row for each link that should be up and is not.
func (v *topView) ports() ([]string, [][]any) {
	var rows [][]any
	for _, a := range v.now.agents {
		for _, p := range a.status.GetPorts() {
			if s := p.GetState(); s != "up" && s != "-" {
				rows = append(rows, []any{a.status.GetName(), p.GetPort(), p.GetNeighbor(), s, cli.Since(p.GetSince(), v.now.at), p.GetReason()})
			}
		}
	}
	return []string{"switch", "port", "neighbor", "state", "since", "reason"}, rows
}

// drops returns a row for each reason for which packets are currently dropped, except drops by
// merging.
func (v *topView) drops() ([]string, [][]any) {
	type drop struct {
		rate float64
		row  []any
	}
	var list []drop
	for _, a := range v.now.agents {
		for _, c := range a.counters {
			reason := doctor.DropReasons[c.GetCell()]
			was, seen := v.counters[counterKey{a.address, c.GetName(), c.GetCell()}]
			if r := rate(was, c.GetPackets(), v.span); doctor.IsDrop(c) && !reason.Usual && seen && r > 0 {
				list = append(list, drop{r, []any{a.status.GetName(), c.GetName(), c.GetCell(), perSecond(r), c.GetPackets(), reason.Meaning}})
			}
		}
	}
	slices.SortStableFunc(list, func(a, b drop) int { return cmp.Compare(b.rate, a.rate) })
	var rows [][]any
	for _, d := range list {
		rows = append(rows, d.row)
	}
	return []string{"switch", "dropped at", "reason", "packets/s", "packets", "meaning"}, rows
}
