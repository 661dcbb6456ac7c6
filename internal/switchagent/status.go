package switchagent

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/internal/identity"
	"github.com/mcrdma/mcrdma/internal/p4rt"
	"github.com/mcrdma/mcrdma/internal/switchagent/config"
	"github.com/mcrdma/mcrdma/internal/switchagent/groups"
	"github.com/mcrdma/mcrdma/internal/switchagent/links"
	"github.com/mcrdma/mcrdma/internal/switchagent/unicast"
	"github.com/mcrdma/mcrdma/internal/switchspec"
	"github.com/mcrdma/mcrdma/pkg/bifurcation"
	"github.com/mcrdma/mcrdma/pkg/rocev2"
)

// describe returns a group for clients.
func (a *Agent) describe(g groups.View) *mcrdmav1.GroupStatus {
	out := &mcrdmav1.GroupStatus{Switch: string(a.name), Expires: timestamppb.New(g.Expires), Problems: g.Problems, Group: &mcrdmav1.Group{
		Key: &mcrdmav1.GroupKey{Source: g.Source.String(), McId: g.ID, Number: g.Number}, SenderQpn: g.SenderQPN, InitialPsn: g.InitialPSN,
		Address: g.Address.String(), Receivers: receiversProto(g.Receivers)}}
	if g.CNPGap > 0 {
		out.Group.CnpGap = durationpb.New(g.CNPGap)
	}
	return out
}

// describeAll returns the groups of some sources that are installed here, in order of their keys.
func (a *Agent) describeAll(sees func(source netip.Addr) bool) []*mcrdmav1.GroupStatus {
	list := a.table.Views(sees)
	out := make([]*mcrdmav1.GroupStatus, 0, len(list))
	for _, g := range list {
		out = append(out, a.describe(g))
	}
	return out
}

// A groupEvent is an event of a source's group.
type groupEvent struct {
	source netip.Addr
	*mcrdmav1.WatchResponse
}

// tell sends an event of a group to watchers.
func (a *Agent) tell(t mcrdmav1.WatchResponse_Type, g groups.View) {
	a.events.Tell(groupEvent{g.Source, &mcrdmav1.WatchResponse{Type: t, Group: a.describe(g)}})
}

// count adds the switch's counters and, if far is set, the members' last acknowledgements.
func count(ctx context.Context, s *p4rt.Session, g groups.View, out *mcrdmav1.GroupStatus, far bool) error {
	members, err := s.ReadMemberCounters(ctx, g.Slot)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrNotReady, err)
	}
	var acked [switchspec.MaxMembers]p4rt.Acked
	known := false
	if far {
		if acked, known, err = s.ReadAcked(ctx, g.Slot); err != nil {
			return fmt.Errorf("%w: %w", ErrNotReady, err)
		}
	}
	direct, err := s.ReadDirect(ctx, switchspec.Match{Src: g.Source, MCID: g.ID, Dst: g.Address})
	if err != nil {
		return fmt.Errorf("%w: %w", ErrNotReady, err)
	}
	out.Packets, out.Bytes = direct.Packets, direct.Bytes
	for _, r := range g.Receivers { // which may no longer be members
		var c p4rt.MemberCounts
		var psn *uint32
		for _, m := range g.Members {
			if m.Src != r.Addr {
				continue
			}
			c = members[m.Index]
			if g.Base != nil {
				c = c.Since(g.Base[m.Index])
			}
			if known && acked[m.Index].Epoch == g.Epoch {
				psn = &acked[m.Index].PSN
			}
		}
		out.Members = append(out.Members, &mcrdmav1.MemberCounters{Acks: c.ACKs, SequenceNaks: c.SequenceNAKs,
			RnrNaks: c.RNRNAKs, FatalNaks: c.FatalNAKs, Cnps: c.CNPs, AckedPsn: psn})
	}
	behind(out.GetMembers())
	return nil
}

// behind returns each member's distance to the member that has acknowledged most.
func behind(members []*mcrdmav1.MemberCounters) {
	var first *uint32
	for _, m := range members {
		if m.AckedPsn != nil && (first == nil || rocev2.PSN(m.GetAckedPsn()).After(rocev2.PSN(*first))) {
			first = m.AckedPsn
		}
	}
	for _, m := range members {
		if m.AckedPsn != nil {
			n := uint32(rocev2.PSN(*first).Sub(rocev2.PSN(m.GetAckedPsn()))) //nolint:gosec // not negative
			m.BehindPackets = &n
		}
	}
}

