package main

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/mcrdma/mcrdma/cmd/internal/cli"
	"github.com/mcrdma/mcrdma/cmd/switchctl/internal/planning"
)

// text returns a report as text.
func (f *planFlags) text(r planning.Report, sizes map[string]int64) string {
	var b strings.Builder
	if f.summary {
		summaryText(&b, r)
	} else {
		for _, g := range r.Groups {
			groupText(&b, g, len(r.Groups) > 1)
		}
	}
	if r.Failed == len(r.Groups) {
		return b.String()
	}
	useText(&b, r.Use, sizes)
	if !f.summary {
		linksText(&b, r.Links)
	}
	fmt.Fprintf(&b, "Copies on links for each packet: %s.\n", saved(r.Links))
	return b.String()
}

// saved describes the load of links.
func saved(l planning.Loads) string {
	text := fmt.Sprintf("%s instead of %s", planning.Number(l.Group), planning.Number(l.Unicast))
	if l.Unicast > 0 {
		text += fmt.Sprintf(", %s saved", percent(1-l.Group/l.Unicast))
	}
	return text
}

func summaryText(b *strings.Builder, r planning.Report) {
	var rows [][]any
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
		rows = append(rows, row)
	}
	header := []string{"group", "source", "receivers", "merge point", "steps", "copies", "unicast", "error"}
	if r.Failed == 0 {
		header = header[:len(header)-1]
		for i := range rows {
			rows[i] = rows[i][:len(header)]
		}
	}
	fmt.Fprint(b, cli.Table{Header: header, Rows: rows})
	for _, g := range r.Groups {
		if g.Note != "" {
			fmt.Fprintf(b, "%s: %s.\n", g.Name, g.Note)
		}
	}
	fmt.Fprintln(b)
}

// round returns a mean as tables show it.
func round(x float64) float64 {
	y, _ := strconv.ParseFloat(planning.Number(x), 64)
	return y
}

func groupText(b *strings.Builder, g planning.Planned, several bool) {
	fmt.Fprintf(b, "%s: %s to %s\n", g.Name, g.Source, strings.Join(g.Receivers, ", "))
	if g.Error != "" {
		fmt.Fprintf(b, "Cannot be planned: %s\n\n", g.Error)
		return
	}
	fmt.Fprintf(b, "Merge point %s; the sender is connected to %s, from where all answers seem to come.\n", g.MergePoint, g.Address)
	if g.Note != "" {
		fmt.Fprintf(b, "Note: %s.\n", g.Note)
	}
	if g.Early > 0 {
		fmt.Fprintf(b, "Branches that would have become ambiguous, and are split earlier than necessary: %d\n", g.Early)
	}
	if several {
		fmt.Fprintf(b, "Copies on links for each packet: %s.\n", saved(*g.Links))
	}
	fmt.Fprintln(b)
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
	fmt.Fprintln(b, cli.Table{Header: header, Rows: rows})
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
func useText(b *strings.Builder, use []planning.Use, sizes map[string]int64) {
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
	fmt.Fprintln(b, cli.Table{Header: append(header, "fullest"), Rows: append(rows, append(last, ""))})
}

func share(u planning.Use) float64 { return float64(u.Entries) / float64(max(u.Size, 1)) }

// percent writes a share of 1.
func percent(share float64) string {
	if share > 0 && share < 0.0001 {
		return "< 0.01 %"
	}
	return planning.Number(100*share) + " %"
}

func linksText(b *strings.Builder, l planning.Loads) {
	var rows [][]any
	for _, x := range l.Each {
		var port any = ""
		if x.Port > 0 {
			port = x.Port
		}
		rows = append(rows, []any{x.From, port, x.To, round(x.Group), round(x.Unicast)})
	}
	fmt.Fprintln(b, cli.Table{Header: []string{"link from", "port", "to", "copies", "unicast"}, Rows: rows})
}
