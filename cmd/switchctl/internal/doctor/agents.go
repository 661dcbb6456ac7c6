package doctor

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/cmd/internal/cli"
	"github.com/mcrdma/mcrdma/cmd/internal/findings"
	"github.com/mcrdma/mcrdma/cmd/switchctl/internal/agents"
	"github.com/mcrdma/mcrdma/internal/grouptree"
)

const (
	// patience is how long after its start an agent may still be learning routes.
	patience = time.Minute
	// settling is how long a link may take to come up.
	settling = 10 * time.Second
	// nearlyFull is the use of a table that causes a warning, in percent.
	nearlyFull = 80
	// manyPushes: a pipeline is pushed once when the switch is new, and perhaps again after a
	// restart of the switch.
	manyPushes = 3
)

// name returns an agent's name in findings.
func (a *Agent) name() string { return cmp.Or(a.Status.GetName(), a.Expected, a.Address) }

// unreachable reports an agent that this command cannot reach, with what depends on it for agents
// that cannot reach it either; peers does not report those.
func (d *diagnosis) unreachable(a *Agent) {
	what, why := "its agent does not answer", a.Err.Error()
	do := "start the agent, or correct its address where it is configured"
	if strings.Contains(why, agents.Untrusted) {
		what, do = "its agent cannot be asked", "compare the certificates of both, their CA, and the clocks"
	}
	if a.From != "" {
		what += "; " + a.From + " says that it is at " + a.Address
	}
	for _, x := range d.Agents {
		for _, p := range x.Status.GetPeers() {
			if p.GetAgent() == a.Address && p.GetBranches() > 0 && !p.GetReachable() {
				why = joined(why, x.name()+" has "+atStake(p))
			}
		}
	}
	d.Add(findings.Error, a.name(), what, why, do+"; until then nothing on this switch is adapted to changes")
}

func (d *diagnosis) failed(a *Agent) {
	for _, err := range a.Failed {
		d.Add(findings.Warning, a.name(), "not everything could be asked", err.Error(), "")
	}
}

// whose: an address belongs to the expected switch.
func (d *diagnosis) whose(a *Agent) {
	if a.Expected == "" || a.Expected == a.Status.GetName() {
		return
	}
	by := "the command line"
	where := "--agent"
	if a.From != "" {
		by, where = a.From, "the configuration of "+a.From
	}
	d.Add(findings.Error, a.Expected, fmt.Sprintf("its agent is not where it should be: at %s is that of %s", a.Address, a.Status.GetName()),
		"the address comes from "+by, "correct the address in "+where+", or the name in the agent's configuration")
}

func (d *diagnosis) p4runtime(a *Agent) {
	p := a.Status.GetP4Runtime()
	switch {
	case !p.GetConnected():
		d.Add(findings.Error, a.name(), "the agent has no connection to the switch by P4Runtime, at "+p.GetTarget(), p.GetError(),
			"start the switch, or restart it if it hangs, or correct p4runtime.target or p4runtime.device_id; what is on the switch stays, and goes on forwarding")
	case !p.GetPrimary():
		d.Add(findings.Error, a.name(), "the agent is not the primary controller of the switch, so it may not change anything",
			"another controller is connected to "+p.GetTarget()+" with a higher election ID",
			"stop the other controller, or give this agent a higher p4runtime.election_id")
	}
}

func (d *diagnosis) pipeline(a *Agent) {
	p := a.Status.GetP4Runtime()
	if p.GetPushes() < manyPushes {
		return
	}
	why, do := "something else loads another pipeline in between: a second controller, or an agent of another version",
		"see that only one agent controls the switch, and that all are of one version"
	if p.GetReconnects()+1 >= p.GetPushes() {
		why, do = fmt.Sprintf("the switch was restarted: the connection was lost %d times", p.GetReconnects()),
			"look into the switch's log; each push interrupts forwarding"
	}
	d.Add(findings.Warning, a.name(), fmt.Sprintf("the pipeline was pushed %d times since the agent started", p.GetPushes()), why, do)
}

