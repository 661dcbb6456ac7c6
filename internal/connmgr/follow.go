package connmgr

import (
	"context"
	"errors"
	"time"

	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/internal/failure"
	machine "github.com/mcrdma/mcrdma/internal/group"
)

// run follows the agent's events until ctx ends.
func (t *tor) run(ctx context.Context) {
	t.m.wg.Go(func() { t.looks(ctx) })
	wait := followAgain
	for ctx.Err() == nil {
		err := t.follow(ctx)
		if t.follows(false, err) && ctx.Err() == nil {
			wait = followAgain
			t.m.log.Warn("the switch's agent is lost", "switch", t.name, "error", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(wait):
		}
		wait = min(2*wait, 8*followAgain)
	}
}

// followAgain is the shortest time between two tries to follow the agent.
const followAgain = 250 * time.Millisecond

var errLost = errors.New("the events came faster than they could be followed")

// follow follows events until that fails.
func (t *tor) follow(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	events, err := t.groups.Watch(ctx, &mcrdmav1.WatchRequest{Source: t.m.cfg.Address.String()})
	if err != nil {
		return t.explain(ctx, false, err)
	}
	var there []uint32
	for synced := false; ; {
		e, err := events.Recv()
		if err != nil {
			return t.explain(ctx, false, err)
		}
		if g := e.GetGroup(); g != nil && g.GetGroup().GetKey().GetSource() != t.m.cfg.Address.String() {
			continue // a group that the request did not ask for
		}
		switch e.GetType() {
		case mcrdmav1.WatchResponse_TYPE_INSTALLED:
			if there = append(there, e.GetGroup().GetGroup().GetKey().GetMcId()); synced {
				t.sweep(there)
				there = nil
			}
			t.m.changed(e.GetGroup())
		case mcrdmav1.WatchResponse_TYPE_UPDATED:
			t.m.changed(e.GetGroup())
		case mcrdmav1.WatchResponse_TYPE_REMOVED, mcrdmav1.WatchResponse_TYPE_EXPIRED:
			t.look()
		case mcrdmav1.WatchResponse_TYPE_SYNCED:
			synced = true
			t.sweep(there)
			there = nil
			t.follows(true, nil)
			t.look()
		case mcrdmav1.WatchResponse_TYPE_LOST:
			return errLost
		}
	}
}

// sweep removes the agent's groups that no group here owns or that are being undone: a
// request to install one may take effect after the one to remove it.
func (t *tor) sweep(there []uint32) {
	m := t.m
	for _, id := range there {
		if m.mcIDs.has(id) {
			continue
		}
		m.log.Warn("the switch has a group that is none of this daemon's; it is removed", "switch", t.name, "mc_id", id)
		s := machine.Leftover(m.senderConfig(machine.Spec{}), id, time.Now())
		m.startGroup(m.newGroup(groupID{}, machine.Spec{}, newSession(machine.Owner{}, time.Time{}), time.Time{}), s)
	}
}

// look starts a check whether the agent has our groups.
func (t *tor) look() {
	select {
	case t.kick <- struct{}{}:
	default:
	}
}

// looks renews our groups' leases in time and whenever it is kicked, and finds out which of
// them the agent does not have.
func (t *tor) looks(ctx context.Context) {
	due := time.NewTicker(t.m.cfg.Leases.Group / 3)
	defer due.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.kick:
		case <-due.C:
		}
		m, formations := t.m, map[uint32]*group{}
		req := &mcrdmav1.RenewRequest{}
		m.mu.Lock()
		for _, g := range m.groups {
			if s := g.status.Load(); s.Form != nil && s.Form.Path == mcrdmav1.Path_PATH_SWITCH && s.State != machine.Broken {
				f := s.Form
				formations[f.MCID] = g
				req.Keys = append(req.Keys, t.key(f.MCID))
			}
		}
		m.mu.Unlock()
		if len(req.Keys) == 0 {
			continue
		}
		for _, id := range t.missing(ctx, req) {
			if g := formations[id]; g != nil {
				g.post(func(s *machine.Sender, now time.Time) { s.Missing(id, true, false, now) })
			}
		}
	}
}

// missing renews leases and returns the groups that the agent does not have.
func (t *tor) missing(ctx context.Context, req *mcrdmav1.RenewRequest) []uint32 {
	res, err := ask(ctx, t.call, t.groups.Renew, req)
	if err != nil {
		t.m.log.Warn("leases could not be renewed", "switch", t.name, "error", err)
		return nil
	}
	var out []uint32
	for _, k := range res.GetMissing() {
		out = append(out, k.GetMcId())
	}
	return out
}

// changed handles the agent's news of a group, its installation included: its tree may have
// changed by the time that news arrives.
func (m *Manager) changed(s *mcrdmav1.GroupStatus) {
	m.mu.Lock()
	defer m.mu.Unlock()
	id, problems := s.GetGroup().GetKey().GetMcId(), clipAll(s.GetProblems())
	for _, g := range m.groups {
		if x := g.status.Load(); x.Making == id || x.Form != nil && x.Form.MCID == id {
			g.post(func(s *machine.Sender, now time.Time) { s.News(id, problems, now) })
		}
	}
}

func clipAll(list []string) []string {
	var out []string
	for _, s := range list {
		out = append(out, failure.Clip(s, failure.MaxText))
	}
	return out
}

// ready asks whether the agent is ready.
func (t *tor) ready(ctx context.Context) bool {
	if synced, _ := t.state(); !synced {
		return false
	}
	ready, _, _ := t.probes.Do("", func() (any, error) { // the answer holds for all groups that ask
		res, err := t.health.Check(ctx, &healthpb.HealthCheckRequest{})
		return err == nil && res.GetStatus() == healthpb.HealthCheckResponse_SERVING, nil
	})
	return ready.(bool)
}
