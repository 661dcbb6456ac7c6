package main

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/mcrdma/mcrdma/cmd/internal/cli"
	"github.com/mcrdma/mcrdma/cmd/switchctl/internal/planning"
	"github.com/mcrdma/mcrdma/internal/connmgr/config"
	"github.com/mcrdma/mcrdma/internal/p4rt"
	"github.com/mcrdma/mcrdma/internal/softswitch/pre"
	"github.com/mcrdma/mcrdma/internal/topology"
	"github.com/mcrdma/mcrdma/pkg/bifurcation"
)

const planHelp = `Plans multicast groups on a fabric that a topology file describes, without changing a
switch. It shows

  - the merge point: the switch that makes the first copies, and merges the answers of
    all receivers. If there is none, it says why, switch by switch;
  - each switch's step, in the order in which agents install them: the packets that it
    matches, the copies and their rewriting, and the PRE groups among which a flow's
    hash chooses;
  - the use of each switch's tables. Sizes are those of this program, and of a switch
    that is started as docs/dataplane.md says;
  - the load of each link per packet of the sender, on average over all flows, compared
    with a connection to each receiver.

Members are hosts of the topology, by name or address. Groups may come from a file
(YAML or JSON):

  groups:
    - {name: volume7, source: h1, receivers: [h2, h3]}
    - {name: volume8, source: h2, receivers: [h1, h3], regions: 4}

--address is for a group whose first receiver has left: the sender is still connected
to that receiver's address.

The JSON has groups, each with its merge_point, steps, tables and links, or with the
error; tables and links, of all groups together; and failed and over, how many groups
could not be planned, and how many tables are too small.

The exit code is 1 if a group cannot be planned, or a table is too small.`

const planExamples = `  # one group
  switchctl plan --topology fabric.yaml --source 10.1.0.11 --receivers 10.1.0.12,10.2.0.11

  # does it survive the loss of a link, and of the one at port 9 of leaf2?
  switchctl plan -t fabric.yaml --source h1 --receivers h2,h3 --link-down leaf1:spine1 --link-down leaf2:9

  # do all of these fit into the switches' tables?
  switchctl plan -t fabric.yaml --from groups.yaml --summary`

type planFlags struct {
	topology  string
	from      string
	group     planning.Group
	regions   int
	down      []string
	preGroups int
	recompute bool
	summary   bool
	out       *cli.Output
}

// planCommand returns the subcommand.
func planCommand() *cobra.Command {
	var f planFlags
	cmd := &cobra.Command{
		Use:     "plan --topology FILE (--source HOST --receivers HOST,… | --from FILE) [flags]",
		Short:   "Plan groups on a topology file, without changing a switch",
		Long:    planHelp,
		Example: planExamples,
		Args:    cli.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return f.run(cmd.OutOrStdout()) },

		DisableFlagsInUseLine: true,
	}
	fs := cmd.Flags()
	fs.SortFlags = false
	fs.StringVarP(&f.topology, "topology", "t", "", "the fabric: a topology `file` (docs/topology.md)")
	fs.StringVar(&f.group.Source, "source", "", "the sending `host`, by name or address")
	fs.StringSliceVar(&f.group.Receivers, "receivers", nil, "the receiving `hosts`, by name or address, with commas between")
	fs.StringVar(&f.group.Address, "address", "", "`host` or address that the sender is connected to; default: the first receiver")
	fs.IntVar(&f.regions, "regions", 1, fmt.Sprintf("memory `regions` that WRITEs may address at each receiver, up to %d", config.MaxRegions))
	fs.StringVar(&f.from, "from", "", "plan all groups of a `file`")
	fs.StringArrayVar(&f.down, "link-down", nil, "plan without the links between two nodes, `A:B`, or that at SWITCH:PORT; may be repeated")
	fs.IntVar(&f.preGroups, "pre-groups", bifurcation.DefaultMaxPREGroups, "most PRE `groups` of one step for equal-cost paths")
	fs.BoolVar(&f.recompute, "recompute", false, "plan as agents with icrc: recompute do, which rewrite copies in full as soon as they are for one receiver")
	fs.BoolVar(&f.summary, "summary", false, "one line per group instead of its steps, and no single links")
	f.out = cli.AddOutputFlag(cmd)
	cli.CompleteFile(cmd, "topology", "yaml", "yml", "json")
	cli.CompleteFile(cmd, "from", "yaml", "yml", "json")
	for _, flag := range []string{"source", "address"} {
		cli.CompleteFlag(cmd, flag, f.hosts)
	}
	cli.CompleteList(cmd, "receivers", f.hosts)
	cli.CompleteFlag(cmd, "link-down", f.links)
	return cmd
}

// hosts completes hosts, once the topology is known.
func (f *planFlags) hosts() (names []string) {
	t, err := topology.Load(f.topology)
	if err != nil {
		return nil
	}
	for _, h := range t.Hosts {
		names = append(names, h.Name)
	}
	return names
}

