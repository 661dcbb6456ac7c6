package planning

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/mcrdma/mcrdma/pkg/bifurcation"
)

// Tables that groups use, by their names in the P4Info, and parts of the packet replication engine.
const (
	TableGroups      = "ingress.replication.groups"
	TableReplicas    = "egress.rewrite.replicas"
	TableRegions     = "egress.rewrite.regions"
	TableMergeGroups = "egress.ack_merge.merge_groups"
	TableMembers     = "egress.ack_merge.merge_members"
	PREGroups        = "PRE groups"
	PREReplicas      = "PRE replicas"
)

// Tables are these tables, in the order of output.
var Tables = []string{TableGroups, PREGroups, PREReplicas, TableReplicas, TableRegions, TableMergeGroups, TableMembers}

// A Report is the plan of groups on a fabric.
type Report struct {
	Groups []Planned `json:"groups"`
	Use    []Use     `json:"tables"` // of all groups that could be planned
	Links  Loads     `json:"links"`  // likewise
	Failed int       `json:"failed"` // groups that could not be planned
	Over   int       `json:"over"`   // tables that are too small
}

// A Planned is one group's plan, or why there is none.
type Planned struct {
	Name       string   `json:"name"`
	Source     string   `json:"source"`
	Receivers  []string `json:"receivers"`
	Error      string   `json:"error,omitempty"`
	Reason     string   `json:"reason,omitempty"` // of Error, by agents' names
	MergePoint string   `json:"merge_point,omitempty"`
	// Note is what the sender's host needs, if its own switch is not the merge point.
	Note string `json:"note,omitempty"`
	// Address is the source of answers, and the destination of the sender's packets.
	Address string `json:"address,omitempty"`
	Early   int    `json:"given_up_early,omitempty"` // branches that share less than they could
	Steps   []Step `json:"steps,omitempty"`          // in the order of installation
	Use     []Use  `json:"tables,omitempty"`
	Links   *Loads `json:"links,omitempty"`
}

// A Step is a switch's handling of a group's packets to one address.
type Step struct {
	Switch    string   `json:"switch"`
	To        string   `json:"to"`        // destination of arriving packets
	Receivers []string `json:"receivers"` // reached by these packets
	// PREGroups are those that the flow's hash chooses from; 0: packets follow their unicast route,
	// and nothing is installed.
	PREGroups int      `json:"pre_groups"`
	Copies    []Copy   `json:"copies,omitempty"`
	Branches  []Branch `json:"branches,omitempty"`
}

// A Copy is a copy that a switch makes and rewrites.
type Copy struct {
	RID  uint16 `json:"rid"`
	To   string `json:"to"`
	Last bool   `json:"last"` // for its receiver; otherwise a later switch copies it again
	Port uint32 `json:"port"`
	Peer string `json:"peer"` // the node at the port
	// In has the PRE groups that make it, numbered from 0.
	In []int `json:"in"`
}

// A Branch is a branch to the next switches.
type Branch struct {
	Next      []string `json:"next"`
	Receivers []string `json:"receivers"`
}

// A Use is the use of a switch's table.
type Use struct {
	Switch  string `json:"switch"`
	Table   string `json:"table"`
	Entries int    `json:"entries"`
	Size    int64  `json:"size"` // 0: not known
}

// Over reports that the table is too small.
func (u Use) Over() bool { return u.Size > 0 && int64(u.Entries) > u.Size }

// Loads are mean copies per packet of each sender.
type Loads struct {
	Group   float64 `json:"group"`   // with multicast, on all links
	Unicast float64 `json:"unicast"` // with a connection to each receiver
	Each    []Load  `json:"each,omitempty"`
}

// A Load is the load of a link, in one direction.
type Load struct {
	From    string  `json:"from"`
	Port    uint32  `json:"port,omitempty"` // of From, if it is a switch
	To      string  `json:"to"`
	Group   float64 `json:"group"`
	Unicast float64 `json:"unicast"`
}

// Options of Plan.
type Options struct {
	MaxPREGroups int              // as in bifurcation.Request
	Sizes        map[string]int64 // of Tables
	Late         bool             // as in bifurcation.Request, for groups that take WRITEs
}

