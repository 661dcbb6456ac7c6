package connmgr

import (
	"context"
	"errors"
	"hash/maphash"
	"net/netip"
	"syscall"
	"time"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/internal/failure"
)

// maxBeats bounds the beats to a host that are under way. There are several because TCP
// notices lost packets at once when later ones arrive, and otherwise only after a timeout
// that doubles.
const maxBeats = 256

// beat sends a beat to each host in which a group of ours has receivers. It names the groups if the
// host does not know their list yet.
func (m *Manager) beat(now time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	lists := map[netip.Addr]uint64{}
	for _, g := range m.groups {
		if f := g.form(); f != nil {
			sum := maphash.Comparable(m.seed, beatOf{g.id, f.N})
			for _, r := range f.Receivers {
				lists[r.Addr] += sum
			}
		}
	}
	for a, list := range lists {
		p, known := m.peers.beginBeat(a)
		if p == nil {
			continue
		}
		req := &mcrdmav1.BeatRequest{Boot: m.boot, List: list}
		if list == 0 || known != list {
			req.Groups = m.heartbeats(a)
		}
		m.background(func(ctx context.Context) { m.beatOne(ctx, p, req) })
	}
}

// A beatOf is what a beat says of a group. Lists are sums of hashes of these.
type beatOf struct {
	id        groupID
	formation uint32
}

// heartbeats names all groups in which a host has receivers. It is called with Manager.mu.
func (m *Manager) heartbeats(a netip.Addr) (list []*mcrdmav1.Heartbeat) {
	for _, g := range m.groups {
		if f := g.form(); f != nil && f.Has(a) {
			list = append(list, &mcrdmav1.Heartbeat{Group: g.id.proto(), Formation: f.N, Address: a.String()})
		}
	}
	return list
}

// beatOne sends one beat. It does not matter how long a failure takes to show: what counts
// is silence, not the failure.
func (m *Manager) beatOne(ctx context.Context, p *peer, req *mcrdmav1.BeatRequest) {
	ctx, cancel := context.WithTimeout(ctx, m.cfg.Beat.DeadAfter)
	defer cancel()
	begun := time.Now()
	res, err := p.rpc.Beat(ctx, req)
	trip := time.Since(begun)
	p.endBeat(res, trip, err == nil && m.opts.Busy(time.Now()), p.explain(ctx, err))
	if err == nil {
		m.removeEnded(p, res)
	}
}

// beginBeat counts a beat that is about to be sent, and returns the list of groups that the host
// knows; nil: there is no such peer, or too many beats are under way.
func (t *peers) beginBeat(a netip.Addr) (p *peer, known uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if p = t.at[a]; p == nil || p.beats == maxBeats {
		return nil, 0
	}
	p.beats++
	p.users++
	return p, p.list
}

// endBeat takes in what came of a beat; busy: this host is.
func (p *peer) endBeat(res *mcrdmav1.BeatResponse, trip time.Duration, busy bool, err error) {
	t := p.of
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now()
	p.beats--
	p.tried, p.err = true, err
	p.users--
	p.idle = now
	switch refused := errors.Is(p.conn.Last(), syscall.ECONNREFUSED); {
	case err == nil:
		t.metrics.beats.WithLabelValues("ok").Inc()
		p.trip, p.list = trip, res.GetList()
		t.health.Answered(p.addr, now)
		t.health.Busy(p.addr, res.GetBusy() || busy)
	case failure.Is(err, mcrdmav1.Reason_UNREACHABLE) && refused:
		t.metrics.beats.WithLabelValues("refused").Inc()
		t.health.Refused(p.addr, now)
	default:
		t.metrics.beats.WithLabelValues("failed").Inc()
	}
}

// removeEnded takes out the receivers that a beat's answer says are gone.
func (m *Manager) removeEnded(p *peer, res *mcrdmav1.BeatResponse) {
	m.mu.Lock()
	defer m.mu.Unlock()
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
