package connmgr

import (
	"context"
	"errors"
	"hash/maphash"
	"net/netip"
	"slices"
	"syscall"
	"time"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/internal/failure"
	"github.com/mcrdma/mcrdma/internal/identity"
)

// maxBeats bounds the beats in flight to a host. There are several because TCP detects a lost
// packet at once if later ones arrive, and otherwise only after a timeout that doubles.
const maxBeats = 256

// beat sends a beat to each host that has receivers of this host's groups, unless that host's
// daemon beats for both, and to those that wait for an answer. It names the groups if the host does
// not know their list yet. Hosts that no longer have receivers are not followed any more.
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
	m.peers.keep(lists)
	for a, list := range lists {
		p, known := m.peers.beginBeat(a, list, now)
		if p == nil {
			continue
		}
		req := &mcrdmav1.BeatRequest{Boot: m.boot, List: list}
		if !known {
			req.Groups = m.heartbeats(a)
		}
		m.background(func(ctx context.Context) { m.beatOne(ctx, p, req) })
	}
}

// A beatOf is a group's entry in a beat. A list is numbered by the sum of its entries' hashes.
type beatOf struct {
	id        groupID
	formation uint32
}

// heartbeats returns all groups in which a host has receivers. It is called with Manager.mu.
func (m *Manager) heartbeats(a netip.Addr) (list []*mcrdmav1.Heartbeat) {
	for _, g := range m.groups {
		if f := g.form(); f.Has(a) {
			list = append(list, &mcrdmav1.Heartbeat{Group: g.id.proto(), Formation: f.N, Address: a.String()})
		}
	}
	return list
}

// beatOne sends one beat. A failure may be reported late, because only silence counts.
func (m *Manager) beatOne(ctx context.Context, p *peer, req *mcrdmav1.BeatRequest) {
	ctx, cancel := context.WithTimeout(ctx, m.cfg.Beat.DeadAfter)
	defer cancel()
	if theirs, ok := p.takeTheirs(); ok {
		req.Heard = theirs.GetNumber()
		req.Answer = m.members.answerBeat(m.members.lists.of(p.addr, theirs.GetBoot(), theirs.GetOwn()))
		req.Answer.Busy = m.opts.Busy(time.Now())
	}
	begun := time.Now()
	res, err := p.rpc.Beat(undated{ctx}, req)
	trip := time.Since(begun)
	p.endBeat(res, trip, p.explain(ctx, err))
	if err == nil {
		m.removeEnded(p, res)
	}
}

// sendNews tells a sender's daemon which memberships have ended here, without waiting for its beat.
// If the message is lost, the answer to its next beat says so.
func (m *Manager) sendNews(ctx context.Context, to netip.Addr, news []*mcrdmav1.Gone) {
	ctx, cancel := context.WithTimeout(ctx, m.cfg.Beat.DeadAfter)
	defer cancel()
	_, _ = askHost(ctx, m.peers, to, mcrdmav1.HostsClient.Beat, &mcrdmav1.BeatRequest{Boot: m.boot, Answer: &mcrdmav1.BeatResponse{Gone: news}})
}

// An undated context hides its deadline, which gRPC would send with each beat, each time with other
// bytes.
type undated struct{ context.Context }

// Deadline implements context.Context.
func (undated) Deadline() (t time.Time, ok bool) { return t, false }

// A sharing is the state of two daemons, each with receivers of the other's groups, of which the
// one with the lower address beats for both. Its beat carries the answer to the other's beat, which
// came in that one's latest answer. It is under peers.mu.
type sharing struct {
	own   uint64 // the list of this host's groups
	ownAt time.Time

	theirs *mcrdmav1.BeatResponse // the latest beat of a daemon for which this one beats; nil: answered

	number  uint64 // of the latest answer that was a beat, to a daemon that beats for this one
	heard   uint64 // up to which it has answered
	heardAt time.Time
}

// share handles the answer to this daemon's beat that another daemon's beat may carry, and returns
// the number of this daemon's next beat; 0: there is none.
func (m *Manager) share(who identity.Identity, req *mcrdmav1.BeatRequest) (own, number uint64) {
	now := time.Now()
	p := m.peers.answered(who, req, now)
	if p == nil {
		return 0, 0
	}
	m.removeEnded(p, req.GetAnswer()) // including news that answers no beat
	if !p.addr.Less(m.cfg.Address) {
		return 0, 0
	}
	return p.shareOwn(now, 2*m.cfg.Beat.Interval)
}

