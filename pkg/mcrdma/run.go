package mcrdma

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"syscall"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/pkg/mcrdma/internal/unicast"
)

// joinWithin is how long the connections of a formation may take.
const joinWithin = 5 * time.Second

// run is the group's goroutine, the runner.
func (g *Group) run(b *brought) {
	for {
		if g.ctx.Err() != nil { // closed with the Client, if not otherwise
			g.end(errClosing)
		}
		g.mu.Lock()
		j, until := g.life.next(time.Now())
		re := g.life.re
		g.mu.Unlock()
		switch j {
		case connecting:
			err := g.connect(b, re.next)
			g.step(func(l *life) { l.connected(err, time.Now()) })
		case viewing, pausing:
			g.wait(until)
		case beginning:
			g.carry(b)
		case blaming:
			suspects := g.reportStall(time.Since(g.tally.moved()), re.refused)
			g.step(func(l *life) { l.blamed(suspects) })
		case asking:
			b.close()
			var info *mcrdmav1.FormationInfo
			var err error
			re.suspects = append(slices.Clip(re.suspects), g.goneWithDaemon(&re)...)
			b, info, err = g.form(&re)
			g.step(func(l *life) {
				l.re.suspects = re.suspects
				l.answered(info, err, temporary(err), time.Now())
			})
		case ending:
			b.close()
			g.finishAll()
			return
		}
	}
}

// wait waits for any event, and if until is not zero, for that time.
func (g *Group) wait(until time.Time) {
	var late <-chan time.Time
	if !until.IsZero() {
		late = time.After(time.Until(until))
	}
	select {
	case <-g.news:
	case <-late:
	case <-g.ctx.Done():
	}
}

// carry begins the formation, and runs it until its end.
func (g *Group) carry(b *brought) {
	ctx, cut := context.WithCancelCause(g.ctx)
	defer cut(nil)
	g.mu.Lock()
	if g.life.state >= closing {
		g.mu.Unlock()
		return
	}
	path := b.path
	b.path = nil
	g.path, g.cut, g.phases = path, cut, b.phases
	first := g.life.state == forming
	g.life.begin()
	g.tally.move()
	g.post()
	g.perform()
	g.mu.Unlock()
	g.hand(nil)
	if first {
		close(g.begun)
	}
	err := path.run(ctx) // even if the group has ended by now: the connections must be closed
	g.halt()
	g.step(func(l *life) {
		if g.ctx.Err() != nil {
			l.stop(errClosing)
		}
		l.ended(err)
	})
	g.c.opt.Logger.Info("a formation has ended", "group", g.id, "cause", err)
}

// finishAll ends the group for all.
func (g *Group) finishAll() {
	g.mu.Lock()
	err := g.life.err
	g.life.finish()
	unicasts := g.unicasts
	g.unicasts = nil
	g.mu.Unlock()
	g.stop(err)
	g.hand(err)
	for _, u := range unicasts {
		u.stop(err)
	}
	g.c.closeGroup(g.id, err)
	forget(g.c, g.c.groups, g.id, g)
	g.step((*life).over)
	close(g.ended)
}

// temporary reports whether another try may help.
func temporary(err error) bool {
	return slices.ContainsFunc([]error{&Error{Reason: mcrdmav1.Reason_UNREACHABLE}, ErrTimeout, ErrNoSwitch, errStale, context.DeadlineExceeded},
		func(e error) bool { return errors.Is(err, e) })
}

// refuseWithin is enough for a host to refuse a connection.
const refuseWithin = 250 * time.Millisecond

// goneWithDaemon returns a member whose daemon did not answer for the formation, if its application does not run, either:
// then the group need not wait for the daemon. The application listens for unicast as long as its Client is open.
func (g *Group) goneWithDaemon(re *reforming) []string {
	e, ok := errors.AsType[*Error](re.cause)
	if !ok || e.Reason != mcrdmav1.Reason_UNREACHABLE || re.attempt&(re.attempt-1) != 0 { // ever more rarely: one that runs logs it
		return nil
	}
	i := slices.IndexFunc(re.members, func(m *mcrdmav1.Member) bool {
		return m.GetHost() == e.Host && len(m.GetUnicast()) > len(unicast.Secret{})
	})
	if i < 0 || slices.Contains(re.suspects, re.members[i].GetAddress()) {
		return nil
	}
	ctx, cancel := context.WithTimeout(g.ctx, refuseWithin) // a host that is silent must not delay the formation
	defer cancel()
	conn, err := g.c.opt.Dial(ctx, "tcp", string(re.members[i].GetUnicast()[len(unicast.Secret{}):]))
	if err == nil {
		_ = conn.Close()
	}
	if !errors.Is(err, syscall.ECONNREFUSED) {
		return nil
	}
	return []string{re.members[i].GetAddress()}
}

