package connmgr

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"

	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
)

// run follows the agent's events until ctx ends.
func (t *tor) run(ctx context.Context) {
	t.m.wg.Go(func() { t.looks(ctx) })
	wait := followAgain
	for ctx.Err() == nil {
		err := t.follow(ctx)
		t.m.mu.Lock()
		if t.synced && ctx.Err() == nil {
			wait = followAgain
			t.m.log.Warn("the switch's agent is lost", "switch", t.name, "error", err)
		}
		t.synced, t.err = false, err
		t.m.mu.Unlock()
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
	events, err := t.groups.Watch(ctx, &mcrdmav1.WatchRequest{Source: t.m.addr.String()})
	if err != nil {
		return t.fault(ctx, err)
	}
	var there []uint32
	for synced := false; ; {
		e, err := events.Recv()
		if err != nil {
			return t.fault(ctx, err)
		}
		if g := e.GetGroup(); g != nil && g.GetGroup().GetKey().GetSource() != t.m.addr.String() {
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
			t.m.mu.Lock()
			t.synced, t.err = true, nil
			t.m.mu.Unlock()
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
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, id := range there {
		if !m.mcInUse[id] {
			m.log.Warn("the switch has a group that is none of this daemon's; it is removed", "switch", t.name, "mc_id", id)
			m.mcInUse[id] = false
			m.background(func(context.Context) { m.startCleanup(&cleanup{mcID: id, installed: true}) })
		}
	}
}

// look starts a check whether the agent has our groups.
func (t *tor) look() {
	select {
	case t.kick <- struct{}{}:
	default:
	}
}

// looks renews our groups' leases whenever it is kicked, and finds out which of
// them the agent does not have.
func (t *tor) looks(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.kick:
		}
		m, formations := t.m, map[uint32]*group{}
		req := &mcrdmav1.RenewRequest{}
		m.mu.Lock()
		for _, g := range m.groups {
			if f := g.form; f != nil && f.Path == mcrdmav1.Path_PATH_SWITCH && !g.broken {
				formations[f.MCID] = g
				req.Keys = append(req.Keys, t.key(m.addr, f.MCID))
			}
		}
		m.mu.Unlock()
		if len(req.Keys) == 0 {
			continue
		}
		for _, id := range t.missing(ctx, req) {
			if g := formations[id]; g != nil {
				m.background(func(ctx context.Context) { m.verify(ctx, g, id) })
			}
		}
	}
}

// missing renews leases and returns the groups that the agent does not have.
func (t *tor) missing(ctx context.Context, req *mcrdmav1.RenewRequest) []uint32 {
	ctx, cancel := context.WithTimeout(ctx, t.m.times.install)
	defer cancel()
	var res *mcrdmav1.RenewResponse
	err := t.call(ctx, func(ctx context.Context) (err error) {
		res, err = t.groups.Renew(ctx, req)
		return err
	})
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

// verify has a group formed anew if the agent really does not have it: while a formation is
// being changed, the agent may lack it for a moment.
func (m *Manager) verify(ctx context.Context, g *group, id uint32) {
	if g.enter(ctx) != nil {
		return
	}
	defer g.leave()
	m.mu.Lock()
	same := !g.over && g.form != nil && g.form.MCID == id && g.form.Path == mcrdmav1.Path_PATH_SWITCH
	m.mu.Unlock()
	if !same || len(m.tor.missing(ctx, &mcrdmav1.RenewRequest{Keys: []*mcrdmav1.GroupKey{m.tor.key(m.addr, id)}})) == 0 {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.breakUp(g, netip.Addr{}, fmt.Sprintf("switch %s does not have the group any longer", m.tor.name))
}

// changed handles the agent's news of a group, its installation included: its tree may have
// changed by the time that news arrives.
func (m *Manager) changed(s *mcrdmav1.GroupStatus) {
	m.mu.Lock()
	defer m.mu.Unlock()
	id := s.GetGroup().GetKey().GetMcId()
	for _, g := range m.groups {
		if f := g.form; f != nil && f.Path == mcrdmav1.Path_PATH_SWITCH && f.MCID == id {
			m.heard(g, s)
		} else if g.making == id {
			g.news = s
		}
	}
}

// heard takes the agent's news of a group's formation. It is called with Manager.mu.
func (m *Manager) heard(g *group, s *mcrdmav1.GroupStatus) {
	had := len(g.problems) > 0
	if g.problems = clipAll(s.GetProblems()); len(g.problems) == 0 {
		g.since = time.Time{}
	} else if !had {
		g.since = m.clock.now()
	}
	m.background(func(ctx context.Context) {
		if g.enter(ctx) != nil {
			return
		}
		defer g.leave()
		m.retree(ctx, g, true)
	})
}

func clipAll(list []string) []string {
	var out []string
	for _, s := range list {
		out = append(out, clip(s, maxText))
	}
	return out
}

// retry says when to check again whether switches can copy.
type retry struct {
	at    time.Time
	wait  time.Duration
	asked bool // the agent is being asked
}

const (
	firstRetry = 10 * time.Second
	lastRetry  = 5 * time.Minute
)

// plan is called with a group that has just been formed, under Manager.mu. Each time the
// switches fail again, it waits longer: forming a group anew takes time.
func (r *retry) plan(f *formation, now time.Time) {
	if !f.Transient {
		*r = retry{}
		return
	}
	r.wait = min(max(2*r.wait, firstRetry), lastRetry)
	r.at = now.Add(r.wait)
}

// dueAtSwitch renews leases at the agent. It has groups formed anew if the agent was not
// ready for them, or if it cannot reach their receivers. It is called with Manager.mu.
func (m *Manager) dueAtSwitch(now time.Time) {
	t := m.tor
	if t == nil {
		return
	}
	if !now.Before(t.due) {
		t.due = now.Add(m.cfg.Leases.Group / 3)
		t.look()
	}
	probe := false
	for _, g := range m.groups {
		f := g.form
		if f == nil || g.broken {
			continue
		}
		if f.Transient && !g.retry.at.IsZero() && !now.Before(g.retry.at) {
			g.retry.at = now.Add(firstRetry)
			probe = true
			g.retry.asked = true
		}
		if !g.since.IsZero() && now.Sub(g.since) >= m.times.settle {
			if a, text := unreachable(f, g.problems); a.IsValid() {
				m.breakUp(g, a, text)
			}
		}
	}
	if probe && t.synced && !t.busy {
		t.busy = true
		m.background(t.probe)
	}
}

// unreachable finds a receiver that the switches cannot reach.
func unreachable(f *formation, problems []string) (netip.Addr, string) {
	for _, p := range problems {
		for _, r := range f.Receivers {
			if strings.HasPrefix(p, r.Addr.String()+":") {
				return r.Addr, p
			}
		}
	}
	return netip.Addr{}, ""
}

// probe has the groups that wait for the agent formed anew, if it is ready.
func (t *tor) probe(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, t.m.times.install)
	defer cancel()
	res, err := t.health.Check(ctx, &healthpb.HealthCheckRequest{})
	m := t.m
	m.mu.Lock()
	defer m.mu.Unlock()
	t.busy = false
	for _, g := range m.groups {
		if !g.retry.asked {
			continue
		}
		g.retry.asked = false
		if err == nil && res.GetStatus() == healthpb.HealthCheckResponse_SERVING && g.form != nil && g.form.Transient {
			m.breakUp(g, netip.Addr{}, fmt.Sprintf("switch %s is ready again", t.name))
		}
	}
}
