package doctor

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/bmv2"
	"github.com/mcrdma/mcrdma/cmd/switchctl/internal/agents"
)

var noon = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)

func before(d time.Duration) *timestamppb.Timestamp { return timestamppb.New(noon.Add(-d)) }

// well returns an agent without findings.
func well(name string) Agent {
	return Agent{Address: name + ":9560", Status: &mcrdmav1.GetStatusResponse{
		Name: name, Version: "v1", Started: before(time.Hour), Settled: true, Routing: "bgp",
		P4Runtime: &mcrdmav1.P4RuntimeStatus{Target: "here", Connected: true, Primary: true, Pushes: 1},
		Ports:     []*mcrdmav1.PortStatus{{Port: 1, State: "-"}, {Port: 9, Neighbor: "core", State: "up"}, {Port: 10, Neighbor: "edge", State: "up"}},
		Peers:     []*mcrdmav1.PeerStatus{{Name: "core"}, {Name: "torB", Agent: "b:1", Reachable: true}, {Name: "torC", Agent: "c:1"}},
		Usage:     []*mcrdmav1.Usage{{Resource: "groups", Used: 79, Size: 100}, {Resource: "pre", Used: 500}, {Resource: "none"}},
	}}
}

// TestAgentRules: one fault at a time; a finding begins with the severity and the subject, and says
// why and what to do.
func TestAgentRules(t *testing.T) {
	key, plain := &mcrdmav1.GroupKey{Source: "10.1.0.1", McId: 5, Number: 17}, &mcrdmav1.GroupKey{Source: "10.1.0.1", McId: 5}
	for _, c := range []struct {
		name string
		edit func(*Agent)
		want string // of the findings, with | between parts and findings in lines; empty: none
	}{
		{"all is well", func(*Agent) {}, ""},
		{"no answer", func(a *Agent) { a.Err, a.Status = errors.New("refused"), nil },
			"error: a:9560|its agent does not answer|refused|start the agent"},
		{"its certificate has ended", func(a *Agent) { a.Err, a.Status = errors.New(agents.Untrusted+"expired"), nil },
			"error: a:9560|its agent cannot be asked|expired|compare the certificates"},
		{"no answer of a peer", func(a *Agent) { a.Err, a.Status, a.From, a.Expected = errors.New("refused"), nil, "torX", "a" },
			"error: a|does not answer; torX says that it is at a:9560|refused|"},
		{"partial", func(a *Agent) { a.Failed = []error{errors.New("too much")} }, "warning: a|not everything could be asked|too much|"},
		{"another agent", func(a *Agent) { a.Expected = "torX" }, "error: torX|at a:9560 is that of a|command line|--agent"},
		{"another agent, by a peer", func(a *Agent) { a.Expected, a.From = "torX", "torY" }, "error: torX|is that of a|from torY|the configuration of torY"},
		{"not connected", func(a *Agent) { a.Status.P4Runtime.Connected, a.Status.P4Runtime.Error = false, "no route to host" },
			"error: a|no connection to the switch by P4Runtime, at here|no route to host|start the switch"},
		{"not primary", func(a *Agent) { a.Status.P4Runtime.Primary = false }, "error: a|not the primary|higher election ID|election_id"},
		{"no P4Runtime status", func(a *Agent) { a.Status.P4Runtime = nil }, "error: a|no connection|"},
		{"fast path", func(a *Agent) { a.Status.P4Runtime.FastPath = "xdp at 4 ports: all" }, ""},
		{"different MTUs", func(a *Agent) {
			a.Status.P4Runtime.FastPath = "xdp at 1 of 2 ports (port 3, interface c, is down) (port 1, interface a, has an MTU of 500, and port 2, interface b, 1500: longer frames are dropped, uncounted): all"
		}, "warning: a|port 1, interface a, has an MTU of 500, and port 2, interface b, 1500|nothing counts them|same MTU"},
		{"some in the kernel", func(a *Agent) { a.Status.P4Runtime.FastPath = "xdp at 4 ports: unicast; the switch itself: the others" }, "note: a|some packets itself|the others|icrc"},
		{"no fast path", func(a *Agent) { a.Status.P4Runtime.FastPath = "off: 2 rules" }, "warning: a|processes all packets itself|2 rules|ethtool"},
		{"pushed twice", func(a *Agent) { a.Status.P4Runtime.Pushes = 2 }, ""},
		{"pushed by turns", func(a *Agent) { a.Status.P4Runtime.Pushes = 3 }, "warning: a|pushed 3 times|another pipeline|one version"},
		{"restarted often", func(a *Agent) { a.Status.P4Runtime.Pushes, a.Status.P4Runtime.Reconnects = 4, 3 },
			"warning: a|pushed 4 times|restarted: the connection was lost 3 times|log"},
		{"link down", func(a *Agent) { a.Status.Ports[1].State, a.Status.Ports[1].Reason = "down", "no hello" },
			"error: a|port 9 to core is down|no hello|cable"},
		{"one of two links down", func(a *Agent) { a.Status.Ports[1].State, a.Status.Ports[2].Neighbor = "down", "core" },
			"warning: a|port 9 to core is down|other ports to core are up|"},
		{"host port down", func(a *Agent) { a.Status.Ports[0].State = "down" }, "error: a|port 1 is down|"},
		{"wrong cabling", func(a *Agent) {
			a.Status.Ports[1].State, a.Status.Ports[1].Reason, a.Status.Ports[2].Neighbor = "wrong", "it is torZ", "core"
		},
			"error: a|port 9 to core leads somewhere else|it is torZ|plug"},
		{"coming up", func(a *Agent) { a.Status.Ports[1].State, a.Status.Ports[1].Since = "init", before(9*time.Second) }, ""},
		{"stuck", func(a *Agent) { a.Status.Ports[1].State, a.Status.Ports[1].Since = "init", before(10*time.Second) },
			"error: a|port 9 to core does not come up|one direction"},
		{"BGP", func(a *Agent) {
			a.Status.Bgp = []*mcrdmav1.BgpNeighbor{{Switch: "x", Address: "192.0.2.9", Asn: 7, State: "Established", Received: 1, Since: before(time.Hour)},
				{Switch: "cut", State: "no link"}, {Switch: "y", State: "Established", Since: before(time.Second)}}
		}, ""},
		{"BGP not yet established", func(a *Agent) {
			a.Status.Bgp = []*mcrdmav1.BgpNeighbor{{Switch: "new", State: "OpenSent", Since: before(9 * time.Second)}}
		}, "note: a|not established yet, or not any longer: OpenSent|less than 10s|"},
		{"BGP not established", func(a *Agent) {
			a.Status.Bgp = []*mcrdmav1.BgpNeighbor{{Switch: "x", Address: "192.0.2.9", Asn: 7, State: "Active"}}
		}, "error: a|its BGP session with x, AS 7 at 192.0.2.9, is not established: Active|no routes|AS number"},
		{"BGP neighbor that restarts", func(a *Agent) {
			a.Status.Bgp = []*mcrdmav1.BgpNeighbor{{Switch: "x", State: "Active", Received: 3, Accepted: 2}}
		}, "error: a|its BGP session with x, AS 0 at , is not established: Active|its last routes stay|AS number"},
		{"BGP without prefixes", func(a *Agent) {
			a.Status.Bgp = []*mcrdmav1.BgpNeighbor{{Switch: "x", State: "Established", Since: before(time.Hour)}}
		}, "warning: a|is established, and no prefix has come|other ways|announces"},
		{"peer unreachable", func(a *Agent) { a.Status.Peers[1].Reachable, a.Status.Peers[1].Error = false, "refused" },
			"error: a|does not reach that of torB, at b:1|refused|CA"},
		{"peer unreachable with branches", func(a *Agent) {
			a.Status.Peers[1] = &mcrdmav1.PeerStatus{Name: "torB", Agent: "b:1", Error: "refused", Branches: 2}
		}, "error: a|does not reach|refused; it has 2 branches there at stake|"},
		{"nearly full", func(a *Agent) { a.Status.Usage[0].Used = 80 }, "warning: a|groups: 80 of 100 are used|may not fit|"},
		{"full", func(a *Agent) { a.Status.Usage[0].Used = 100 }, "error: a|groups: 100 of 100|refused|"},
		{"tiny", func(a *Agent) { a.Status.Usage[0].Used, a.Status.Usage[0].Size = 0, 1 }, ""},
		{"huge", func(a *Agent) { a.Status.Usage[0].Used, a.Status.Usage[0].Size = 1<<63, 1<<64-1 }, ""},
		{"unsettled without the switch", func(a *Agent) {
			a.Status.Settled, a.Status.P4Runtime = false, &mcrdmav1.P4RuntimeStatus{Target: "here", Error: "no route to host"}
		}, "error: a|no connection to the switch by P4Runtime, at here|no route to host|start the switch"},
		{"unsettled beside another controller", func(a *Agent) { a.Status.Settled, a.Status.P4Runtime.Primary = false, false },
			"error: a|not the primary controller|higher election ID|stop the other"},
		{"unsettled", func(a *Agent) { a.Status.Settled = false }, "error: a|routes are not settled|(bgp)|BGP sessions"},
		{"unsettled kernel", func(a *Agent) { a.Status.Settled, a.Status.Routing = false, "kernel" }, "error: a|not settled|(kernel)|routing daemon"},
		{"just started", func(a *Agent) { a.Status.Settled, a.Status.Started = false, before(59*time.Second) }, "note: a|not settled|a moment ago|"},
		{"a switch's port", func(a *Agent) {
			a.Status.P4Runtime.Problems = []*mcrdmav1.SwitchProblem{{What: "port 3, s3, receives no more: gone", Remedy: "restart it"}}
		},
			"error: a|port 3, s3, receives no more: gone||restart it"},
		{"a switch's port, by an earlier agent", func(a *Agent) { a.Status.Problems = []string{"the switch: port 3 is down; set it up"} },
			"warning: a|the agent reports: the switch: port 3 is down; set it up|"},
		{"reports", func(a *Agent) { a.Status.Problems = []string{"odd"} }, "warning: a|the agent reports: odd|"},
		{"no state is written", func(a *Agent) {
			a.Status.Problems = []string{"a.db: no space", "odd"}
			a.Status.ProblemKinds = []mcrdmav1.ProblemKind{mcrdmav1.ProblemKind_PROBLEM_KIND_STATE_FILE}
		}, "error: a|the agent reports: a.db: no space|\nwarning: a|the agent reports: odd|"},
		{"group", func(a *Agent) {
			a.Groups = []*mcrdmav1.GroupStatus{{Group: &mcrdmav1.Group{Key: key}, Problems: []string{"torB is away"}}}
			a.Steps = []*mcrdmav1.Step{{Group: plain, Destination: "10.2.0.1", Root: true, Problems: []string{"torB is away", "no route"}}}
		}, "error: a|group 10.1.0.1/17 has a problem|torB is away|switchctl group show 10.1.0.1/17\nerror: a|its step of group 10.1.0.1/17 for 10.2.0.1|no route|"},
		{"drops", func(a *Agent) {
			a.Counters = []*mcrdmav1.Counter{
				{Name: "ingress.groups", Cell: "icrc", Packets: 5}, {Name: "ingress.drops", Cell: "ttl"}, {Name: "egress.drops", Cell: "absorbed", Packets: 99},
				{Name: "ingress.drops", Cell: "unknown_mac", Packets: 1}, {Name: "egress.drops", Cell: "icrc", Packets: 2}, {Name: "egress.drops", Cell: "new", Packets: 3}}
		}, "warning: a|2 packets dropped since the switch started (egress.drops, icrc)|wrong ICRC|\nnote: a|1 packet dropped|(ingress.drops, unknown_mac)|\nnote: a|3 packets|(egress.drops, new)|"},
	} {
		a := well("a")
		c.edit(&a)
		expect(t, c.name, Facts{Now: noon, Complete: true, Agents: []Agent{a}}, c.want)
	}
}