// fastPath: a switch should process packets in the kernel, and does not.
func (d *diagnosis) fastPath(a *Agent) {
	said := a.Status.GetP4Runtime().GetFastPath()
	why, off := strings.CutPrefix(said, "off: ")
	if !off {
		if what, _, narrow := strings.Cut(said, ": longer frames are dropped, uncounted"); narrow {
			d.Add(findings.Warning, a.name(), what[strings.LastIndex(what, "(")+1:],
				"the kernel drops longer frames at the port with the smaller one, and nothing counts them", "give all ports the same MTU")
		}
		if _, part, some := strings.Cut(said, "; the switch itself: "); some {
			d.Add(findings.Note, a.name(), "the switch processes some packets itself that the kernel could process", part,
				"have the agent's icrc auto or neutral, and hosts grant regions at the group's address, as the library does; see docs/dataplane.md")
		}
		return
	}
	d.Add(findings.Warning, a.name(), "the switch processes all packets itself, though it is to have the kernel do it", why,
		"take away what is in the way, or start the switch with --fastpath=off; at hosts' ends of veth pairs it takes \"ethtool -K INTERFACE gro on tx off\"")
}

func (d *diagnosis) ports(a *Agent) {
	up := map[string]bool{}
	for _, p := range a.Status.GetPorts() {
		if p.GetState() == "up" && p.GetNeighbor() != "" {
			up[p.GetNeighbor()] = true
		}
	}
	for _, p := range a.Status.GetPorts() {
		where := fmt.Sprintf("port %d", p.GetPort())
		if p.GetNeighbor() != "" {
			where += " to " + p.GetNeighbor()
		}
		severity := findings.Error
		why := p.GetReason()
		if up[p.GetNeighbor()] {
			severity, why = findings.Warning, joined(why, "other ports to "+p.GetNeighbor()+" are up and carry its traffic")
		}
		switch p.GetState() {
		case "up", "-", "", "unknown": // without the switch, which is reported elsewhere
		case "wrong":
			d.Add(findings.Error, a.name(), where+" leads somewhere else", p.GetReason(), "plug the cable where it belongs, or correct the port's \"to\" in the configuration")
		case "init":
			if p.GetSince() == nil || d.Now.Sub(p.GetSince().AsTime()) >= settling {
				d.Add(severity, a.name(), where+" does not come up: hellos arrive, but the other side does not see ours", why,
					"look for a link that works in one direction only, and for an agent on the other side that does not expect this one")
			}
		default:
			d.Add(severity, a.name(), where+" is "+p.GetState(), why, "check the cable, the interface on both sides, and whether the agent of the other side runs")
		}
	}
}

// bgp checks the sessions over working links. Sessions without a link are reported with the links.
func (d *diagnosis) bgp(a *Agent) {
	for _, n := range a.Status.GetBgp() {
		who := fmt.Sprintf("its BGP session with %s, AS %d at %s,", n.GetSwitch(), n.GetAsn(), n.GetAddress())
		switch {
		case n.GetState() == "Established" && n.GetReceived() == 0 && !d.starting(a, n):
			d.Add(findings.Warning, a.name(), who+" is established, and no prefix has come", "packets to what is behind it go other ways, or nowhere",
				"see what the neighbor announces, and whether its policy lets it")
		case n.GetState() == "Established" || n.GetState() == "no link":
		case d.starting(a, n):
			d.Add(findings.Note, a.name(), who+" is not established yet, or not any longer: "+n.GetState(), fmt.Sprintf("it has been so for less than %v", settling), "")
		default:
			why := "no routes come from there, and none go there"
			if n.GetReceived() > 0 { // graceful restart
				why = "its last routes stay for the time that it has asked for in case of a restart; no others come from there, and none go there"
			}
			d.Add(findings.Error, a.name(), who+" is not established: "+n.GetState(), why,
				"see that a speaker runs there, that each side has the address and AS number of the other, and that TCP port 179, or the one configured, is open; the log of the agent has what either side refused")
		}
	}
}

