package connmgr

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/internal/failure"
	machine "github.com/mcrdma/mcrdma/internal/group"
	"github.com/mcrdma/mcrdma/pkg/qp"
)

// maxFruitlessGraces is the number of graces without progress after which a group is re-formed
// although all receivers answer: one of them may be repeating the same answer.
const maxFruitlessGraces = 3

// longestPause is how many ACK timeouts of a group's queue pair the longest pause between two checks
// for a receiver to blame takes.
const longestPause = 4

// stallChecks are the checks for receivers that stall a formation. One of each kind runs at a time,
// and callers that report a stall meanwhile share its result.
type stallChecks struct {
	flights singleflight.Group
	again   time.Time     // when to read the switch again; of the check of a stall
	pause   time.Duration // after the last check that found no receiver to blame
	last    *machine.Stall

	mu       sync.Mutex
	reported time.Time // when the last report came
	stalled  time.Time // since when, by that
	first    *finding  // what a check of a stall finds first; nil: no caller waits
}

// A finding is some of the receivers to blame, while the check for others goes on.
type finding struct {
	made     chan struct{} // closed then; nil: never
	suspects []netip.Addr
}

// awaited returns the next finding.
func (l *stallChecks) awaited() *finding {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.first == nil {
		l.first = &finding{made: make(chan struct{})}
	}
	return l.first
}

// found tells those who wait.
func (l *stallChecks) found(suspects []netip.Addr) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.first != nil {
		l.first.suspects = suspects
		close(l.first.made)
		l.first = nil
	}
}

// report handles a report that nothing was acknowledged for since.
func (l *stallChecks) report(since time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.reported = time.Now()
	l.stalled = l.reported.Add(-since)
}

// stillStalled reports whether the sender has reported since then that the stall continues.
func (l *stallChecks) stillStalled(since time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.reported.After(since) && !l.stalled.After(since)
}

