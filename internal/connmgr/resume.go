package connmgr

import (
	"context"
	"fmt"
	"net/netip"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
)

// load restores the groups and memberships of the state. Their applications have to come
// back for them.
func (m *Manager) load() error {
	for key, value := range m.store.Load(groupsBucket) {
		var r groupRecord
		if err := decode(value, &r); err != nil {
			return fmt.Errorf("the state %s has group %x in a form that this program does not know: %w: run the program that wrote it, or move the file away", m.cfg.State, key, err)
		}
		if r.ID.source != m.addr {
			m.log.Warn("a group of another address is in the state; its leases end it", "group", r.ID)
			m.stale = append(m.stale, groupEdit(r.ID.number, nil))
			continue
		}
		m.loadGroup(&r)
	}
	for key, value := range m.store.Load(membersBucket) {
		var r memberRecord
		if err := decode(value, &r); err != nil {
			return fmt.Errorf("the state %s has membership %x in a form that this program does not know: %w: run the program that wrote it, or move the file away", m.cfg.State, key, err)
		}
		m.loadMember(&r)
	}
	return nil
}

// lostSession returns a session of before the restart.
func (m *Manager) lostSession(r userRecord) *session {
	s := m.sessions[r.Token]
	if s == nil {
		s = newSession(r.Token, user{r.UID, r.PID}, r.Program, m.clock.now())
		m.sessions[r.Token] = s
	}
	return s
}

func (m *Manager) loadGroup(r *groupRecord) {
	if b := r.Forming; b != nil {
		m.mcInUse[b.MCID] = false
		m.incomplete = append(m.incomplete, r)
	}
	if r.Form == nil {
		return
	}
	s := m.lostSession(r.User)
	g := m.newGroup(r.ID, r.Spec, s)
	g.created, g.form, g.last, g.departures = r.Created, r.Form, max(r.Last, r.Form.N), r.Departures
	if b := r.Forming; b != nil { // a state written before Last existed
		g.last = max(g.last, b.N)
	}
	m.groups[g.id], s.groups[g.id] = g, g
	m.mcInUse[g.form.MCID] = true
	m.use(s.user.uid, func(u *usage) { u.groups++ })
	for _, x := range g.form.Receivers {
		g.states[x.Addr] = &peerState{host: x.Host, state: stateOK, since: m.clock.now()}
	}
}

func (m *Manager) loadMember(r *memberRecord) {
	s := m.lostSession(r.User)
	x := &member{memberRecord: *r, sess: s, state: formed, done: make(chan struct{}), expires: m.clock.now().Add(r.Lease)}
	close(x.done)
	if len(m.memberships[r.ID]) == 0 {
		m.use(s.user.uid, func(u *usage) { u.memberships++; u.memory += r.Memory })
	}
	m.memberships[r.ID] = append(m.memberships[r.ID], x)
	s.members[x.Attach] = x
}

// resumeAll goes on with what the state knows, when Run begins. Formations that were
// not complete are undone.
func (m *Manager) resumeAll() {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.clock.now()
	for _, g := range m.groups {
		for _, r := range g.form.Receivers {
			if _, err := m.peerLocked(r.Addr); err != nil {
				m.log.Error("no connection can be made", "host", r.Addr, "error", err)
			}
		}
		m.watch(g, now)
		g.retry.plan(g.form, now)
		if g.form.Path == mcrdmav1.Path_PATH_SWITCH && m.tor == nil {
			m.breakUp(g, netip.Addr{}, "by switches: "+errNoAgent.Error()+" any longer")
		}
		for _, d := range g.departures { // taking out was begun
			m.lose(g, d.Addr, "resumed", d.Why)
		}
	}
	for _, r := range m.incomplete {
		b := r.Forming
		d := &cleanup{mcID: b.MCID, installed: true, drops: map[*peer]*mcrdmav1.DropRequest{}}
		if g := m.groups[r.ID]; g != nil { // its next record does not name the formation
			m.breakUp(g, netip.Addr{}, "the daemon was restarted while the group was formed anew")
		} else {
			edit := groupEdit(r.ID.number, nil)
			d.record = &edit
		}
		for _, a := range b.Candidates {
			if p, err := m.peerLocked(a); err == nil { // otherwise its lease ends the membership
				d.drops[p] = abort(r.ID, b.N, a, "the sender's daemon was restarted")
			}
		}
		m.background(func(context.Context) { m.startCleanup(d) })
	}
	m.incomplete = nil
	if len(m.stale) > 0 {
		m.forget(m.stale...)
		m.stale = nil
	}
}

// resumeGroup says that an application still has a group.
func (m *Manager) resumeGroup(g *group, req *mcrdmav1.ResumeGroupRequest) (*mcrdmav1.ResumeGroupResponse, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if g.over || g.form == nil {
		return nil, g.sess.whyEnded(g.id, 0, refuse(NotFound, "there is no group %v any longer", g.id))
	}
	if req.GetFormation() > g.form.N {
		return nil, refuse(Stale, "group %v is at formation %d, and not %d", g.id, g.form.N, req.GetFormation())
	}
	g.resumed = true
	return &mcrdmav1.ResumeGroupResponse{Formation: g.info(g.form)}, nil
}

// resumeMember says that an application still has a membership.
func (m *Manager) resumeMember(s *session, req *mcrdmav1.ResumeMemberRequest) error {
	id, err := groupIDFrom(req.GetGroup())
	if err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	x := s.members[req.GetAttach()]
	if x == nil || x.ID != id || x.Formation != req.GetFormation() {
		return s.whyEnded(id, req.GetAttach(), refuse(NotFound, "there is no membership %d in formation %d of group %v", req.GetAttach(), req.GetFormation(), id))
	}
	x.resumed = true
	return nil
}