// expect compares findings with expected parts, in order.
func expect(t *testing.T, name string, f Facts, want string) {
	t.Helper()
	var got []string
	findings := Diagnose(f)
	for _, x := range findings {
		got = append(got, fmt.Sprintf("%v: %s|%s|%s|%s", x.Severity, x.Subject, x.What, x.Why, x.Do))
	}
	lines := strings.Split(want, "\n")
	if want == "" {
		lines = nil
	}
	if len(lines) != len(got) {
		t.Errorf("%s: %d findings, want %d: %s", name, len(got), len(lines), strings.Join(got, "\n"))
		return
	}
	for i, line := range lines {
		rest := got[i]
		for part := range strings.SplitSeq(line, "|") {
			_, after, found := strings.Cut(rest, part)
			if !found {
				t.Errorf("%s: %q lacks %q", name, got[i], part)
				break
			}
			rest = after
		}
	}
}

func TestFabricRules(t *testing.T) {
	pair := func(edit func(a, b *Agent)) Facts {
		a, b := well("a"), well("b")
		edit(&a, &b)
		return Facts{Now: noon, Complete: true, Agents: []Agent{a, b}}
	}
	expect(t, "all is well", pair(func(*Agent, *Agent) {}), "")
	expect(t, "ICRC", pair(func(a, _ *Agent) { a.Status.IcrcOff = true }),
		"error: fabric|treat the ICRC differently|nic-check-off: a; recompute: b|same")
	expect(t, "versions", pair(func(_, b *Agent) { b.Status.Version = "v2" }), "warning: fabric|different versions|v1: a; v2: b|")
	expect(t, "one of them is away", pair(func(_, b *Agent) { b.Status, b.Err = nil, errors.New("refused") }), "error: b:9560|")
	expect(t, "a peer that is away is said once", pair(func(a, b *Agent) {
		a.Status.Peers = append(a.Status.Peers, &mcrdmav1.PeerStatus{Name: "b", Agent: "b:9560", Error: "refused", Branches: 2})
		b.Status, b.Err, b.From = nil, errors.New("refused"), "a"
	}), "error: b:9560|a says that it is at b:9560|refused; a has 2 branches there at stake|start the agent")
	expect(t, "a peer that only the other does not reach", pair(func(a, _ *Agent) {
		a.Status.Peers = append(a.Status.Peers, &mcrdmav1.PeerStatus{Name: "b", Agent: "b:9560", Error: "refused"})
	}), "error: a|does not reach that of b, at b:9560|refused|")
	expect(t, "one name", pair(func(a, b *Agent) { b.Status.Name, a.Status.Started = "a", before(time.Minute) }),
		"error: a|several agents call themselves so: those at a:9560 and b:9560|told apart|")
	static := func(edit func(a *Agent)) Facts {
		return pair(func(a, b *Agent) {
			a.Status.Routing, b.Status.Routing = "static", "static"
			hop := []*mcrdmav1.HopStatus{{Port: 9}}
			a.Routes = []*mcrdmav1.RouteStatus{{Prefix: "10.1.0.0/24", Note: "hosts"}, {Prefix: "10.2.0.0/16", Hops: hop}}
			b.Routes = []*mcrdmav1.RouteStatus{{Prefix: "10.2.0.0/24", Note: "hosts"}, {Prefix: "10.1.0.0/24", Hops: hop}}
			edit(a)
		})
	}
	expect(t, "routes to each other", static(func(*Agent) {}), "")
	missing := "error: a|no route to 10.2.0.0/24, the hosts of b|topology file|the same topology file"
	expect(t, "another topology file", static(func(a *Agent) { a.Routes[1].Prefix = "10.9.0.0/24" }), missing)
	expect(t, "an unreachable prefix", static(func(a *Agent) { a.Routes[1].Hops = nil }), missing)
	expect(t, "more exact routes", static(func(a *Agent) { a.Routes[1].Prefix = "10.2.0.0/25" }), missing)
	expect(t, "routes by BGP", static(func(a *Agent) { a.Routes[1].Prefix, a.Status.Routing = "10.9.0.0/24", "bgp" }), "")
	f := pair(func(*Agent, *Agent) {})
	f.Complete = false
	expect(t, "too many", f, "warning: fabric|only 2 agents were looked at|")
}

