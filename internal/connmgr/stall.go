package connmgr

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/pkg/qp"
)

// A stallSample is what the switch had counted at the last report of a stall.
type stallSample struct {
	formation uint32
	at        time.Time
	answers   map[netip.Addr]uint64
}

// sampleTime is how long a sample can be used for comparison.
const sampleTime = 5 * time.Second

// A report of a stall is followed for longer than a timeout of the queue pair: a receiver
// that is alive has answered a retransmission by then.
const (
	looksEach = 12 // at beats and counters, for one report
	looksPerT = 8  // in a timeout
)

// looks are the checks for receivers that stall a formation. One of each kind runs at a
// time, and callers that report meanwhile share its reading of counters.
type looks struct {
	stalls, refusals shared
	sample           stallSample // of the look at a stall
}

// stalled finds the receivers to blame if nothing is acknowledged, and takes them out.
func (m *Manager) stalled(ctx context.Context, g *group, req *mcrdmav1.ReportStallRequest) (*mcrdmav1.ReportStallResponse, error) {
	m.mu.Lock()
	f, l := g.form, g.looks
	over := g.over
	m.mu.Unlock()
	if over || f == nil || f.N != req.GetFormation() {
		return nil, refuse(Stale, "group %v is not at formation %d", g.id, req.GetFormation())
	}
	var suspects []netip.Addr
	var err error
	if req.GetRefused() {
		suspects, err = l.refusals.do(ctx, m, func() []netip.Addr { return m.refusers(g, f) })
	} else {
		since := req.GetSince().AsDuration()
		suspects, err = l.stalls.do(ctx, m, func() []netip.Addr { return m.stallers(g, f, &l.sample, since) })
	}
	res := &mcrdmav1.ReportStallResponse{}
	for _, a := range suspects {
		res.Suspects = append(res.Suspects, a.String())
	}
	return res, err
}

// stallers finds the receivers that do not answer, and takes them out. Nothing has been
// acknowledged for since.
func (m *Manager) stallers(g *group, f *formation, was *stallSample, since time.Duration) []netip.Addr {
	switched := f.Path == mcrdmav1.Path_PATH_SWITCH && m.tor != nil // a switch sees answers of applications, too
	if suspects := m.blame(g, f, !switched); len(suspects) > 0 || !switched {
		return suspects
	}
	suspects, still, alive, err := m.compare(g, f, was, since)
	if err != nil && g.ctx.Err() == nil {
		m.log.Warn("who stalls a group cannot be found out from the switch", "group", g.id, "error", err)
	}
	if !alive && len(suspects) == 0 {
		return m.blame(g, f, true)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if g.form.N != f.N {
		return nil
	}
	for _, a := range still {
		suspects = append(suspects, a)
		m.lose(g, a, "stalled", fmt.Sprintf("it acknowledges nothing, and the others do (for %v)", since.Round(time.Millisecond)))
	}
	return suspects
}

// blame takes out the receivers that do not answer beats either, and returns all that are
// to be taken out.
func (m *Manager) blame(g *group, f *formation, down bool) (suspects []netip.Addr) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.clock.now()
	for _, c := range m.health.Blame(f.addrs(), now, down) {
		suspects = append(suspects, c.Addr)
		m.act(c, now)
	}
	for a := range g.dead {
		if !slices.Contains(suspects, a) {
			suspects = append(suspects, a)
		}
	}
	return suspects
}

