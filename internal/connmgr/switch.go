package connmgr

import (
	"fmt"
	"time"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/internal/connmgr/agent"
	"github.com/mcrdma/mcrdma/internal/failure"
	machine "github.com/mcrdma/mcrdma/internal/group"
	"github.com/mcrdma/mcrdma/internal/identity"
)

func (m *Manager) dialSwitch() error {
	c := m.cfg.Switch
	if c.Agent == "" {
		return nil
	}
	conn, err := m.connect(c.Agent, identity.Identity{Role: identity.Switch, Name: c.Name})
	if err != nil {
		return fmt.Errorf("%w: the agent of switch %s: %w", ErrConfig, c.Name, err)
	}
	m.opened = append(m.opened, func() { _ = conn.Close() })
	m.tor = agent.New(agent.Config{Name: c.Name, Target: c.Agent, Conn: conn, Source: m.cfg.Address, Lease: m.cfg.Leases.Group,
		Log: m.log, Called: m.metrics.agentCall})
	return nil
}

// followSwitch follows the agent's events about groups, and renews their leases.
func (m *Manager) followSwitch() {
	m.tor.Run(m.life, agent.Events{
		Owned: func() (keys []*mcrdmav1.GroupKey) {
			m.eachInstalled(func(g *group, mcID uint32) { keys = append(keys, m.tor.Key(mcID, g.id.number)) })
			return keys
		},
		There:   m.sweep,
		Changed: m.changed,
		Missing: func(missing uint32) {
			m.eachInstalled(func(g *group, mcID uint32) {
				if mcID == missing {
					g.post(func(s *machine.Sender, now time.Time) { s.Missing(mcID, true, false, now) })
				}
			})
		},
		Follows: func(err error) {
			e := &mcrdmav1.WatchEventsResponse{Kind: "agent back", Host: m.tor.Name, Text: "the agent at " + m.tor.Target + " is followed"}
			if err != nil {
				e.Kind, e.Text = "agent lost", err.Error()
			}
			m.watched.happened(machine.Owner{}, e)
		},
		Ready: func(why string) {
			e := &mcrdmav1.WatchEventsResponse{Kind: "agent ready", Host: m.tor.Name, Text: "the agent at " + m.tor.Target + " takes new groups"}
			if why != "" {
				e.Kind, e.Text = "agent not ready", why
			}
			m.log.Warn(e.Kind, "switch", m.tor.Name, "text", e.Text)
			m.watched.happened(machine.Owner{}, e)
		},
	})
}

// eachInstalled calls f for all groups that the agent should have.
func (m *Manager) eachInstalled(f func(g *group, mcID uint32)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, g := range m.groups {
		if s := g.status.Load(); s.Form != nil && s.Form.Path == mcrdmav1.Path_PATH_SWITCH && s.State != machine.Broken {
			f(g, s.Form.MCID)
		}
	}
}

// sweep removes the agent's groups that belong to no group here, or are being undone: a request to
// install a group may take effect after the request to remove it.
func (m *Manager) sweep(there []uint32) {
	for _, id := range there {
		if m.mcIDs.has(id) {
			continue
		}
		m.log.Warn("the switch has a group that is none of this daemon's; it is removed", "switch", m.tor.Name, "mc_id", id)
		s := machine.Leftover(m.senderConfig(machine.Spec{}), id, time.Now())
		m.startGroup(m.newGroup(groupID{}, machine.Spec{}, newSession(machine.Owner{}, time.Time{}), time.Time{}), s)
	}
}

// changed handles the agent's event about a group.
func (m *Manager) changed(s *mcrdmav1.GroupStatus) {
	id := s.GetGroup().GetKey().GetMcId()
	var problems []string
	for _, p := range s.GetProblems() {
		problems = append(problems, failure.Clip(p, failure.MaxText))
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, g := range m.groups {
		if x := g.status.Load(); x.Making == id || x.Form != nil && x.Form.MCID == id {
			g.post(func(s *machine.Sender, now time.Time) { s.News(id, problems, now) })
		}
	}
}
