package switchagent

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"google.golang.org/grpc/backoff"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/internal/identity"
	"github.com/mcrdma/mcrdma/internal/p4rt"
	"github.com/mcrdma/mcrdma/internal/switchagent/config"
	"github.com/mcrdma/mcrdma/internal/switchagent/links"
	"github.com/mcrdma/mcrdma/internal/switchagent/unicast"
	"github.com/mcrdma/mcrdma/internal/switchspec"
	"github.com/mcrdma/mcrdma/pkg/bifurcation"
	"github.com/mcrdma/mcrdma/pkg/rocev2"
)

var reconnectBackoff = backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 2 * time.Second}

// describe returns a group for clients.
func (a *Agent) describe(g *group) *mcrdmav1.GroupStatus {
	a.mu.Lock()
	defer a.mu.Unlock()
	out := &mcrdmav1.GroupStatus{Switch: string(a.name), Expires: timestamppb.New(g.expires), Group: &mcrdmav1.Group{
		Key: groupKeyProto(g.key()), SenderQpn: g.SenderQPN, InitialPsn: g.InitialPSN, Address: g.Address.String(),
		Receivers: receiversProto(g.Receivers)}}
	out.Group.Key.Number = g.number
	if g.cnpGap > 0 {
		out.Group.CnpGap = durationpb.New(g.cnpGap)
	}
	if g.step != nil {
		out.Problems = slices.Clone(g.step.problems)
	}
	return out
}

// listed returns the groups of some sources that are installed here, in order of their keys.
func (a *Agent) listed(sees func(source netip.Addr) bool) (list []*group) {
	a.mu.Lock()
	for k, g := range a.groups {
		if g.installed() && sees(k.source) {
			list = append(list, g)
		}
	}
	a.mu.Unlock()
	slices.SortFunc(list, func(x, y *group) int { return compareGroups(x.key(), y.key()) })
	return list
}

func (a *Agent) describeAll(sees func(source netip.Addr) bool) []*mcrdmav1.GroupStatus {
	list := a.listed(sees)
	out := make([]*mcrdmav1.GroupStatus, 0, len(list))
	for _, g := range list {
		out = append(out, a.describe(g))
	}
	return out
}

func compareGroups(x, y groupKey) int {
	return cmp.Or(x.source.Compare(y.source), cmp.Compare(x.id, y.id))
}

