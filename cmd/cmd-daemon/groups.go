package main

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/cmd/internal/cli"
	"github.com/mcrdma/mcrdma/internal/grouptree"
)

// groupsCommand lists the groups whose sender is this host.
func groupsCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "groups [flags]",
		Short: "List the groups to which an application of this host sends",
		Long: `Lists the groups to which applications of this host send. Users see their own, and
root sees all.

The JSON is a ListGroupsResponse (api/mcrdma/v1/daemon.proto) without memberships.`,
		Example: "  cmd-daemon groups\n  cmd-daemon groups -o json",
		Args:    cli.NoArgs,
	}
	asking(cmd, func(q question) error {
		l, err := q.ListGroups(q, &mcrdmav1.ListGroupsRequest{})
		if err != nil {
			return err
		}
		l.Memberships = nil
		return q.show(l, func() string {
			var rows [][]any
			for _, g := range l.GetGroups() {
				f := g.GetFormation()
				rows = append(rows, []any{groupName(f.GetGroup()), cli.QPN(f.GetMcId()), g.GetService(), pathName(f.GetPath()), len(f.GetMembers()), f.GetFormation(),
					g.GetProgram(), g.GetPid(), userName(g.GetUid()), cli.Since(g.GetCreated(), cli.Now(q)), strings.Join(g.GetProblems(), "; ")})
			}
			return cli.Table{Header: []string{"group", "mc_id", "service", "path", "receivers", "formation", "program", "pid", "user", "age", "problems"}, Rows: rows}.String()
		})
	})
	return cmd
}

// membersCommand lists the groups in which applications of this host receive.
func membersCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "members [flags]",
		Short: "List the groups in which an application of this host receives",
		Long: `Lists the memberships of this host's applications: the groups in which they are
receivers. Users see their own, and root sees all.

A view is the set of a group's receivers at a time. Before an operation completes without
a receiver of the previous view, this host's daemon has recorded the new one. So if the
sender's host is lost, the receivers in the view with the highest number have every
operation that had completed at the sender.

The JSON is a ListGroupsResponse (api/mcrdma/v1/daemon.proto) without groups.`,
		Example: "  cmd-daemon members\n  cmd-daemon members -o json",
		Args:    cli.NoArgs,
	}
	asking(cmd, func(q question) error {
		l, err := q.ListGroups(q, &mcrdmav1.ListGroupsRequest{})
		if err != nil {
			return err
		}
		l.Groups = nil
		return q.show(l, func() string {
			var rows [][]any
			for _, m := range l.GetMemberships() {
				rows = append(rows, []any{groupName(m.GetGroup()), cli.QPN(m.GetMcId()), m.GetSender(), m.GetService(), pathName(m.GetPath()), m.GetFormation(),
					viewNumber(m.GetView()), viewHosts(m), m.GetProgram(), m.GetPid(), userName(m.GetUid()), cli.Since(m.GetSince(), cli.Now(q))})
			}
			return cli.Table{Header: []string{"group", "mc_id", "sender", "service", "path", "formation", "view", "receivers", "program", "pid", "user", "age"}, Rows: rows}.String()
		})
	})
	return cmd
}

// groupCommand has the subcommands for one group.
func groupCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "group", Short: "Show one group"}
	cli.Parent(cmd)
	cmd.AddCommand(groupShowCommand())
	return cmd
}

func groupShowCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "show SOURCE/NUMBER|SOURCE/0xMC_ID [flags]",
		Short: "Show a group of this host: its members, its path and why, its tree",
		Long: `Shows a group to which an application of this host sends: its members and their state,
and whether switches copy or hosts relay, with the reason. "switchctl group show" shows
the group as the switches have it.

A group has a permanent number at its sender's daemon, and an MC_ID at switches and in
packets, which changes when the group is re-formed. Either names the group: the number in
decimal, the MC_ID in hexadecimal after 0x, or also in decimal if no group has that number.

If this host is a receiver of the group, its daemon knows only the latest view that it has
recorded, and the receivers in it; see "cmd-daemon members".

The JSON is a GroupInfo, or a MembershipInfo (api/mcrdma/v1/daemon.proto).

Exit code 1 means that the group was not found, or that something is wrong with it.`,
		Example: "  cmd-daemon group show 10.1.0.11/3\n  cmd-daemon group show 10.1.0.11/0x800001",
		Args:    cli.ExactArg("one group, SOURCE/NUMBER or SOURCE/0xMC_ID, such as 10.1.0.11/3 or 10.1.0.11/0x800001"),
	}
	cmd.ValidArgsFunction = completeGroups(asking(cmd, func(q question) error {
		name := q.args[0]
		key, err := grouptree.ParseKey(name)
		if err != nil {
			return cli.Usage(err)
		}
		id := &mcrdmav1.GroupID{Source: key.Source.String(), Number: cmp.Or(key.Number, uint64(key.ID))}
		answer, err := q.GetGroup(q, &mcrdmav1.GetGroupRequest{Group: id})
		g := answer.GetGroup()
		if cli.CodeOf(err) == codes.NotFound {
			l, err := q.ListGroups(q, &mcrdmav1.ListGroupsRequest{})
			if err != nil {
				return err
			}
			if g = withMCID(l, id); g == nil {
				return showMembership(q, l, name, id)
			}
		} else if err != nil {
			return err
		}
		err = q.show(g, func() string { return groupText(g, cli.Now(q)) })
		if n := len(g.GetProblems()); err == nil && n > 0 {
			err = fmt.Errorf("group %s: %s", name, cli.Plural(n, "problem"))
		}
		return err
	}))
	return cmd
}

// withMCID returns the group with that MC_ID; nil: there is none.
func withMCID(l *mcrdmav1.ListGroupsResponse, id *mcrdmav1.GroupID) *mcrdmav1.GroupInfo {
	for _, g := range l.GetGroups() {
		if f := g.GetFormation(); f.GetGroup().GetSource() == id.GetSource() && uint64(f.GetMcId()) == id.GetNumber() && f.GetMcId() != 0 {
			return g
		}
	}
	return nil
}

// showMembership shows a group in which this host receives.
func showMembership(q question, l *mcrdmav1.ListGroupsResponse, name string, id *mcrdmav1.GroupID) error {
	var m *mcrdmav1.MembershipInfo // in the latest formation
	for _, x := range l.GetMemberships() {
		if k := x.GetGroup(); proto.Equal(k, id) || k.GetSource() == id.GetSource() && uint64(x.GetMcId()) == id.GetNumber() && x.GetMcId() != 0 {
			m = x
		}
	}
	if m == nil {
		return fmt.Errorf("there is no group %s here; \"cmd-daemon groups\" and \"cmd-daemon members\" list those there are", name)
	}
	return q.show(m, func() string { return membershipText(m, cli.Now(q)) })
}

func membershipText(m *mcrdmav1.MembershipInfo, now time.Time) string {
	text := fmt.Sprintf("group %s, %sservice %s\n  sender    %s\n  program   %s, pid %d, user %s, since %s\n  path      %s, formation %d\n  view      %s\n",
		groupName(m.GetGroup()), mcID(m.GetMcId()), m.GetService(), m.GetSender(), m.GetProgram(), m.GetPid(), userName(m.GetUid()), cli.Since(m.GetSince(), now),
		pathName(m.GetPath()), m.GetFormation(), cmp.Or(viewNumber(m.GetView()), "none is recorded"))
	var rows [][]any
	for _, x := range m.GetMembers() {
		rows = append(rows, []any{x.GetAddress(), x.GetHost()})
	}
	return text + cli.Tables(cli.Table{Header: []string{"receiver", "host"}, Rows: rows})
}

// viewNumber returns the number of a view as text; "": there is none.
func viewNumber(n uint32) string {
	if n == 0 {
		return ""
	}
	return strconv.FormatUint(uint64(n), 10)
}

func viewHosts(m *mcrdmav1.MembershipInfo) string {
	var hosts []string
	for _, x := range m.GetMembers() {
		hosts = append(hosts, cmp.Or(x.GetHost(), x.GetAddress()))
	}
	return strings.Join(hosts, " ")
}