// answered handles an answer in another daemon's beat. Only an answer to a later beat than before
// proves that the other daemon hears this one.
func (t *peers) answered(who identity.Identity, req *mcrdmav1.BeatRequest, now time.Time) *peer {
	t.mu.Lock()
	defer t.mu.Unlock()
	i := slices.IndexFunc(who.Addrs, t.health.Follows)
	if i < 0 || t.at[who.Addrs[i]] == nil {
		return nil
	}
	p := t.at[who.Addrs[i]]
	s := &p.sharing
	if req.GetAnswer() != nil && s.heard < req.GetHeard() && req.GetHeard() <= s.number {
		s.heard, s.heardAt = req.GetHeard(), now
		p.err = nil
		p.heardOf(req.GetAnswer(), now)
	}
	return p
}

// shareOwn returns this daemon's beat, which may be slightly out of date.
func (p *peer) shareOwn(now time.Time, most time.Duration) (own, number uint64) {
	p.of.mu.Lock()
	defer p.of.mu.Unlock()
	s := &p.sharing
	if s.own == 0 || now.Sub(s.ownAt) > most {
		return 0, 0
	}
	s.number++
	return s.own, s.number
}

// takeTheirs returns the beat that came with the latest answer, once.
func (p *peer) takeTheirs() (theirs *mcrdmav1.BeatResponse, ok bool) {
	p.of.mu.Lock()
	defer p.of.mu.Unlock()
	theirs, p.theirs = p.theirs, nil
	return theirs, theirs != nil
}

// beginBeat counts a beat that is about to be sent, and reports whether the host knows the list of
// groups. nil: there is no such peer, it beats for both, or too many beats are in flight.
func (t *peers) beginBeat(a netip.Addr, list uint64, now time.Time) (p *peer, known bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if p = t.at[a]; p == nil || p.beats == maxBeats {
		return nil, false
	}
	p.own, p.ownAt = list, now
	known = list != 0 && p.list == list
	if known && now.Sub(p.heardAt) < t.interval*3/2 {
		return nil, false
	}
	p.beats++
	p.users++
	return p, known
}

// endBeat handles the outcome of a beat.
func (p *peer) endBeat(res *mcrdmav1.BeatResponse, trip time.Duration, err error) {
	t := p.of
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now()
	p.beats--
	p.err = err
	p.users--
	p.idle = now
	switch refused := errors.Is(p.conn.Last(), syscall.ECONNREFUSED); {
	case err == nil:
		p.trip = trip
		p.heardOf(res, now)
		if res.GetOwn() != 0 {
			p.theirs = res
		}
	case failure.Is(err, mcrdmav1.Reason_UNREACHABLE) && refused, failure.Is(err, mcrdmav1.Reason_UNTRUSTED): // the host is there
		t.metrics.beats.WithLabelValues("refused").Inc()
		t.health.Refused(p.addr, now)
	default:
		t.metrics.beats.WithLabelValues("failed").Inc()
	}
}

// heardOf records an answer. It is called with peers.mu.
func (p *peer) heardOf(res *mcrdmav1.BeatResponse, now time.Time) {
	t := p.of
	t.metrics.beats.WithLabelValues("ok").Inc()
	p.list = res.GetList()
	t.health.Answered(p.addr, now)
	t.health.Busy(p.addr, res.GetBusy())
}

// removeEnded removes the receivers that have ended according to a beat's answer.
func (m *Manager) removeEnded(p *peer, res *mcrdmav1.BeatResponse) {
	if len(res.GetGone()) == 0 {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, x := range res.GetGone() {
		id, err := groupIDFrom(x.GetGroup())
		if err != nil || x.GetAddress() != p.addr.String() {
			continue
		}
		if g := m.groups[id]; g != nil {
			if f := g.form(); f.Has(p.addr) && f.N == x.GetFormation() {
				m.lose(g, p.addr, "left", failure.Clip(x.GetReason(), failure.MaxText))
			}
		}
	}
}