// count adds the switch's counters and, if far is set, the members' last acknowledgements.
func (a *Agent) count(ctx context.Context, g *group, out *mcrdmav1.GroupStatus, far bool) error {
	s, err := a.driver.there(ctx)
	if err != nil {
		return err
	}
	a.mu.Lock()
	slot, epoch, base, index := g.merging.slot(), epochOf(g.merging.use), g.merging.base, map[string]uint8{}
	for _, m := range g.merging.members {
		index[m.Src.String()] = m.Index
	}
	match := switchspec.Match{Src: g.Source, MCID: g.ID, Dst: g.Address}
	a.mu.Unlock()
	members, err := s.ReadMemberCounters(ctx, slot)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrNotReady, err)
	}
	var acked [switchspec.MaxMembers]p4rt.Acked
	known := false
	if far {
		if acked, known, err = s.ReadAcked(ctx, slot); err != nil {
			return fmt.Errorf("%w: %w", ErrNotReady, err)
		}
	}
	direct, err := s.ReadDirect(ctx, match)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrNotReady, err)
	}
	out.Packets, out.Bytes = direct.Packets, direct.Bytes
	for _, r := range out.GetGroup().GetReceivers() { // which may no longer be current
		var c p4rt.MemberCounts
		var psn *uint32
		if i, ok := index[r.GetAddress()]; ok {
			c = members[i]
			if base != nil {
				c = c.Since(base[i])
			}
			if known && acked[i].Epoch == epoch {
				psn = &acked[i].PSN
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
	d, _ := a.driver.current()
	out := &mcrdmav1.GetStatusResponse{Name: a.cfg.Name, Address: a.cfg.Address.String(), Version: a.opts.Version,
		Started: timestamppb.New(a.start.at), Routing: a.cfg.Routing.Source, Settled: a.start.settled.reached(),
		IcrcOff: a.cfg.ICRC == config.ICRCOff, Icrc: a.cfg.ICRC,
		WaitsFor: a.waitsFor(),
		P4Runtime: &mcrdmav1.P4RuntimeStatus{Target: a.cfg.P4Runtime.Target, Connected: d.phase != away, Primary: d.phase == serving,
			Pushes: d.pushes, Reconnects: d.reconnects, Cleared: d.cleared}}
	if d.err != nil {
		out.P4Runtime.Error = d.err.Error()
	}
	if id.Is(identity.Host) && len(d.refused) > 0 { // they name others' groups
		out.Problems = append(out.Problems, fmt.Sprintf("the switch refused %d changes", len(d.refused)))
	} else {
		out.Problems = append(out.Problems, d.refused...)
	}
	if err := a.store.Failed(); err != nil {
		out.Problems = append(out.Problems, err.Error())
	}
	if d.phase == serving {
		if s, err := a.driver.there(ctx); err == nil {
			var problems []p4rt.Problem
			out.P4Runtime.FastPath, problems, _ = s.Said(ctx) // a switch that is lost meanwhile is seen elsewhere
			for _, p := range problems {
				out.P4Runtime.Problems = append(out.P4Runtime.Problems, &mcrdmav1.SwitchProblem{What: p.What, Remedy: p.Remedy})
			}
		}
	}
	out.Ports = a.portsStatus()
	if out.Bgp, err = a.bgpStatus(ctx); err != nil {
		out.Problems = append(out.Problems, err.Error())
	}
	hops, routes := 0, 0
	a.uni.read(func(t *unicast.Table) {
		out.Problems = append(out.Problems, t.Problems()...)
		for _, h := range t.HostList() {
			out.Hosts = append(out.Hosts, &mcrdmav1.HostStatus{Address: h.Addr.String(), Mac: h.MAC.String(), Port: uint32(h.Port)})
		}
		hops, routes = len(t.HopList()), len(t.RouteList())
	})
	a.mu.Lock()
	defer a.mu.Unlock()
	out.Groups, out.Steps = uint64(len(a.groups)), uint64(len(a.steps))
	out.Peers = a.peerStatus()
	out.Usage = a.usage(routes, hops, len(out.Hosts))
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

func (a *Agent) portsStatus() []*mcrdmav1.PortStatus {
	d, _ := a.driver.current()
	states := map[uint16]*mcrdmav1.PortStatus{}
	for _, l := range a.ports.states() {
		states[l.Port] = portStatus(l, d.phase != away)
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

// peerStatus is called with Agent.mu.
func (a *Agent) peerStatus() []*mcrdmav1.PeerStatus {
	held := map[bifurcation.Switch]uint64{}
	for _, s := range a.steps {
		for from := range s.holders {
			held[from]++
		}
	}
	var out []*mcrdmav1.PeerStatus
	for _, s := range a.cfg.Switches {
		name := bifurcation.Switch(s.Name)
		x := &mcrdmav1.PeerStatus{Name: s.Name, Agent: s.Agent, Held: held[name]}
		if p := a.peers.all[name]; p != nil {
			tried, err, branches := p.status()
			x.Reachable, x.Branches = tried && err == nil, uint64(branches) //nolint:gosec // a length
			if err != nil {
				x.Error = err.Error()
			}
		}
		out = append(out, x)
	}
	return out
}

// usage returns how full the switch's tables are. It is called with Agent.mu.
func (a *Agent) usage(routes, hops, hosts int) []*mcrdmav1.Usage {
	replicas, regions, members := 0, 0, 0
	for _, s := range a.steps {
		replicas += len(s.installation.rules.Rewrites)
		regions += len(s.installation.rules.Translations)
	}
	for _, m := range a.slots.used {
		members += len(m.members)
	}
	program, _ := p4rt.OwnProgram() // without which there were no client, either
	sizes := program.Sizes()
	table := func(name string, used int) *mcrdmav1.Usage {
		return &mcrdmav1.Usage{Resource: name, Used: uint64(used), Size: uint64(sizes[name])} //nolint:gosec // a length and a size
	}
	return []*mcrdmav1.Usage{
		table("ingress.replication.groups", a.groupNumbers.count),
		table("egress.rewrite.replicas", replicas),
		table("egress.rewrite.regions", regions),
		table("egress.ack_merge.merge_groups", len(a.slots.used)),
		table("egress.ack_merge.merge_members", members+len(a.slots.bypasses)),
		table("ingress.unicast.routes", routes),
		table("ingress.unicast.next_hops", hops),
		table("ingress.unicast.bridge", hosts),
		{Resource: "pre.groups", Used: uint64(a.preNumbers.count)}, //nolint:gosec // a count
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
	var only *groupKey
	if req.GetGroup() != nil {
		k, err := groupKeyFrom(req.GetGroup())
		if err != nil {
			return nil, err
		}
		only = &k
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	out := &mcrdmav1.ListStepsResponse{Switch: string(a.name)}
	keys := slices.SortedFunc(maps.Keys(a.steps), func(x, y stepKey) int {
		return cmp.Or(compareGroups(x.groupKey, y.groupKey), x.dst.Compare(y.dst))
	})
	for _, k := range keys {
		if st := a.steps[k]; (only == nil || k.groupKey == *only) && maySee(id, k.source) && st.needed() {
			out.Steps = append(out.Steps, describeStep(st))
		}
	}
	return out, nil
}

// describeStep is called with Agent.mu.
func describeStep(s *step) *mcrdmav1.Step {
	out := &mcrdmav1.Step{Group: groupKeyProto(s.key.groupKey), Destination: s.key.dst.String(), Generation: s.spec.Generation,
		Root: s.group != nil, Problems: slices.Clone(s.problems), Recomputes: s.recomputes}
	for name := range s.holders {
		out.Holders = append(out.Holders, string(name))
	}
	slices.Sort(out.Holders)
	for _, r := range s.spec.Receivers {
		out.Receivers = append(out.Receivers, r.Addr.String())
	}
	ports := map[uint16][]uint32{} // by RID
	for _, g := range s.installation.rules.PREGroups {
		for _, r := range g {
			if !slices.Contains(ports[r.RID], r.Port) {
				ports[r.RID] = append(ports[r.RID], r.Port)
			}
		}
	}
	var last *mcrdmav1.Copy
	for _, w := range s.installation.rules.Rewrites {
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
	for k, receivers := range s.branches {
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