func groupText(g *mcrdmav1.GroupInfo, now time.Time) string {
	f := g.GetFormation()
	var b strings.Builder
	fmt.Fprintf(&b, "group %s, %sservice %s\n", groupName(f.GetGroup()), mcID(f.GetMcId()), g.GetService())
	line := func(what, format string, args ...any) {
		fmt.Fprintf(&b, "  %-9s %s\n", what, fmt.Sprintf(format, args...))
	}
	line("program", "%s, pid %d, user %s, since %s", g.GetProgram(), g.GetPid(), userName(g.GetUid()), cli.Since(g.GetCreated(), now))
	line("mode", "%s, at least %d copies", modeName(g.GetMode()), g.GetMinSize())
	line("path", "%s, formation %d", pathName(f.GetPath()), f.GetFormation())
	for _, why := range f.GetWhy() {
		line("why", "%s", why)
	}
	if c := f.GetConnection(); f.GetPath() == mcrdmav1.Path_PATH_SWITCH && c != nil {
		line("peer", "%s, MC_ID %s, PSN 0x%06x, MTU %d", c.GetAddress(), cli.QPN(f.GetMcId()), c.GetPsn(), c.GetMtu())
	}
	if r := f.GetRelay(); f.GetPath() == mcrdmav1.Path_PATH_RELAY && r != nil {
		line("relay", "%s over %s, blocks of %d bytes", r.GetAlgorithm(), r.GetTransport(), r.GetBlock())
	}
	for _, p := range g.GetProblems() {
		line("problem", "%s", p)
	}
	if tree := f.GetTree(); len(tree) > 0 {
		fmt.Fprintf(&b, "\n  %s\n", strings.Join(tree, "\n  "))
		fmt.Fprintf(&b, "  (as the first switch has it; switchctl group show %s follows the copies through the others)\n", groupName(f.GetGroup()))
	}
	return b.String() + cli.Tables(cli.Table{Header: []string{"receiver", "host", "qpn", "state", "since", "reason"}, Rows: memberRows(g, now)},
		cli.Table{Header: []string{"phase", "us"}, Rows: phaseRows(f.GetPhases())})
}

// memberRows returns a row for each present and former receiver.
func memberRows(g *mcrdmav1.GroupInfo, now time.Time) (rows [][]any) {
	states := map[string]*mcrdmav1.MemberState{}
	for _, s := range g.GetStates() {
		states[s.GetAddress()] = s
	}
	row := func(address, host, qpn string) {
		s := states[address]
		delete(states, address)
		rows = append(rows, []any{address, cmp.Or(host, s.GetHost()), qpn, s.GetState(), cli.Since(s.GetSince(), now), s.GetReason()})
	}
	for _, m := range g.GetFormation().GetMembers() {
		row(m.GetAddress(), m.GetHost(), cli.QPN(m.GetQpn()))
	}
	for _, s := range g.GetStates() { // those that are no longer members, in order
		if states[s.GetAddress()] != nil {
			row(s.GetAddress(), s.GetHost(), "")
		}
	}
	return rows
}

func phaseRows(phases []*mcrdmav1.PhaseTime) (rows [][]any) {
	for _, s := range phases {
		rows = append(rows, []any{s.GetPhase(), s.GetTook().AsDuration().Microseconds()})
	}
	return rows
}

func groupName(id *mcrdmav1.GroupID) string {
	return fmt.Sprintf("%s/%d", id.GetSource(), id.GetNumber())
}

// mcID returns a group's MC_ID as part of a line; "": it is not known.
func mcID(n uint32) string {
	if n == 0 {
		return ""
	}
	return "MC_ID " + cli.QPN(n) + ", "
}

var (
	pathNames = map[mcrdmav1.Path]string{mcrdmav1.Path_PATH_SWITCH: "switch", mcrdmav1.Path_PATH_RELAY: "relay"}
	modeNames = map[mcrdmav1.Mode]string{mcrdmav1.Mode_MODE_REQUIRE: "require", mcrdmav1.Mode_MODE_OFF: "off"}
)

func pathName(p mcrdmav1.Path) string { return cmp.Or(pathNames[p], "none") }

func modeName(m mcrdmav1.Mode) string { return cmp.Or(modeNames[m], "auto") }

// completeGroups completes this host's groups.
func completeGroups(flags *daemonFlags) cobra.CompletionFunc {
	return cli.CompleteArg(func(ctx context.Context) (names []string, err error) {
		d, err := flags.dial()
		if err != nil {
			return nil, err
		}
		defer d.Close()
		l, err := d.ListGroups(ctx, &mcrdmav1.ListGroupsRequest{})
		if err != nil {
			return nil, err
		}
		for _, g := range l.GetGroups() {
			names = append(names, fmt.Sprintf("%s\t%s, %s", groupName(g.GetFormation().GetGroup()), g.GetService(), cli.Plural(len(g.GetFormation().GetMembers()), "receiver")))
		}
		for _, m := range l.GetMemberships() {
			names = append(names, fmt.Sprintf("%s\t%s, from %s", groupName(m.GetGroup()), m.GetService(), m.GetSender()))
		}
		return names, nil
	})
}