// form asks the daemon for a formation. With an error it returns, if known, the formation that the
// daemon made before.
func (g *Group) form(re *reforming) (*brought, *mcrdmav1.FormationInfo, error) {
	g.c.opt.Logger.Info("a group is formed anew", "group", g.id, "formation", re.failed, "attempt", re.attempt, "cause", re.cause, "suspects", re.suspects)
	b, err := g.bring(re.catchUp != nil)
	if err != nil {
		return nil, nil, err
	}
	c, req := g.c, re.request()
	req.Token, req.Group, req.Forming = c.token(), g.id.wire(), b.forming()
	resp, err := call(g.ctx, c, c.rpc.ReformGroup, req)
	if errors.Is(err, errStale) {
		// An answer was lost, and without it the formation cannot be used.
		now, e := call(g.ctx, c, c.rpc.ResumeGroup, &mcrdmav1.ResumeGroupRequest{Token: c.token(), Group: g.id.wire(), Formation: re.failed})
		if e == nil {
			return b, now.GetFormation(), err
		}
	}
	return b, resp.GetFormation(), err
}

// watch is called from time to time: it reports a stall to the daemon, if there is one. It
// returns the time after which there may be one.
func (g *Group) watch(now time.Time) (next time.Duration) {
	moved := g.tally.moved()
	g.mu.Lock()
	if g.path != nil {
		moved, g.life.usual = g.path.heard(now, moved)
	}
	next, stall := g.life.lookedAt(now, moved)
	g.perform()
	g.mu.Unlock()
	if stall {
		g.c.wg.Go(func() {
			if len(g.reportStall(now.Sub(moved), false)) > 0 {
				g.hurry()
			}
		})
	}
	return next
}

// hurry nudges while receivers are being removed: the switch goes on without them before the
// daemon's message about it arrives, which waits for disks.
func (g *Group) hurry() {
	for _, pause := range [maxNudges - 1]time.Duration{4 * time.Millisecond, 4 * time.Millisecond, 8 * time.Millisecond} {
		select {
		case <-time.After(pause):
		case <-g.ctx.Done():
			return
		}
		g.mu.Lock()
		g.nudge()
		g.mu.Unlock()
	}
}

// reportStall tells the daemon that nothing completes, or that a receiver has refused
// something, and returns which receivers the daemon suspects.
func (g *Group) reportStall(since time.Duration, refused bool) []string {
	g.mu.Lock()
	if !refused {
		g.life.stats.Stalls++
	}
	formation := g.life.info.GetFormation()
	g.mu.Unlock()
	ctx, cancel := context.WithTimeout(g.ctx, goodbye)
	defer cancel()
	resp, err := g.c.rpc.ReportStall(ctx, &mcrdmav1.ReportStallRequest{
		Token: g.c.token(), Group: g.id.wire(), Formation: formation, Since: durationpb.New(since), Refused: refused,
	})
	if err != nil {
		g.c.opt.Logger.Debug("report a stall", "group", g.id, "error", err)
	}
	return resp.GetSuspects()
}

// resume tells a daemon that has come back that the group is still there. It returns the
// call's error.
func (g *Group) resume(ctx context.Context) error {
	g.mu.Lock()
	formation := g.life.info.GetFormation()
	g.mu.Unlock()
	resp, err := g.c.rpc.ResumeGroup(ctx, &mcrdmav1.ResumeGroupRequest{Token: g.c.token(), Group: g.id.wire(), Formation: formation})
	switch {
	case lost(err):
	case err != nil:
		g.end(fmt.Errorf("the daemon could not be reached, and does not resume the group: %w", fromStatus(err)))
	default:
		g.step(func(l *life) { l.resumed(resp.GetFormation()) })
	}
	return err
}

// watch checks for stalled groups every lookAfter, and earlier when one may be stalled.
func (c *Client) watch() {
	timer := time.NewTimer(lookAfter)
	defer timer.Stop()
	var groups []*Group
	for {
		select {
		case <-c.ctx.Done():
			return
		case now := <-timer.C:
			c.mu.Lock()
			groups = slices.AppendSeq(groups[:0], maps.Values(c.groups))
			c.mu.Unlock()
			next := lookAfter
			for _, g := range groups {
				next = min(next, g.watch(now))
			}
			timer.Reset(max(next, time.Millisecond))
		}
	}
}

// lookAfter is the longest time between two checks. A group with a shorter patience is
// checked more often from the first check on.
const lookAfter = 50 * time.Millisecond