// stalled finds the receivers to blame if nothing is acknowledged, and removes them. It returns the
// first that are found, or are being removed, at once. Meanwhile others are looked for: without their
// daemons a removal waits.
func (m *Manager) stalled(ctx context.Context, g *group, req *mcrdmav1.ReportStallRequest) (*mcrdmav1.ReportStallResponse, error) {
	l := g.checks.Load() // before the formation: they must not be the next one's
	f := g.form()
	if !req.GetRefused() {
		l.report(req.GetSince().AsDuration())
	}
	if f == nil || f.N != req.GetFormation() {
		return nil, failure.New(mcrdmav1.Reason_STALE, "group %v is not at formation %d", g.id, req.GetFormation())
	}
	var lost []netip.Addr
	kind, look := "refusal", func() []netip.Addr { return m.refusers(g, f) }
	first, done := &finding{}, make(chan []netip.Addr, 1) // a check for refusals finds all together
	if !req.GetRefused() {
		lost, first = g.status.Load().Lost, l.awaited()
		kind, look = "stall", func() []netip.Addr { return m.findStalled(g, f, l, req.GetSince().AsDuration()) }
	}
	m.background(func(context.Context) { // it continues for other callers if this one leaves
		suspects, _, _ := l.flights.Do(kind, func() (any, error) { return look(), nil })
		done <- suspects.([]netip.Addr)
	})
	if len(lost) == 0 {
		select {
		case lost = <-done:
		case <-first.made:
			lost = first.suspects
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	res := &mcrdmav1.ReportStallResponse{}
	for _, a := range lost {
		res.Suspects = append(res.Suspects, a.String())
	}
	return res, nil
}

// findStalled finds the receivers that do not answer and are not being removed, and removes them.
// Nothing has been acknowledged for since.
func (m *Manager) findStalled(g *group, f *formation, l *stallChecks, since time.Duration) (suspects []netip.Addr) {
	begun, f := time.Now(), without(f, g.status.Load().Lost)
	switched := f.Path == mcrdmav1.Path_PATH_SWITCH && m.tor != nil // a switch sees answers of applications, too
	if suspects = m.blame(g, f, false); !switched {
		return suspects
	}
	pause := m.peers.patient(fruitless(m.cfg.Beat.DeadAfter, qp.AckTimeout(g.timeout)), f.Addrs()...) / machine.LooksEach
	if len(suspects) > 0 {
		l.found(suspects)
	} else if err := m.waitForSuspects(g, f, time.Until(l.again)); err != nil {
		return nil
	}
	silent, still, alive, err := m.compare(g, without(f, suspects), l, since, pause)
	suspects = slices.Concat(suspects, silent)
	if err != nil && g.ctx.Err() == nil {
		m.log.Warn("who stalls a group cannot be found out from the switch", "group", g.id, "error", err)
	}
	none := len(suspects)+len(still) == 0
	l.backOff(none, qp.AckTimeout(g.timeout))
	m.mu.Lock()
	defer m.mu.Unlock()
	if now := g.form(); now == nil || now.N != f.N {
		return nil
	}
	if none && alive && since >= maxFruitlessGraces*m.cfg.Beat.Grace {
		text := fmt.Sprintf("nothing was completed for %v, and all receivers answer", since.Round(time.Second))
		g.post(func(s *machine.Sender, now time.Time) { s.Stuck(f.N, text, now) })
	}
	for _, a := range still {
		suspects = append(suspects, a)
		why := "and the others do"
		if !alive {
			why = "and asks for time (RNR NAK)"
		}
		m.lose(g, a, "stalled", fmt.Sprintf("it acknowledges nothing, %s (for %v)", why, (since+time.Since(begun)).Round(time.Millisecond)))
	}
	return suspects
}

// backOff delays the next check after one that found no receiver to blame: the group is slow, not
// stalled, and so may be the switch and its agent.
func (l *stallChecks) backOff(none bool, timeout time.Duration) {
	now := time.Now()
	if !none || now.Sub(l.again) > l.pause {
		l.pause = 0
	}
	if none {
		l.pause = min(max(2*l.pause, timeout), longestPause*timeout)
	}
	l.again = now.Add(l.pause)
}

// without returns a formation without some receivers.
func without(f *formation, lost []netip.Addr) *formation {
	rest := *f
	rest.Receivers = slices.DeleteFunc(slices.Clone(f.Receivers), func(r machine.Receiver) bool { return slices.Contains(lost, r.Addr) })
	return &rest
}

// blame removes the receivers that do not answer beats either, and returns these and others that are being removed.
func (m *Manager) blame(g *group, f *formation, down bool) (suspects []netip.Addr) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	for _, c := range m.peers.blame(f.Addrs(), now, down) {
		suspects = append(suspects, c.Addr)
		m.act(c)
	}
	for _, a := range g.status.Load().Lost {
		if f.Has(a) && !slices.Contains(suspects, a) {
			suspects = append(suspects, a)
		}
	}
	return suspects
}

// waitForSuspects waits for d, or until receivers that do not answer beats are to blame. It fails
// if the group ends.
func (m *Manager) waitForSuspects(g *group, f *formation, d time.Duration) error {
	for end := time.Now().Add(d); ; {
		now := time.Now()
		there, next := m.peers.suspected(f.Addrs(), now)
		left := end.Sub(now)
		if left <= 0 || there {
			return nil
		}
		select {
		case <-time.After(min(left, next)):
		case <-g.ctx.Done():
			return g.ctx.Err()
		}
	}
}

// compare finds the receivers that are still, by what the switch counts (see machine.Stall).
// Meanwhile it keeps checking for receivers that do not answer beats; it goes on without such
// suspects. alive reports that the switch counts answers of some receiver.
//
// Each pause counts with its planned length, whatever its real one, so that delays of this daemon,
// the agent and the switch do not count. A host whose answers in another group the switch has counted
// meanwhile, or shortly before, is slow, not frozen, until a grace has passed without progress. A check
// that would end with such hosts only, or before the sender says that it still waits, goes on for a while.
func (m *Manager) compare(g *group, f *formation, l *stallChecks, since, pause time.Duration) (suspects, still []netip.Addr, alive bool, err error) {
	begun, long := time.Now(), since >= m.cfg.Beat.Grace
	c, err := m.tor.Counts(g.ctx, f.MCID)
	if err != nil {
		return nil, nil, false, err
	}
	stall := l.last.Resume(f, long, c)
	l.last = stall
	blamed := func() []netip.Addr { // by now
		switch {
		case !l.stillStalled(begun):
			return nil
		case long:
			return stall.Blame()
		}
		// Other groups are looked at as rarely as this.
		return m.peers.withoutAnswers(g.id, stall.Blame(), begun.Add(-longestPause*qp.AckTimeout(g.timeout)-pause))
	}
	for looks := 0; ; looks++ {
		if stall.Over() {
			if still = blamed(); len(still) > 0 || len(stall.Blame()) == 0 || looks >= machine.LooksEach {
				break
			}
		}
		if err := m.waitForSuspects(g, f, pause); err != nil {
			return suspects, nil, stall.Alive(), err
		}
		if c, err = m.tor.Counts(g.ctx, f.MCID); err != nil {
			return suspects, nil, stall.Alive(), err
		}
		m.peers.noteAnswers(g.id, stall.Look(c), time.Now())
		if len(stall.Still()) == 0 {
			return suspects, nil, true, nil
		}
		if silent := m.blame(g, f, false); len(silent) > 0 {
			l.found(silent)
			suspects, f = append(suspects, silent...), without(f, silent)
			stall.Without(silent)
		}
	}
	if stall.Unheard() && len(still) == 0 {
		suspects = append(suspects, m.blame(g, f, true)...)
	}
	return suspects, still, stall.Alive(), nil
}

// fruitless is how long a receiver must fail to answer while others do, to be removed: a quarter of
// the time after which a silent host counts as dead, and two retransmissions, because one may be
// lost.
func fruitless(deadAfter, timeout time.Duration) time.Duration {
	return max(deadAfter/4, 2*timeout+timeout/8)
}

// refusers returns the receivers of which the switch has counted fatal NAKs. They are not removed
// for that: the next formation may work for them.
func (m *Manager) refusers(g *group, f *formation) (suspects []netip.Addr) {
	if f.Path != mcrdmav1.Path_PATH_SWITCH || m.tor == nil {
		return nil
	}
	c, err := m.tor.Counts(g.ctx, f.MCID)
	if err != nil {
		m.log.Warn("who has refused a group's operation cannot be found out", "group", g.id, "error", err)
		return nil
	}
	for _, r := range f.Receivers {
		if c.Answers[r.Addr].FatalNAKs == 0 {
			continue
		}
		why := fmt.Sprintf("it has refused an operation (fatal NAK), as %s has counted", m.tor.Name)
		m.log.Warn("a receiver is suspected", "group", g.id, "host", r.Host, "why", why)
		g.noticed(f, mcrdmav1.GroupChanged_TYPE_SUSPECTED, "suspected", &r, why)
		suspects = append(suspects, r.Addr)
	}
	return suspects
}