type statusServer struct {
	mcrdmav1.UnimplementedSwitchStatusServer
	a *Agent
}

func (s *statusServer) may(ctx context.Context) (identity.Identity, error) {
	return s.a.caller(ctx, identity.Host, identity.Admin, identity.Switch)
}

func (s *statusServer) GetStatus(ctx context.Context, _ *mcrdmav1.GetStatusRequest) (*mcrdmav1.GetStatusResponse, error) {
	id, err := s.may(ctx)
	if err != nil {
		return nil, err
	}
	a := s.a
	d, session := a.driver.current()
	out := &mcrdmav1.GetStatusResponse{Name: a.cfg.Name, Address: a.cfg.Address.String(), Version: a.opts.Version,
		Started: timestamppb.New(a.start.at), Routing: a.cfg.Routing.Source, Settled: a.start.settled.reached(),
		IcrcOff: a.cfg.ICRC == config.ICRCOff, Icrc: a.cfg.ICRC,
		WaitsFor: a.waitsFor(),
		P4Runtime: &mcrdmav1.P4RuntimeStatus{Target: a.cfg.P4Runtime.Target, Connected: d.phase != away, Primary: d.phase == serving || d.phase == reading,
			Pushes: d.pushes, Reconnects: max(d.sessions, 1) - 1, Cleared: d.cleared}}
	if d.err != nil {
		out.P4Runtime.Error = d.err.Error()
	}
	if err := a.store.Failed(); err != nil { // the first problem, so that its kind is the first
		out.Problems, out.ProblemKinds = []string{err.Error()}, []mcrdmav1.ProblemKind{mcrdmav1.ProblemKind_PROBLEM_KIND_STATE_FILE}
	}
	if err := a.files().Accepted(identity.Identity{Role: identity.Switch, Name: a.cfg.Name}); err != nil {
		out.Problems = append(out.Problems, err.Error())
	}
	if id.Is(identity.Host) && len(d.refused) > 0 { // they name others' groups
		out.Problems = append(out.Problems, fmt.Sprintf("the switch refused %d changes", len(d.refused)))
	} else {
		out.Problems = append(out.Problems, d.refused...)
	}
	if session != nil {
		said := session.Said()
		out.P4Runtime.FastPath = said.FastPath
		for _, p := range said.Problems {
			out.P4Runtime.Problems = append(out.P4Runtime.Problems, &mcrdmav1.SwitchProblem{What: p.What, Remedy: p.Remedy})
		}
	}
	links := a.ports.states()
	out.Ports = a.portsStatus(links, d.phase != away)
	out.Problems = append(out.Problems, linkProblems(links)...)
	if out.Bgp, err = a.bgpStatus(ctx); err != nil {
		out.Problems = append(out.Problems, err.Error())
	}
	u := a.table.Usage()
	hops, routes := 0, 0
	a.uni.with(func(t *unicast.Table) {
		out.Problems = append(out.Problems, t.Problems()...)
		for _, h := range t.HostList() {
			out.Hosts = append(out.Hosts, &mcrdmav1.HostStatus{Address: h.Addr.String(), Mac: h.MAC.String(), Port: uint32(h.Port)})
		}
		hops, routes = len(t.HopList()), len(t.RouteList())
	})
	out.Groups, out.Steps = uint64(u.Groups), uint64(u.Steps) //nolint:gosec // counts
	out.Peers = a.peerStatus(u.Held)
	out.Usage = usage(u, routes, hops, len(out.Hosts))
	return out, nil
}

func (a *Agent) bgpStatus(ctx context.Context) (out []*mcrdmav1.BgpNeighbor, err error) {
	if a.routes.neighbors == nil {
		return nil, nil
	}
	list, err := a.routes.neighbors(ctx)
	for _, n := range list {
		x := &mcrdmav1.BgpNeighbor{Switch: n.name, Address: n.Addr.String(), Asn: n.ASN, State: n.State,
			Received: n.Received, Accepted: n.Accepted, Advertised: n.Advertised}
		if n.NextHop.IsValid() && !n.NextHop.IsUnspecified() {
			x.NextHop = n.NextHop.String()
		}
		if !n.Since.IsZero() {
			x.Since = timestamppb.New(n.Since)
		}
		out = append(out, x)
	}
	return out, err
}