// compare finds the receivers of which the switch counts no answers while it counts
// others', for as long as fruitless says: those are still. Meanwhile it keeps checking for
// receivers that do not answer beats; such suspects end it. alive says that the switch
// counts answers of some receiver.
func (m *Manager) compare(g *group, f *formation, was *stallSample, since time.Duration) (suspects, still []netip.Addr, alive bool, err error) {
	if age := m.clock.now().Sub(was.at); was.formation != f.N || age > sampleTime || age > since { // of another stall
		*was = stallSample{}
	}
	timeout := qp.AckTimeout(g.timeout)
	seen := false
	for range looksEach {
		answers, err := m.tor.answers(g.ctx, m.addr, f, answered)
		if err != nil {
			return nil, nil, alive, err
		}
		if was.answers == nil {
			*was = stallSample{f.N, m.clock.now(), answers}
		}
		still, moving := split(f, was.answers, answers)
		if len(moving) > 0 && len(still) > 0 && seen && m.clock.now().Sub(was.at) >= fruitless(m.cfg.Beat.DeadAfter, timeout) {
			return nil, still, true, nil // a receiver that was only late has had the time of a look
		}
		seen = len(moving) > 0
		alive = alive || seen
		select {
		case <-time.After(timeout / looksPerT):
		case <-g.ctx.Done():
			return nil, nil, alive, g.ctx.Err()
		}
		if len(still) == 0 {
			continue // all have answered since: the stall may have ended
		}
		if suspects := m.blame(g, f, false); len(suspects) > 0 {
			return suspects, nil, alive, nil
		}
	}
	return nil, nil, alive, nil
}

// fruitless is how long a receiver must fail to answer while others do, to be taken out: a
// quarter of the time after which a silent host counts as dead, and two retransmissions,
// since one may be lost.
func fruitless(deadAfter, timeout time.Duration) time.Duration {
	return max(deadAfter/4, 2*timeout+timeout/looksPerT)
}

func split(f *formation, was, now map[netip.Addr]uint64) (still, moving []netip.Addr) {
	for _, a := range f.addrs() {
		if now[a] == was[a] {
			still = append(still, a)
		} else {
			moving = append(moving, a)
		}
	}
	return still, moving
}

// refusers returns the receivers of which the switch has counted fatal NAKs. They are not
// taken out for that: the next formation may work for them.
func (m *Manager) refusers(g *group, f *formation) (suspects []netip.Addr) {
	if f.Path != mcrdmav1.Path_PATH_SWITCH || m.tor == nil {
		return nil
	}
	fatal, err := m.tor.answers(g.ctx, m.addr, f, (*mcrdmav1.MemberCounters).GetFatalNaks)
	if err != nil {
		m.log.Warn("who has refused a group's operation cannot be found out", "group", g.id, "error", err)
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, r := range f.Receivers {
		if fatal[r.Addr] == 0 {
			continue
		}
		why := fmt.Sprintf("%s: it has refused an operation (fatal NAK), as %s has counted", r.Host, m.tor.name)
		m.log.Warn("a receiver is suspected", "group", g.id, "host", r.Host, "why", why)
		m.tell(g, mcrdmav1.GroupChanged_TYPE_SUSPECTED, r.Addr, why)
		suspects = append(suspects, r.Addr)
	}
	return suspects
}

// answered returns how many answers show that a receiver is alive. One that asks for time
// (RNR NAK) is alive, and so is one that misses packets.
func answered(c *mcrdmav1.MemberCounters) uint64 {
	return c.GetAcks() + c.GetSequenceNaks() + c.GetRnrNaks()
}

// answers returns how many answers of each receiver, of the kinds that count, the switch
// has counted.
func (t *tor) answers(ctx context.Context, source netip.Addr, f *formation, count func(*mcrdmav1.MemberCounters) uint64) (map[netip.Addr]uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, t.m.times.install)
	defer cancel()
	select {
	case t.reads <- struct{}{}:
		defer func() { <-t.reads }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	var res *mcrdmav1.GetResponse
	err := t.call(ctx, func(ctx context.Context) (err error) {
		res, err = t.groups.Get(ctx, &mcrdmav1.GetRequest{Key: t.key(source, f.MCID), Counters: true})
		return err
	})
	if err != nil {
		return nil, err
	}
	out := map[netip.Addr]uint64{}
	members := res.GetGroup().GetMembers()
	for i, r := range res.GetGroup().GetGroup().GetReceivers() {
		a, err := netip.ParseAddr(r.GetAddress())
		if err != nil || i >= len(members) {
			continue
		}
		out[a] = count(members[i])
	}
	return out, nil
}
