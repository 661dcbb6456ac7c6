package connmgr

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"google.golang.org/protobuf/types/known/timestamppb"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/internal/connmgr/agent"
	"github.com/mcrdma/mcrdma/internal/failure"
	machine "github.com/mcrdma/mcrdma/internal/group"
)

func (a *appsServer) GetGroup(ctx context.Context, req *mcrdmav1.GetGroupRequest) (*mcrdmav1.GetGroupResponse, error) {
	u := userOf(ctx)
	id, err := groupIDFrom(req.GetGroup())
	if err != nil {
		return nil, err
	}
	m := a.m
	m.mu.Lock()
	defer m.mu.Unlock()
	g := m.groups[id]
	if g == nil || g.form() == nil || !u.May(g.sess.uid) {
		return nil, failure.New(mcrdmav1.Reason_NOT_FOUND, "there is no group %v of user %d", id, u.UID)
	}
	return &mcrdmav1.GetGroupResponse{Group: m.describe(g)}, nil
}

func (a *appsServer) ListGroups(ctx context.Context, _ *mcrdmav1.ListGroupsRequest) (*mcrdmav1.ListGroupsResponse, error) {
	u := userOf(ctx)
	m, out := a.m, &mcrdmav1.ListGroupsResponse{}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, id := range slices.SortedFunc(maps.Keys(m.groups), compareIDs) {
		if g := m.groups[id]; g.form() != nil && u.May(g.sess.uid) {
			out.Groups = append(out.Groups, m.describe(g))
		}
	}
	out.Memberships = m.members.list(u)
	return out, nil
}

// describe returns a group as tools see it.
func (m *Manager) describe(g *group) *mcrdmav1.GroupInfo {
	status := g.status.Load()
	out := &mcrdmav1.GroupInfo{Formation: g.info(status.Form), Service: g.spec.Service, Mode: g.spec.Mode, MinSize: g.spec.MinSize,
		Program: g.spec.Program, Uid: g.sess.uid, Pid: g.sess.record().PID, Created: timestamppb.New(g.created), Problems: slices.Clone(status.Problems),
		States: m.states(status)}
	if status.State == machine.Broken {
		out.Problems = append(out.Problems, "the application has been asked to form the group anew")
	}
	if !status.Resumed {
		out.Problems = append(out.Problems, "the application has not come back after the daemon's restart")
	}
	return out
}

// states returns the states of a group's receivers, also of those that were removed.
func (m *Manager) states(s *machine.SenderStatus) []*mcrdmav1.MemberState {
	out := m.peers.states(s.Form)
	for _, d := range s.Departures {
		if !s.Form.Has(d.Addr) {
			out = append(out, &mcrdmav1.MemberState{Address: d.Addr.String(), Host: d.Host, State: stateRemoved, Reason: d.Why, Since: since(d.At)})
		}
	}
	slices.SortFunc(out, func(x, y *mcrdmav1.MemberState) int {
		return netip.MustParseAddr(x.GetAddress()).Compare(netip.MustParseAddr(y.GetAddress()))
	})
	return out
}

func (a *appsServer) GetDaemon(ctx context.Context, _ *mcrdmav1.GetDaemonRequest) (*mcrdmav1.GetDaemonResponse, error) {
	u := userOf(ctx)
	m := a.m
	m.peers.ask(ctx, m.boot)
	out := &mcrdmav1.GetDaemonResponse{Host: m.cfg.Name, Address: m.cfg.Address.String(), Device: m.cfg.Device, Version: m.opts.Version,
		Started: timestamppb.New(m.started), Listen: m.hosts.Addr().String(), Tls: "plain text"}
	if err := m.store.Failed(); err != nil { // the first problem, so that its kind is the first
		out.Problems, out.ProblemKinds = []string{err.Error()}, []mcrdmav1.ProblemKind{mcrdmav1.ProblemKind_PROBLEM_KIND_STATE_FILE}
	}
	if !m.files.Plain() {
		if err := m.files.Accepted(m.identity()); err != nil {
			out.Problems = append(out.Problems, err.Error())
		}
		id, until, _ := m.files.Read() // its error is a problem above
		out.Tls = fmt.Sprintf("%v until %v", id, until.UTC().Format("2006-01-02 15:04:05 MST"))
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	out.Groups, out.Memberships = uint32(len(m.groups)), uint32(m.members.count(netip.Addr{})) //nolint:gosec // bounded by limits
	if t := m.tor; t != nil {
		synced, err := t.State()
		out.Switch = &mcrdmav1.SwitchLink{Name: t.Name, Agent: t.Target, Reachable: synced}
		if err != nil {
			out.Switch.Error = err.Error()
		} else {
			out.Switch.NotReady = t.NotReady()
		}
		if why := t.Unusable(); why != "" && !errors.Is(err, agent.ErrNotYet) {
			out.Problems = append(out.Problems, "switch "+t.Name+": "+why)
		}
	}
	out.Peers = m.peers.describe()
	for _, x := range out.GetPeers() {
		x.Shared = m.shared(x.GetAddress())
	}
	out.Sessions = m.sessions.describe(u)
	return out, nil
}

// shared returns the number of groups that a host shares with this one. It is called with
// Manager.mu.
func (m *Manager) shared(host string) (n uint32) {
	a := netip.MustParseAddr(host)
	for _, g := range m.groups {
		if g.form().Has(a) {
			n++
		}
	}
	return n + uint32(m.members.count(a)) //nolint:gosec // bounded by limits
}
