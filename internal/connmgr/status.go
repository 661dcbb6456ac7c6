package connmgr

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/internal/connmgr/agent"
	"github.com/mcrdma/mcrdma/internal/connmgr/health"
	"github.com/mcrdma/mcrdma/internal/failure"
	machine "github.com/mcrdma/mcrdma/internal/group"
	"github.com/mcrdma/mcrdma/internal/grpcclient"
	"github.com/mcrdma/mcrdma/internal/unixsock"
)

func (a *appsServer) GetGroup(ctx context.Context, req *mcrdmav1.GetGroupRequest) (*mcrdmav1.GetGroupResponse, error) {
	u, err := unixsock.UserOf(ctx)
	if err != nil {
		return nil, err
	}
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
	u, err := unixsock.UserOf(ctx)
	if err != nil {
		return nil, err
	}
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
		States: g.states.list()}
	if status.State == machine.Broken {
		out.Problems = append(out.Problems, "the application has been asked to form the group anew")
	}
	if !status.Resumed {
		out.Problems = append(out.Problems, "the application has not come back after the daemon's restart")
	}
	return out
}

// certWarn is how long before its end a certificate is a problem.
const certWarn = 7 * 24 * time.Hour

func (a *appsServer) GetDaemon(ctx context.Context, _ *mcrdmav1.GetDaemonRequest) (*mcrdmav1.GetDaemonResponse, error) {
	u, err := unixsock.UserOf(ctx)
	if err != nil {
		return nil, err
	}
	m := a.m
	m.askPeers(ctx)
	out := &mcrdmav1.GetDaemonResponse{Host: m.cfg.Name, Address: m.cfg.Address.String(), Device: m.cfg.Device, Version: m.opts.Version,
		Started: timestamppb.New(m.started), Listen: m.hosts.Addr().String(), Tls: "plain text"}
	if !m.files.Plain() {
		id, until, err := m.files.Read()
		if err != nil {
			out.Problems = append(out.Problems, err.Error())
		} else if left := time.Until(until); left < certWarn {
			out.Problems = append(out.Problems, fmt.Sprintf("the certificate %s is good until %v only: renew it", m.cfg.TLS.Cert, until))
		}
		out.Tls = fmt.Sprintf("%v until %v", id, until.UTC().Format("2006-01-02 15:04:05 MST"))
	}
	if err := m.store.Failed(); err != nil {
		out.Problems = append(out.Problems, err.Error())
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	out.Groups, out.Memberships = uint32(len(m.groups)), uint32(m.members.count()) //nolint:gosec // bounded by limits
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
	for _, addr := range slices.SortedFunc(maps.Keys(m.peers), netip.Addr.Compare) {
		out.Peers = append(out.Peers, m.describePeer(m.peers[addr]))
	}
	out.Sessions = m.sessions.describe(u)
	return out, nil
}

// askEvery is the shortest time between two requests to other hosts for what a status says
// of them.
const askEvery = time.Second

// askPeers asks the hosts that get no beats, so that what a status says of them is current.
func (m *Manager) askPeers(ctx context.Context) {
	// The answer holds for all callers, so it does not depend on this one staying.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), grpcclient.ConnectTime)
	defer cancel()
	var wg sync.WaitGroup
	m.mu.Lock()
	now := time.Now()
	for _, p := range m.peers {
		if m.health.Follows(p.addr) || !p.asked.IsZero() && now.Sub(p.asked) < askEvery {
			continue
		}
		p.asked = now
		p.users++
		wg.Go(func() { m.askPeer(ctx, p) })
	}
	m.mu.Unlock()
	wg.Wait()
}

func (m *Manager) askPeer(ctx context.Context, p *peer) {
	defer m.letPeer(p)
	var trip time.Duration
	err := p.call(ctx, func(ctx context.Context) error {
		begun := time.Now()
		_, err := p.rpc.Beat(ctx, &mcrdmav1.BeatRequest{Boot: m.boot})
		trip = time.Since(begun)
		return err
	})
	m.mu.Lock()
	defer m.mu.Unlock()
	if p.err = err; err == nil {
		p.trip = trip
	}
}

// describePeer is called with Manager.mu.
func (m *Manager) describePeer(p *peer) *mcrdmav1.PeerLink {
	x := &mcrdmav1.PeerLink{Host: p.name, Address: p.addr.String(), Daemon: p.target, State: stateOK, RoundTrip: durationpb.New(p.trip)}
	switch {
	case !p.tried:
		x.State = "unknown"
	case failure.Is(p.err, mcrdmav1.Reason_UNTRUSTED):
		x.State, x.Error = "untrusted", p.err.Error()
	case p.err != nil:
		x.State, x.Error = "down", p.err.Error()
	}
	if m.health.State(p.addr) == health.Silent {
		x.State = stateSilent
	}
	for _, g := range m.groups {
		if f := g.form(); f != nil && f.Has(p.addr) {
			x.Shared++
		}
	}
	x.Shared += uint32(m.members.from(p.addr)) //nolint:gosec // bounded by limits
	return x
}