// portStatus returns a link's state according to its hellos. Without the switch none arrive, which
// the agent notices later.
func portStatus(l links.State, connected bool) *mcrdmav1.PortStatus {
	p := &mcrdmav1.PortStatus{State: l.State, Reason: l.Reason, Since: timestamppb.New(l.Since)}
	if l.State == links.Up && !connected {
		p.State, p.Reason = "unknown", "the agent has no connection to the switch"
	}
	if l.Peer != (switchspec.MAC{}) {
		p.Mac = l.Peer.String()
	}
	return p
}

// linkProblems returns what is wrong with links that are up.
func linkProblems(all []links.State) (problems []string) {
	for _, l := range all {
		if l.Problem != "" {
			problems = append(problems, fmt.Sprintf("port %d: %s", l.Port, l.Problem))
		}
	}
	return problems
}

func (a *Agent) portsStatus(all []links.State, connected bool) []*mcrdmav1.PortStatus {
	states := map[uint16]*mcrdmav1.PortStatus{}
	for _, l := range all {
		states[l.Port] = portStatus(l, connected)
	}
	var out []*mcrdmav1.PortStatus
	for _, p := range a.cfg.Ports {
		x := states[p.Port]
		if x == nil {
			x = &mcrdmav1.PortStatus{State: "-"}
			if p.PeerMAC != (switchspec.MAC{}) {
				x.Mac = p.PeerMAC.String()
			}
		}
		x.Port, x.Neighbor = uint32(p.Port), p.To
		out = append(out, x)
	}
	return out
}

// peerStatus returns the state of the other switches, which hold so many steps here.
func (a *Agent) peerStatus(held map[bifurcation.Switch]uint64) []*mcrdmav1.PeerStatus {
	var out []*mcrdmav1.PeerStatus
	for _, s := range a.cfg.Switches {
		name := bifurcation.Switch(s.Name)
		x := &mcrdmav1.PeerStatus{Name: s.Name, Agent: s.Agent, Held: held[name]}
		if p := a.peers.all[name]; p != nil {
			tried, branches, err := p.status()
			x.Reachable, x.Branches = tried && err == nil, uint64(branches) //nolint:gosec // a length
			if err != nil {
				x.Error = err.Error()
			}
		}
		out = append(out, x)
	}
	return out
}

// usage returns how full the switch's tables are.
func usage(u groups.Usage, routes, hops, hosts int) []*mcrdmav1.Usage {
	program, _ := p4rt.OwnProgram() // without which there were no client, either
	sizes := program.Sizes()
	table := func(name string, used int) *mcrdmav1.Usage {
		return &mcrdmav1.Usage{Resource: name, Used: uint64(used), Size: uint64(sizes[name])} //nolint:gosec // a length and a size
	}
	return []*mcrdmav1.Usage{
		table("ingress.replication.groups", u.GroupNumbers),
		table("egress.rewrite.replicas", u.Replicas),
		table("egress.rewrite.regions", u.Regions),
		table("egress.ack_merge.merge_groups", u.Slots),
		table("egress.ack_merge.merge_members", u.Members),
		table("ingress.unicast.routes", routes),
		table("ingress.unicast.next_hops", hops),
		table("ingress.unicast.bridge", hosts),
		{Resource: "pre.groups", Used: uint64(u.PRENumbers)}, //nolint:gosec // a count
	}
}

func (s *statusServer) ListRoutes(ctx context.Context, _ *mcrdmav1.ListRoutesRequest) (*mcrdmav1.ListRoutesResponse, error) {
	if _, err := s.may(ctx); err != nil {
		return nil, err
	}
	out := &mcrdmav1.ListRoutesResponse{}
	var ways []unicast.Way
	s.a.uni.do(func(t *unicast.Table) { ways = t.RouteList() })
	for _, w := range ways {
		r := &mcrdmav1.RouteStatus{Prefix: w.Prefix.String(), Note: w.Note}
		for _, h := range w.Hops {
			r.Hops = append(r.Hops, &mcrdmav1.HopStatus{Port: uint32(h.Port), Neighbor: h.To, Mac: h.Dst.String(), NextHop: uint32(h.Number)})
		}
		out.Routes = append(out.Routes, r)
	}
	return out, nil
}

func (s *statusServer) ListSteps(ctx context.Context, req *mcrdmav1.ListStepsRequest) (*mcrdmav1.ListStepsResponse, error) {
	id, err := s.may(ctx)
	if err != nil {
		return nil, err
	}
	a := s.a
	var only *groups.Key
	if req.GetGroup() != nil {
		k, err := groupKeyFrom(req.GetGroup())
		if err != nil {
			return nil, err
		}
		only = &k
	}
	out := &mcrdmav1.ListStepsResponse{Switch: string(a.name)}
	for _, st := range a.table.Steps() {
		if (only == nil || st.Key.Key == *only) && maySee(id, st.Key.Source) {
			out.Steps = append(out.Steps, describeStep(st))
		}
	}
	return out, nil
}