func TestInterfaceRules(t *testing.T) {
	all := []string{"rx", "tx", "sg", "tso", "gso", "gro"}
	port := Interface{Name: "s1-eth1", Up: true, Carrier: true, MTU: 1500, Driver: "veth", Offloads: []string{"rx"}}
	with := func(edit func(*Interface)) Facts {
		i := port
		i.Offloads = slices.Clone(port.Offloads)
		edit(&i)
		return Facts{Interfaces: []Interface{i}}
	}
	for _, c := range []struct {
		name string
		edit func(*Interface)
		want string
	}{
		{"all is well", func(*Interface) {}, ""},
		{"not there", func(i *Interface) { *i = Interface{Name: "x", Err: errors.New("no such network interface")} }, "error: interface x|cannot be looked at|no such|namespace"},
		{"down", func(i *Interface) { i.Up, i.Carrier = false, false }, "error: interface s1-eth1|it is down||ip link set s1-eth1 up"},
		{"no carrier", func(i *Interface) { i.Carrier = false }, "error: interface s1-eth1|no carrier|other end|"},
		{"MTU", func(i *Interface) { i.MTU = 1099 }, "error: interface s1-eth1|MTU of 1099 bytes is too small|1100|ip link set s1-eth1 mtu 1500"},
		{"least MTU", func(i *Interface) { i.MTU = 1100 }, ""},
		{"a port's offloads", func(i *Interface) { i.Offloads = all },
			"error: interface s1-eth1|offloads are on: gro|joined|ethtool -K s1-eth1 gro off"},
		{"a host's offloads", func(i *Interface) { i.Offloads, i.Host = all, true },
			"error: interface s1-eth1|offloads are on: tx, sg, tso, gso|64 KB|ethtool -K s1-eth1 tx off sg off tso off gso off"},
		{"a NIC of a host", func(i *Interface) { i.Offloads, i.Host, i.Driver = all, true, "mlx5_core" }, ""},
		{"a NIC as port", func(i *Interface) { i.Offloads, i.Driver = []string{"tso", "lro"}, "mlx5_core" }, "error: interface s1-eth1|offloads are on: lro|"},
		{"unknown offloads", func(i *Interface) { i.OffloadErr = errors.New("not permitted") }, "note: interface s1-eth1|cannot be read|not permitted|ethtool -k s1-eth1"},
		{"IPv6", func(i *Interface) { i.IPv6, i.Name = true, "eth0.5" }, "note: interface eth0.5|IPv6|drops and counts|net.ipv6.conf.eth0/5.disable_ipv6=1"},
		{"IPv6 of a host", func(i *Interface) { i.IPv6, i.Host = true, true }, ""},
	} {
		expect(t, c.name, with(c.edit), c.want)
	}
	other := port
	other.Name, other.MTU = "s1-eth2", 4200
	expect(t, "MTUs differ", Facts{Interfaces: []Interface{port, other}},
		"warning: interface s1-eth1|MTU is 1500 bytes, and that of s1-eth2 4200|dropped|ip link set s1-eth1 mtu 4200")
	other.Host = true
	expect(t, "a host's MTU", Facts{Interfaces: []Interface{port, other}}, "")
}

// TestDropReasons: each drop reason of the switch is explained.
func TestDropReasons(t *testing.T) {
	for _, r := range bmv2.DropReasons {
		x, ok := DropReasons[r]
		if !ok || x.Meaning == "" || !x.Usual && x.Do == "" || x.Usual && x.Suspicious {
			t.Errorf("%s: %+v", r, x)
		}
	}
	for r := range DropReasons {
		if !slices.Contains(bmv2.DropReasons, r) {
			t.Errorf("%s is no reason", r)
		}
	}
}