// starting reports that a session has not had the time to be established.
func (d *diagnosis) starting(a *Agent, n *mcrdmav1.BgpNeighbor) bool {
	since := a.Status.GetStarted().AsTime()
	if t := n.GetSince(); t != nil {
		since = t.AsTime()
	}
	return d.Now.Sub(since) < settling
}

func (d *diagnosis) peers(a *Agent) {
	for _, p := range a.Status.GetPeers() {
		if p.GetReachable() || p.GetError() == "" { // without an error: it was not needed yet
			continue
		}
		if slices.ContainsFunc(d.Agents, func(x Agent) bool { return x.Err != nil && x.Address == p.GetAgent() }) {
			continue // unreachable has reported it
		}
		why := p.GetError()
		if p.GetBranches() > 0 {
			why = joined(why, "it has "+atStake(p))
		}
		d.Add(findings.Error, a.name(), fmt.Sprintf("its agent does not reach that of %s, at %s", p.GetName(), p.GetAgent()), why,
			"see that the other agent runs, that the network between the two lets TCP pass, and that they trust the same CA")
	}
}

func atStake(p *mcrdmav1.PeerStatus) string {
	return cli.Plural(p.GetBranches(), "branch") + " there at stake, whose leases end"
}

func (d *diagnosis) usage(a *Agent) {
	for _, u := range a.Status.GetUsage() {
		if u.GetSize() == 0 || u.GetUsed() < u.GetSize()/100*nearlyFull+u.GetSize()%100*nearlyFull/100 || u.GetUsed() == 0 {
			continue
		}
		severity, what := findings.Warning, fmt.Sprintf("%s: %d of %d are used", u.GetResource(), u.GetUsed(), u.GetSize())
		why := "the next groups or routes may not fit"
		if u.GetUsed() >= u.GetSize() {
			severity, why = findings.Error, "the next group or route is refused"
		}
		d.Add(severity, a.name(), what, why, "remove groups that are not needed, lower the agent's limits, or compile the pipeline with larger tables")
	}
}

func (d *diagnosis) routing(a *Agent) {
	s := a.Status
	if s.GetSettled() || !s.GetP4Runtime().GetPrimary() { // it settles them at the switch
		return
	}
	severity, why := findings.Error, cmp.Or(s.GetWaitsFor(), "the source of routes ("+s.GetRouting()+") has not delivered all of them")
	if s.GetStarted() != nil && d.Now.Sub(s.GetStarted().AsTime()) < patience {
		severity, why = findings.Note, joined("the agent started a moment ago", s.GetWaitsFor())
	}
	do := map[string]string{
		"bgp":    "see that the BGP sessions are established: addresses, AS numbers, port 179",
		"kernel": "see that the routing daemon runs in the namespace that the agent watches",
		"static": "correct the topology file",
	}[s.GetRouting()]
	d.Add(severity, a.name(), "its routes are not settled", why, do)
}

func (d *diagnosis) reported(a *Agent) {
	for _, p := range a.Status.GetP4Runtime().GetProblems() {
		d.Add(findings.Error, a.name(), p.GetWhat(), "", p.GetRemedy())
	}
	for i, p := range a.Status.GetProblems() {
		severity := findings.Warning
		if mcrdmav1.ProblemOf(a.Status.GetProblemKinds(), i) == mcrdmav1.ProblemKind_PROBLEM_KIND_STATE_FILE { // it takes no groups any more
			severity = findings.Error
		}
		d.Add(severity, a.name(), "the agent reports: "+p, "", "")
	}
}

