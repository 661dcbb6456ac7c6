package connmgr

import (
	"context"
	"fmt"
	"time"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	machine "github.com/mcrdma/mcrdma/internal/group"
	"github.com/mcrdma/mcrdma/internal/store"
)

// found is the content of the state file at the start, until Run.
type found struct {
	groups []*groupRecord
	edits  []store.Edit // that make it this host's
}

// load restores the groups and memberships of the state file. Their applications must reconnect.
func (m *Manager) load() error {
	for key, value := range m.store.Load(groupsBucket) {
		var r groupRecord
		if err := store.Decode(value, &r); err != nil {
			return fmt.Errorf("the state %s has group %x in a form that this program does not know: %w: run the program that wrote it, or move the file away", m.cfg.State, key, err)
		}
		if r.ID.source != m.cfg.Address {
			m.log.Warn("a group of another address is in the state; its leases end it", "group", r.ID)
			m.found.edits = append(m.found.edits, editOf(groupsBucket, r.ID.number, nil))
			continue
		}
		if r.Form != nil {
			m.mcIDs.inUse.Store(r.Form.MCID, true)
		}
		if r.Forming != nil {
			m.mcIDs.inUse.Store(r.Forming.MCID, true)
		}
		m.found.groups = append(m.found.groups, &r)
	}
	own, owner := m.cfg.Address.String(), ""
	for _, value := range m.store.Load(ownerBucket) {
		owner = string(value)
	}
	for key, value := range m.store.Load(membersBucket) {
		if owner != "" && owner != own {
			m.log.Warn("a membership of another address is in the state; it is not this host's", "address", owner)
			m.found.edits = append(m.found.edits, store.Edit{Bucket: membersBucket, Key: key})
			continue
		}
		var r memberRecord
		if err := store.Decode(value, &r); err != nil {
			return fmt.Errorf("the state %s has membership %x in a form that this program does not know: %w: run the program that wrote it, or move the file away", m.cfg.State, key, err)
		}
		if err := m.members.load(&r, time.Now()); err != nil {
			return fmt.Errorf("the state %s has membership %x that cannot be read: %w: move the file away", m.cfg.State, key, err)
		}
	}
	if owner != own {
		m.found.edits = append(m.found.edits, store.Edit{Bucket: ownerBucket, Key: []byte("address"), Value: []byte(own)})
	}
	return nil
}

// resumeAll continues with the restored groups when Run begins.
func (m *Manager) resumeAll() {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	for _, r := range m.found.groups {
		s := m.sessions.restore(r.User)
		g := m.newGroup(r.ID, r.Spec, s, r.Created)
		x := machine.RestoreSender(m.senderConfig(r.Spec), &r.SenderRecord, now)
		g.status.Store(x.Status())
		if f := g.form(); f != nil {
			m.groups[g.id] = g
			m.watch(f, now)
		} else if r.Ended != nil {
			s.noteEnd(end{group: g.id, why: r.Ended.Why()})
		}
		m.startGroup(g, x)
	}
	m.found = found{}
}

// resumeGroup records that an application still has a group.
func (m *Manager) resumeGroup(ctx context.Context, g *group, req *mcrdmav1.ResumeGroupRequest) (*mcrdmav1.ResumeGroupResponse, error) {
	views := g.sess.acksViews()
	f, err := g.call(ctx, func(s *machine.Sender, call uint64, now time.Time) { s.Resume(call, req.GetFormation(), views, now) })
	if err != nil {
		return nil, err
	}
	return &mcrdmav1.ResumeGroupResponse{Formation: f}, nil
}
