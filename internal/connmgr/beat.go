package connmgr

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"syscall"
	"time"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/internal/connmgr/health"
	"github.com/mcrdma/mcrdma/internal/failure"
)

// maxBeats bounds the beats to a host that are under way. There are several because TCP
// notices lost packets at once when later ones arrive, and otherwise only after a timeout
// that doubles.
const maxBeats = 256

// busyBeats is of how many beats one is sent while the host has more work than it can do at
// once: silence then counts a third, too.
const busyBeats = 3

// beat sends a beat to each host in which a group of ours has receivers.
func (m *Manager) beat(now time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	beats := map[netip.Addr]*mcrdmav1.BeatRequest{}
	for _, g := range m.groups {
		f := g.form()
		if f == nil {
			continue
		}
		for _, r := range f.Receivers {
			b := beats[r.Addr]
			if b == nil {
				b = &mcrdmav1.BeatRequest{Boot: m.boot}
				beats[r.Addr] = b
			}
			b.Groups = append(b.Groups, &mcrdmav1.Heartbeat{Group: g.id.proto(), Formation: f.N, Address: r.Addr.String()})
		}
	}
	busy := m.opts.Busy(now)
	for a, req := range beats {
		p := m.peers[a]
		if p == nil || p.beats == maxBeats || busy && p.beats == 0 && now.Sub(p.beaten) < (busyBeats-1)*m.cfg.Beat.Interval {
			continue
		}
		p.beaten = now
		p.beats++
		p.users++
		m.background(func(ctx context.Context) { m.beatOne(ctx, p, req) })
	}
}

// beatOne sends one beat. It does not matter how long a failure takes to show: what counts
// is silence, not the failure.
func (m *Manager) beatOne(ctx context.Context, p *peer, req *mcrdmav1.BeatRequest) {
	ctx, cancel := context.WithTimeout(ctx, m.cfg.Beat.DeadAfter)
	defer cancel()
	begun := time.Now()
	res, err := p.rpc.Beat(ctx, req)
	trip := time.Since(begun)
	err = p.explain(ctx, err)
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	p.beats--
	p.tried, p.err = true, err
	p.users--
	p.idle = now
	switch refused := errors.Is(p.conn.Last(), syscall.ECONNREFUSED); {
	case err == nil:
		m.metrics.beats.WithLabelValues("ok").Inc()
		p.trip = trip
		m.health.Answered(p.addr, now)
		m.health.Busy(p.addr, res.GetBusy() || m.opts.Busy(now))
		m.removeEnded(p, res)
	case failure.Is(err, mcrdmav1.Reason_UNREACHABLE) && refused:
		m.metrics.beats.WithLabelValues("refused").Inc()
		m.health.Refused(p.addr, now)
	default:
		m.metrics.beats.WithLabelValues("failed").Inc()
	}
}

// removeEnded takes out the receivers that a beat's answer says are gone. It is called
// with Manager.mu.
func (m *Manager) removeEnded(p *peer, res *mcrdmav1.BeatResponse) {
	for _, x := range res.GetGone() {
		id, err := groupIDFrom(x.GetGroup())
		if err != nil {
			continue
		}
		g := m.groups[id]
		if g == nil {
			continue
		}
		if f := g.form(); f == nil || f.N != x.GetFormation() || !f.Has(p.addr) {
			continue
		}
		m.lose(g, p.addr, "left", failure.Clip(x.GetReason(), failure.MaxText))
	}
}

// judge acts on what has changed with the hosts of receivers. It is called with
// Manager.mu.
func (m *Manager) judge(now time.Time) {
	for _, c := range m.health.Tick(now) {
		m.act(c, now)
	}
}

func (m *Manager) act(c health.Change, now time.Time) {
	for _, g := range m.groups {
		if f := g.form(); f == nil || !f.Has(c.Addr) {
			continue
		}
		was := g.states.change(c, now)
		s := g.states.get(c.Addr)
		switch {
		case c.State == health.OK:
			m.tell(g, mcrdmav1.GroupChanged_TYPE_RECOVERED, c.Addr, fmt.Sprintf("%s answers again", s.host))
		case c.State == health.Silent || c.State == health.Down && was == stateOK:
			m.tell(g, mcrdmav1.GroupChanged_TYPE_SUSPECTED, c.Addr, s.host+": "+s.reason)
		case c.State == health.Gone:
			silence := c.For.Round(time.Millisecond)
			why, reason := fmt.Sprintf("nothing was heard of its daemon for %v", silence), "silent"
			if was == stateDown {
				why, reason = fmt.Sprintf("its daemon has not run for %v", silence), "down"
			}
			m.lose(g, c.Addr, reason, why)
		}
	}
}