// Plan plans groups. Groups that cannot be planned are in the report, with the reason.
func Plan(f *Fabric, groups []Group, o Options) Report {
	var r Report
	use := uses{}
	all := loads{}
	for i, g := range groups {
		p, entries, links := f.plan(g, uint32(i%(1<<24-1))+1, o) //nolint:gosec // less than 2^24
		if p.Error != "" {
			r.Failed++
		} else {
			p.Use = entries.list(o.Sizes)
			p.Links = links.sum()
			use.add(entries)
			all.add(links)
		}
		r.Groups = append(r.Groups, p)
	}
	r.Use = use.list(o.Sizes)
	r.Links = *all.sum()
	for _, u := range r.Use {
		if u.Over() {
			r.Over++
		}
	}
	return r
}

var reasons = []struct {
	err  error
	name string
}{
	{bifurcation.ErrNoRoute, "NO_ROUTE"}, {bifurcation.ErrLoop, "LOOP"}, {bifurcation.ErrAmbiguous, "AMBIGUOUS"},
	{bifurcation.ErrNoMergePoint, "NO_MERGE_POINT"}, {bifurcation.ErrDuplicateAddress, "DUPLICATE_ADDRESS"},
	{bifurcation.ErrSenderReceives, "SENDER_RECEIVES"}, {bifurcation.ErrNoReceivers, "NO_RECEIVERS"},
	{bifurcation.ErrTooManyReceivers, "TOO_MANY_RECEIVERS"},
}

func (f *Fabric) plan(g Group, id uint32, o Options) (Planned, uses, loads) {
	out := Planned{Name: g.Name, Source: g.Source, Receivers: slices.Clone(g.Receivers)}
	failed := func(err error) (Planned, uses, loads) {
		out.Error, out.Reason = f.explain(err), "INVALID"
		for _, r := range reasons {
			if errors.Is(err, r.err) {
				out.Reason = r.name
			}
		}
		return out, nil, nil
	}
	group, err := f.group(g, id)
	if err != nil {
		return failed(err)
	}
	group.Late = o.Late && g.regions() > 0
	p, err := bifurcation.Plan(f, group, o.MaxPREGroups)
	if err != nil {
		return failed(err)
	}
	saved, err := bifurcation.Save(f, group, p)
	if err != nil {
		return failed(fmt.Errorf("connections in place of the group: %w", err))
	}
	out.Source, out.Receivers = f.Name(group.Source), f.receivers(group.Receivers)
	out.MergePoint, out.Address, out.Early = string(p.MergePoint), f.Name(p.Merge.Source), p.Early
	if own := f.Uplinks(group.Source); len(own) > 0 && !slices.Contains(own, p.MergePoint) {
		out.Note = fmt.Sprintf("switch %s of %s only routes: its daemon has to name the agent of %s (switch.agent), or hosts relay", own[0], out.Source, out.MergePoint)
	}
	entries := uses{}
	entries[switchTable{out.MergePoint, TableMergeGroups}] = 1
	entries[switchTable{out.MergePoint, TableMembers}] = len(p.Merge.Members)
	for _, s := range p.Steps {
		out.Steps = append(out.Steps, f.step(s))
		entries.step(s)
	}
	return out, entries, f.loads(group.Source, saved)
}

var ipv4 = regexp.MustCompile(`\b\d+\.\d+\.\d+\.\d+\b`)

// explain returns an error's text with the hosts' names.
func (f *Fabric) explain(err error) string {
	return ipv4.ReplaceAllStringFunc(err.Error(), func(s string) string {
		if a, err := netip.ParseAddr(s); err == nil && f.named[a] != "" {
			return fmt.Sprintf("%s (%s)", f.named[a], s)
		}
		return s
	})
}

func (f *Fabric) receivers(list []bifurcation.Receiver) []string {
	out := make([]string, 0, len(list))
	for _, r := range list {
		out = append(out, f.Name(r.Addr))
	}
	return out
}

