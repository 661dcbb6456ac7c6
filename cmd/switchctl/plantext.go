package main

import (
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/mcrdma/mcrdma/cmd/switchctl/internal/planning"
)

// text writes a report as text.
func (f *planFlags) text(w io.Writer, r planning.Report, sizes map[string]int64) error {
	if f.summary {
		if err := f.summaryText(w, r); err != nil {
			return err
		}
	} else {
		for _, g := range r.Groups {
			if err := f.groupText(w, g, len(r.Groups) > 1); err != nil {
				return err
			}
		}
	}
	if r.Failed == len(r.Groups) {
		return nil
	}
	if err := f.useText(w, r.Use, sizes); err != nil {
		return err
	}
	if !f.summary {
		if err := f.linksText(w, r.Links); err != nil {
			return err
		}
	}
	_, err := fmt.Fprintf(w, "Copies on links for each packet: %s.\n", saved(r.Links))
	return err
}

// saved describes the load of links.
func saved(l planning.Loads) string {
	text := fmt.Sprintf("%s instead of %s", planning.Number(l.Group), planning.Number(l.Unicast))
	if l.Unicast > 0 {
		text += fmt.Sprintf(", %s saved", percent(1-l.Group/l.Unicast))
	}
	return text
}

func (f *planFlags) summaryText(w io.Writer, r planning.Report) error {
	var rows [][]any
	failed := false
	for _, g := range r.Groups {
		row := []any{g.Name, g.Source, len(g.Receivers), g.MergePoint, "", "", "", g.Error}
		if g.Error == "" {
			rules := 0
			for _, s := range g.Steps {
				if s.PREGroups > 0 {
					rules++
				}
			}
			row[4], row[5], row[6] = rules, round(g.Links.Group), round(g.Links.Unicast)
		}
		failed = failed || g.Error != ""
		rows = append(rows, row)
	}
	header := []string{"group", "source", "receivers", "merge point", "steps", "copies", "unicast", "error"}
	if !failed {
		header = header[:len(header)-1]
		for i := range rows {
			rows[i] = rows[i][:len(header)]
		}
	}
	if err := f.out.Table(w, header, rows); err != nil {
		return err
	}
	for _, g := range r.Groups {
		if g.Note != "" {
			fmt.Fprintf(w, "%s: %s.\n", g.Name, g.Note)
		}
	}
	_, err := fmt.Fprintln(w)
	return err
}

// round returns a mean as tables show it.
func round(x float64) float64 {
	y, _ := strconv.ParseFloat(planning.Number(x), 64)
	return y
}

func (f *planFlags) groupText(w io.Writer, g planning.Planned, several bool) error {
	fmt.Fprintf(w, "%s: %s to %s\n", g.Name, g.Source, strings.Join(g.Receivers, ", "))
	if g.Error != "" {
		_, err := fmt.Fprintf(w, "Cannot be planned: %s\n\n", g.Error)
		return err
	}
	fmt.Fprintf(w, "Merge point %s; the sender is connected to %s, from where all answers seem to come.\n", g.MergePoint, g.Address)
	if g.Note != "" {
		fmt.Fprintf(w, "Note: %s.\n", g.Note)
	}
	if g.Early > 0 {
		fmt.Fprintf(w, "Branches that would have become ambiguous, and are split earlier than necessary: %d\n", g.Early)
	}
	if several {
		fmt.Fprintf(w, "Copies on links for each packet: %s.\n", saved(*g.Links))
	}
	fmt.Fprintln(w)
	var rows [][]any
	for i, s := range g.Steps {
		what := []any{i + 1, s.Switch, s.To, strings.Join(s.Receivers, " ")}
		if len(s.Copies) == 0 {
			rows = append(rows, append(what, "", "passes", "", "", ""))
		}
		for _, c := range s.Copies {
			becomes := "branch to " + c.To
			if c.Last {
				becomes = "receiver " + c.To
			}
			rows = append(rows, append(what, c.RID, becomes, c.Port, c.Peer, preGroups(c.In, s.PREGroups)))
			what = []any{"", "", "", ""}
		}
	}
	header := []string{"step", "switch", "packets to", "reach", "copy", "becomes", "port", "leads to", "PRE groups"}
	if err := f.out.Table(w, header, rows); err != nil {
		return err
	}
	_, err := fmt.Fprintln(w)
	return err
}

// preGroups returns the PRE groups of a step that make a copy.
func preGroups(in []int, all int) string {
	switch {
	case all == 1:
		return "1"
	case len(in) == all:
		return fmt.Sprintf("all %d", all)
	}
	var list []string
	for _, k := range in {
		list = append(list, strconv.Itoa(k+1))
	}
	return fmt.Sprintf("%s of %d", strings.Join(list, " "), all)
}

// tableTitles are the tables' names in the header.
var tableTitles = map[string]string{
	planning.TableGroups: "groups", planning.PREGroups: "PRE groups", planning.PREReplicas: "PRE replicas", planning.TableReplicas: "replicas",
	planning.TableRegions: "regions", planning.TableMergeGroups: "merge groups", planning.TableMembers: "merge members",
}

// useText writes a line for each switch, with its fullest table, and one with the sizes.
func (f *planFlags) useText(w io.Writer, use []planning.Use, sizes map[string]int64) error {
	header, last := []string{"switch"}, []any{"room for"}
	for _, t := range planning.Tables {
		header, last = append(header, tableTitles[t]), append(last, sizes[t])
	}
	var rows [][]any
	for len(use) > 0 {
		n := 1
		for n < len(use) && use[n].Switch == use[0].Switch {
			n++
		}
		row := []any{use[0].Switch}
		fullest := use[0]
		for _, t := range planning.Tables {
			entries := 0
			for _, u := range use[:n] {
				if u.Table != t {
					continue
				}
				entries = u.Entries
				if share(u) > share(fullest) {
					fullest = u
				}
			}
			row = append(row, entries)
		}
		text := fmt.Sprintf("%s, %s", tableTitles[fullest.Table], percent(share(fullest)))
		if fullest.Over() {
			text += ": TOO SMALL"
		}
		rows, use = append(rows, append(row, text)), use[n:]
	}
	if err := f.out.Table(w, append(header, "fullest"), append(rows, append(last, ""))); err != nil {
		return err
	}
	_, err := fmt.Fprintln(w)
	return err
}

func share(u planning.Use) float64 { return float64(u.Entries) / float64(max(u.Size, 1)) }

// percent writes a share of 1.
func percent(share float64) string {
	if share > 0 && share < 0.0001 {
		return "< 0.01 %"
	}
	return planning.Number(100*share) + " %"
}

func (f *planFlags) linksText(w io.Writer, l planning.Loads) error {
	var rows [][]any
	for _, x := range l.Each {
		var port any = ""
		if x.Port > 0 {
			port = x.Port
		}
		rows = append(rows, []any{x.From, port, x.To, round(x.Group), round(x.Unicast)})
	}
	if err := f.out.Table(w, []string{"link from", "port", "to", "copies", "unicast"}, rows); err != nil {
		return err
	}
	_, err := fmt.Fprintln(w)
	return err
}