func (d *diagnosis) groups(a *Agent) {
	const do = "switchctl group show %s says where"
	said := map[string]bool{} // of a group's first switch, twice
	for _, g := range a.Groups {
		key := grouptree.KeyOf(g.GetGroup().GetKey())
		for _, p := range g.GetProblems() {
			d.Add(findings.Error, a.name(), fmt.Sprintf("group %s has a problem", key), p, fmt.Sprintf(do, key))
			said[key+p] = true
		}
	}
	for _, s := range a.Steps {
		if len(s.GetProblems()) == 0 {
			continue
		}
		key := grouptree.KeyOf(d.named(s.GetGroup()))
		for _, p := range s.GetProblems() {
			if s.GetRoot() && said[key+p] {
				continue
			}
			d.Add(findings.Error, a.name(), fmt.Sprintf("its step of group %s for %s has a problem", key, s.GetDestination()), p, fmt.Sprintf(do, key))
		}
	}
}

// named returns a step's group with the number from the switch where it was installed.
func (d *diagnosis) named(k *mcrdmav1.GroupKey) *mcrdmav1.GroupKey {
	for _, a := range d.Agents {
		for _, g := range a.Groups {
			if x := g.GetGroup().GetKey(); x.GetSource() == k.GetSource() && x.GetMcId() == k.GetMcId() {
				return x
			}
		}
	}
	return k
}

// drops reports packets that were dropped since the switch started, unless the drops are normal.
func (d *diagnosis) drops(a *Agent) {
	for _, c := range a.Counters {
		r, known := DropReasons[c.GetCell()]
		if !IsDrop(c.GetName()) || c.GetPackets() == 0 || known && r.Usual {
			continue
		}
		severity := findings.Note
		if r.Suspicious {
			severity = findings.Warning
		}
		d.Add(severity, a.name(), fmt.Sprintf("%s dropped since the switch started (%s, %s)",
			cli.Plural(c.GetPackets(), "packet"), c.GetName(), c.GetCell()), r.Meaning, r.Do)
	}
}

// names: no two agents belong to one switch.
func (d *diagnosis) names() {
	byName := map[string][]string{} // addresses
	for _, a := range d.Agents {
		if n := a.Status.GetName(); a.Err == nil {
			byName[n] = append(byName[n], a.Address)
		}
	}
	for _, n := range slices.Sorted(maps.Keys(byName)) {
		if at := byName[n]; len(at) > 1 {
			d.Add(findings.Error, n, "several agents call themselves so: those at "+strings.Join(at, " and "), "their switches cannot be told apart",
				"give each switch a name of its own in its agent's configuration")
		}
	}
}

// differ finds agents that disagree; it returns the value of each.
func (d *diagnosis) differ(what func(*mcrdmav1.GetStatusResponse) string) (who string, differ bool) {
	by := map[string][]string{}
	for i := range d.Agents {
		if a := &d.Agents[i]; a.Err == nil {
			by[what(a.Status)] = append(by[what(a.Status)], a.name())
		}
	}
	var list []string
	for _, k := range slices.Sorted(maps.Keys(by)) {
		slices.Sort(by[k])
		list = append(list, k+": "+strings.Join(slices.Compact(by[k]), ", "))
	}
	return strings.Join(list, "; "), len(by) > 1
}

func (d *diagnosis) icrc() {
	who, differ := d.differ(func(s *mcrdmav1.GetStatusResponse) string {
		if s.GetIcrcOff() {
			return "nic-check-off"
		}
		return "recompute"
	})
	if differ {
		d.Add(findings.Error, "fabric", "switches treat the ICRC differently", who,
			"set the same \"icrc\" for all agents: a switch that checks drops what one that does not recompute has rewritten")
	}
}

func (d *diagnosis) versions() {
	who, differ := d.differ(func(s *mcrdmav1.GetStatusResponse) string { return s.GetVersion() })
	if differ {
		d.Add(findings.Warning, "fabric", "agents are of different versions", who, "bring all of them to the same version; during an update this is as it should be")
	}
}

func joined(parts ...string) string {
	return strings.Join(slices.DeleteFunc(parts, func(s string) bool { return s == "" }), "; ")
}