func (f *Fabric) step(s bifurcation.SwitchStep) Step {
	out := Step{Switch: string(s.At), To: f.Name(s.Dst), Receivers: f.receivers(s.Receivers), PREGroups: len(s.Rules.PREGroups)}
	for _, w := range s.Rules.Rewrites {
		c := Copy{RID: w.RID, To: f.Name(w.Dst), Last: w.Last, Port: uint32(w.NextHop)}
		c.Peer = f.Peer(s.At, c.Port)
		for k, g := range s.Rules.PREGroups {
			if slices.ContainsFunc(g, func(r bifurcation.Replica) bool { return r.RID == w.RID }) {
				c.In = append(c.In, k)
			}
		}
		out.Copies = append(out.Copies, c)
	}
	for _, b := range s.Branches {
		x := Branch{Receivers: f.receivers(b.Receivers)}
		for _, n := range b.Next {
			x.Next = append(x.Next, string(n))
		}
		out.Branches = append(out.Branches, x)
	}
	return out
}

// A switchTable is a table of a switch.
type switchTable struct{ at, table string }

// uses counts table entries.
type uses map[switchTable]int

func (u uses) step(s bifurcation.SwitchStep) {
	if s.Rules.Empty() {
		return
	}
	at := string(s.At)
	u[switchTable{at, TableGroups}]++
	u[switchTable{at, PREGroups}] += len(s.Rules.PREGroups)
	for _, g := range s.Rules.PREGroups {
		u[switchTable{at, PREReplicas}] += len(g)
	}
	u[switchTable{at, TableReplicas}] += len(s.Rules.Rewrites)
	if n := len(s.Rules.Translations); n > 0 {
		u[switchTable{at, TableRegions}] += n
	}
}

func (u uses) add(o uses) {
	for k, n := range o {
		u[k] += n
	}
}

func (u uses) list(sizes map[string]int64) []Use {
	out := make([]Use, 0, len(u))
	for k, n := range u {
		out = append(out, Use{k.at, k.table, n, sizes[k.table]})
	}
	slices.SortFunc(out, func(a, b Use) int {
		return cmp.Or(cmp.Compare(a.Switch, b.Switch), cmp.Compare(slices.Index(Tables, a.Table), slices.Index(Tables, b.Table)))
	})
	return out
}

// loads sums up the traffic of links: copies with multicast and with unicast, by a Load with neither.
type loads map[Load][2]float64

func (f *Fabric) loads(source netip.Addr, s bifurcation.Savings) loads {
	out := loads{}
	for _, l := range s.Links {
		x := Load{From: string(l.From), Port: l.Port, To: string(l.To)}
		if l.From == "" {
			x.From = f.Name(source)
		} else {
			x.To = f.Peer(l.From, l.Port)
		}
		out.put(x, l.Group, l.Unicast)
	}
	return out
}

func (l loads) put(x Load, group, unicast float64) {
	l[x] = [2]float64{l[x][0] + group, l[x][1] + unicast}
}

func (l loads) add(o loads) {
	for x, both := range o {
		l.put(x, both[0], both[1])
	}
}

// sum lists the links: those of hosts first, then those of switches, by name.
func (l loads) sum() *Loads {
	out := &Loads{Each: make([]Load, 0, len(l))}
	for x, both := range l {
		out.Each = append(out.Each, Load{x.From, x.Port, x.To, both[0], both[1]})
	}
	slices.SortFunc(out.Each, func(a, b Load) int {
		byHost := func(x Load) int { return min(int(x.Port), 1) }
		return cmp.Or(cmp.Compare(byHost(a), byHost(b)), cmp.Compare(a.From, b.From), cmp.Compare(a.Port, b.Port), cmp.Compare(a.To, b.To))
	})
	for _, x := range out.Each {
		out.Group += x.Group
		out.Unicast += x.Unicast
	}
	return out
}

// Number returns a mean with up to two decimals.
func Number(x float64) string {
	s := strconv.FormatFloat(x, 'f', 2, 64)
	return strings.TrimSuffix(strings.TrimRight(s, "0"), ".")
}