func describeStep(s groups.StepView) *mcrdmav1.Step {
	out := &mcrdmav1.Step{Group: groupKeyProto(s.Key.Key), Destination: s.Key.Dst.String(), Generation: s.Spec.Generation,
		Root: s.Root, Problems: s.Problems, Recomputes: s.Recomputes}
	for _, name := range s.Holders {
		out.Holders = append(out.Holders, string(name))
	}
	for _, r := range s.Spec.Receivers {
		out.Receivers = append(out.Receivers, r.Addr.String())
	}
	ports := map[uint16][]uint32{} // by RID
	for _, g := range s.Installation.Rules.PREGroups {
		for _, r := range g {
			if !slices.Contains(ports[r.RID], r.Port) {
				ports[r.RID] = append(ports[r.RID], r.Port)
			}
		}
	}
	var last *mcrdmav1.Copy
	for _, w := range s.Installation.Rules.Rewrites {
		if last == nil || last.Destination != w.Dst.String() {
			last = &mcrdmav1.Copy{Destination: w.Dst.String(), Last: w.Last, Qpn: w.QPN, Receivers: []string{w.Dst.String()}}
			if !w.Last {
				last.Receivers = nil
			}
			out.Copies = append(out.Copies, last)
		}
		last.Ports = append(last.Ports, ports[w.RID]...)
	}
	for _, c := range out.Copies {
		slices.Sort(c.Ports)
	}
	for k, receivers := range s.Branches {
		for _, c := range out.Copies {
			if c.Last || c.Destination != k.Dst.String() {
				continue
			}
			c.Next = append(c.Next, string(k.Next))
			slices.Sort(c.Next)
			if c.Receivers == nil {
				for _, r := range receivers {
					c.Receivers = append(c.Receivers, r.Addr.String())
				}
			}
		}
	}
	return out
}

func (s *statusServer) GetCounters(ctx context.Context, _ *mcrdmav1.GetCountersRequest) (*mcrdmav1.GetCountersResponse, error) {
	if _, err := s.may(ctx); err != nil {
		return nil, err
	}
	session, err := s.a.driver.there(ctx)
	if err != nil {
		return nil, err
	}
	list, err := session.ReadCounters(ctx)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNotReady, err)
	}
	out := &mcrdmav1.GetCountersResponse{}
	for _, c := range list {
		out.Counters = append(out.Counters, &mcrdmav1.Counter{Name: c.Name, Cell: c.Reason, Packets: c.Packets, Bytes: c.Bytes})
	}
	return out, nil
}

// waitsFor returns the reason why the agent is not ready: what it has been waiting for since its
// start, or that it does not control its switch; "": it is ready, as its gRPC health says, too.
func (a *Agent) waitsFor() string {
	if away := a.driver.away(); away != "" {
		return away
	}
	if !a.start.settled.reached() {
		return cmp.Or(a.settling(), "the source of routes ("+a.cfg.Routing.Source+") has not told what it knows")
	}
	if !a.start.restored.reached() {
		return "the groups of before the agent's start are being made again"
	}
	return ""
}

// caller returns the caller's identity, which must have one of the roles.
func (a *Agent) caller(ctx context.Context, any ...identity.Role) (identity.Identity, error) {
	id, err := identity.FromContext(ctx)
	if err != nil {
		return id, err
	}
	if !id.Is(any...) {
		return id, fmt.Errorf("%w: %v may not call this", ErrDenied, id)
	}
	return id, nil
}

// owner checks that the caller may manage a source's groups.
func (a *Agent) owner(ctx context.Context, source netip.Addr) error {
	id, err := a.caller(ctx, identity.Host, identity.Admin)
	if err != nil {
		return err
	}
	if id.Is(identity.Host) && !id.Owns(source) {
		return fmt.Errorf("%w: %v is not %v, and a host manages groups with itself as the source only: its certificate, or without TLS its configuration, must have its address", ErrDenied, id, source)
	}
	return nil
}

// maySee reports whether a client may see a source's groups.
func maySee(id identity.Identity, source netip.Addr) bool {
	return !id.Is(identity.Host) || id.Owns(source)
}