// links completes links, likewise.
func (f *planFlags) links() (names []string) {
	t, err := topology.Load(f.topology)
	if err != nil {
		return nil
	}
	for _, l := range t.Links {
		names = append(names, l.A.Node+":"+l.B.Node)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

func (f *planFlags) run(w io.Writer) error {
	groups, err := f.groups()
	if err != nil {
		return err
	}
	t, err := topology.Load(f.topology)
	switch {
	case err != nil && !strings.Contains(err.Error(), ": missing: "):
		return fmt.Errorf("--topology: %w", err)
	case err != nil:
		return fmt.Errorf("--topology: %w\n(where Mininet chooses what is left out, bmv2/mininet/run --complete FILE prints the complete file)", err)
	}
	fabric := planning.NewFabric(t)
	for _, l := range f.down {
		if err := fabric.LinkDown(l); err != nil {
			return cli.Usagef("--link-down %w", err)
		}
	}
	sizes, err := tableSizes()
	if err != nil {
		return err
	}
	report := planning.Plan(fabric, groups, planning.Options{MaxPREGroups: f.preGroups, Sizes: sizes, Late: !f.recompute})
	switch {
	case f.out.IsJSON() && f.summary:
		report = summary(report)
		fallthrough
	case f.out.IsJSON():
		err = f.out.JSON(w, report)
	case f.from == "" && report.Failed > 0: // the error has everything
	default:
		_, err = io.WriteString(w, f.text(report, sizes))
	}
	if err != nil {
		return err
	}
	return f.verdict(report)
}

// groups returns the groups of the command line or of the file. Errors are usage errors, except
// those of the file.
func (f *planFlags) groups() ([]planning.Group, error) {
	single := f.group.Source != "" || len(f.group.Receivers) > 0 || f.group.Address != ""
	switch {
	case f.topology == "":
		return nil, cli.Usagef("no topology: name its file by --topology")
	case f.preGroups < 1:
		return nil, cli.Usagef("--pre-groups %d: a step takes at least one", f.preGroups)
	case f.regions < 0 || f.regions > config.MaxRegions:
		return nil, cli.Usagef("--regions %d: a receiver of a group has 0 to %d", f.regions, config.MaxRegions)
	case f.from != "" && single:
		return nil, cli.Usagef("--from takes groups from a file; --source, --receivers and --address are for a single one")
	case f.from == "" && (f.group.Source == "" || len(f.group.Receivers) == 0):
		return nil, cli.Usagef("no group: name its members by --source and --receivers, or a file of groups by --from")
	case f.from == "":
		g := f.group
		g.Name, g.Regions = "group", &f.regions
		return []planning.Group{g}, cli.NoEmptyName("--receivers", g.Receivers)
	}
	groups, err := planning.LoadGroups(f.from)
	if err != nil {
		return nil, fmt.Errorf("--from: %w", err)
	}
	for i := range groups {
		if groups[i].Regions == nil {
			groups[i].Regions = &f.regions
		}
	}
	return groups, nil
}

// tableSizes returns the sizes of the tables of this program, and those that its switches are
// started with.
func tableSizes() (map[string]int64, error) {
	p, err := p4rt.OwnProgram()
	if err != nil {
		return nil, err
	}
	sizes := p.Sizes()
	sizes[planning.PREGroups], sizes[planning.PREReplicas] = pre.DefaultGroups, pre.DefaultReplicas
	return sizes, nil
}

// summary omits single groups.
func summary(r planning.Report) planning.Report {
	r.Groups = slices.Clone(r.Groups)
	for i := range r.Groups {
		r.Groups[i].Steps, r.Groups[i].Use = nil, nil
		if l := r.Groups[i].Links; l != nil {
			r.Groups[i].Links = &planning.Loads{Group: l.Group, Unicast: l.Unicast}
		}
	}
	r.Links.Each = nil
	return r
}

// verdict is an error unless everything is possible.
func (f *planFlags) verdict(r planning.Report) error {
	var errs []string
	switch {
	case r.Failed > 0 && f.from == "":
		return errors.New(r.Groups[0].Error)
	case r.Failed > 0:
		i := slices.IndexFunc(r.Groups, func(g planning.Planned) bool { return g.Error != "" })
		errs = append(errs, fmt.Sprintf("%d of %d groups cannot be planned: %s: %s", r.Failed, len(r.Groups), r.Groups[i].Name, r.Groups[i].Error))
		if r.Failed > 1 {
			errs[0] += fmt.Sprintf(" (and %d more)", r.Failed-1)
		}
	}
	if r.Over > 0 {
		i := slices.IndexFunc(r.Use, planning.Use.Over)
		u := r.Use[i]
		text := fmt.Sprintf("%d tables are too small: %s of %s would need %d of %d entries", r.Over, u.Table, u.Switch, u.Entries, u.Size)
		errs = append(errs, strings.Replace(text, "1 tables are", "1 table is", 1))
	}
	if len(errs) == 0 {
		return nil
	}
	return errors.New(strings.Join(errs, "; "))
}
