package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/mcrdma/mcrdma/cmd/internal/cli"
	"github.com/mcrdma/mcrdma/cmd/switchctl/internal/doctor"
	"github.com/mcrdma/mcrdma/internal/grpcserver"
)

// topLines returns the view of the changes between two looks. Without the first, rates are not
// known.
func topLines(before, now *look) []string {
	t := newTop(before, now)
	groups := 0
	for _, a := range t.Agents {
		groups += len(a.Groups)
	}
	lines := []string{fmt.Sprintf("%s  %s, %s", t.At.Format(time.TimeOnly), cli.Plural(len(t.Agents), "switch"), cli.Plural(groups, "group"))}
	for _, section := range []func() ([]string, [][]any){t.switches, t.fastPaths, t.groups, t.ports, t.drops} {
		if header, rows := section(); len(rows) > 0 {
			table := cli.Table{Header: header, Rows: rows}.String()
			lines = append(append(lines, ""), strings.Split(strings.TrimRight(table, "\n"), "\n")...)
		}
	}
	return lines
}

// switches returns a row for each switch.
func (t *topJSON) switches() ([]string, [][]any) {
	var rows [][]any
	for _, a := range t.Agents {
		if a.Error != "" {
			rows = append(rows, []any{a.Agent, "", "", "", "", "", "", a.Error})
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
func (t *topJSON) fastPaths() ([]string, [][]any) {
	var rows [][]any
	for _, a := range t.Agents {
		if f := a.status.GetP4Runtime().GetFastPath(); f != "" {
			rows = append(rows, []any{a.status.GetName(), f})
		}
	}
	return []string{"switch", "fast path"}, rows
}

// rateText returns a rate, or "-" if it is not known.
func rateText(r *float64) string {
	if r == nil {
		return "-"
	}
	return perSecond(*r)
}

// groups returns a row for each receiver; the group is in the first of them.
func (t *topJSON) groups() ([]string, [][]any) {
	var rows [][]any
	for _, a := range t.Agents {
		for _, g := range a.Groups {
			lead := []any{g.Group, g.MCID, g.at, rateText(g.Packets)}
			problems := strings.Join(g.Problems, "; ")
			for _, r := range g.Receivers {
				counts := []any{"", "", "", "", ""}
				if r.counted {
					counts = []any{rateText(r.Acks), rateText(r.SequenceNAKs), rateText(r.RNRNAKs), r.FatalNAKs, rateText(r.CNPs)}
				}
				rows = append(rows, slices.Concat(lead, []any{r.Address}, counts, []any{problems}))
				lead, problems = []any{"", "", "", ""}, ""
			}
		}
	}
	return []string{"group", "mc_id", "switch", "packets/s", "receiver", "acks/s", "naks/s", "rnr/s", "fatal", "cnps/s", "problems"}, rows
}

// ports returns a row for each link that should be up and is not.
func (t *topJSON) ports() ([]string, [][]any) {
	var rows [][]any
	for _, a := range t.Agents {
		for _, p := range a.status.GetPorts() {
			if s := p.GetState(); s != "up" && s != "-" {
				rows = append(rows, []any{a.status.GetName(), p.GetPort(), p.GetNeighbor(), s, cli.Since(p.GetSince(), t.At), p.GetReason()})
			}
		}
	}
	return []string{"switch", "port", "neighbor", "state", "since", "reason"}, rows
}

// drops returns a row for each reason for which packets are currently dropped, except drops by
// merging.
func (t *topJSON) drops() ([]string, [][]any) {
	type drop struct {
		rate float64
		row  []any
	}
	var list []drop
	for _, a := range t.Agents {
		for _, c := range a.Counters {
			reason := doctor.DropReasons[c.Cell]
			if doctor.IsDrop(c.Name) && !reason.Usual && c.Rate != nil && *c.Rate > 0 {
				list = append(list, drop{*c.Rate, []any{a.status.GetName(), c.Name, c.Cell, perSecond(*c.Rate), c.Packets, reason.Meaning}})
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
