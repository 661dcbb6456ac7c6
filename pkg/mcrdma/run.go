package mcrdma

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/pkg/qp"
)

const (
	// stallAfter is the longest time in which nothing may complete before the daemon is
	// told.
	stallAfter = 500 * time.Millisecond
	// maxFruitless limits how many formations in a row are made without one operation
	// completing, and how many times one is tried.
	maxFruitless = 10
	// joinWithin is how long the connections of a formation may take.
	joinWithin = 5 * time.Second
)

// A formationError is why a formation failed.
type formationError struct {
	suspects []string // addresses
	blame    bool     // a receiver is to blame: the daemon may know which
	refused  bool     // … and has refused something
	err      error
}

func (e *formationError) Error() string { return e.err.Error() }
func (e *formationError) Unwrap() error { return e.err }

// begin begins the next formation: the operations that all members have already, as their
// count of messages says, are complete, and the others are posted. It returns the
// formation's context.
//
// add are the receivers that any attempt at this formation added. For the first formation,
// before is nil and add is empty.
func (g *Group) begin(before []*mcrdmav1.Member, asked, add []string) context.Context {
	ctx, cut := context.WithCancelCause(g.ctx)
	g.mu.Lock()
	g.info, g.path, g.steps, g.cut = g.next.info, g.next.path, g.next.steps, cut
	g.stats.Formations++
	early := g.early
	g.early = nil
	if before != nil && allNew(g.info.GetMembers(), before, add) {
		g.queue.renumber(g.info.GetHave())
	}
	if g.next.catchUp {
		g.queue.catchUp(most(g.info))
	}
	g.take(g.queue.had(g.info.GetHave()))
	g.lacks.began = g.stats.Completed
	g.path.post()
	var added []Event
	if before != nil {
		added = g.joined(before, asked, add, g.stats.Completed)
	}
	g.mu.Unlock()
	g.tell(added)
	g.hand(nil)
	g.checkDrained()
	for _, e := range early {
		g.changed(e)
	}
	return ctx
}

// run is the group's goroutine.
func (g *Group) run(ctx context.Context) {
	for {
		g.mu.Lock()
		path := g.path
		g.mu.Unlock()
		err := path.run(ctx)
		g.halt()
		g.mu.Lock()
		g.cut(nil)
		g.queue.rewind()
		g.lacks.ended = g.stats.Completed
		g.mu.Unlock()
		if g.ctx.Err() == nil {
			if ctx, err = g.reform(err); err == nil {
				continue // even if the group has ended by now: the new connections must be closed
			}
		}
		if g.ctx.Err() != nil {
			err = context.Cause(g.ctx)
			if errors.Is(err, context.Canceled) {
				err = errClosing // closed with the Client
			}
		}
		g.end(err)
		return
	}
}

// halt stops posting.
func (g *Group) halt() {
	g.mu.Lock()
	g.path = nil
	g.mu.Unlock()
}

// fail ends the present formation. g.mu is held.
func (g *Group) fail(err error) {
	if g.cut != nil {
		g.cut(err)
	}
}

// end ends the group.
func (g *Group) end(err error) {
	g.stop(err)
	g.mu.Lock()
	g.err = err
	g.batch = g.batch[:0]
	for g.queue.ops.len() > 0 {
		g.batch = append(g.batch, g.queue.pop())
	}
	formation := g.info.GetFormation()
	g.mu.Unlock()
	g.hand(err)
	g.c.closeGroup(g.id)
	g.c.mu.Lock()
	delete(g.c.groups, g.id)
	g.c.mu.Unlock()
	g.tellMissing(time.Now())
	e := Event{Type: Failed, Text: err.Error(), Formation: formation}
	if errors.Is(err, ErrClosed) {
		e.Type = Closed
	}
	g.events.put(e, true)
	close(g.over)
}

// reform forms the group anew, after a formation has failed because of cause.
func (g *Group) reform(cause error) (context.Context, error) {
	g.mu.Lock()
	before := g.info
	idle := g.queue.ops.len() == 0
	g.mu.Unlock()
	if g.fruitless++; idle {
		g.fruitless = 0
	}
	if g.fruitless > maxFruitless {
		return nil, fmt.Errorf("%w: nothing was completed in %d formations in a row, the last ended so: %w", ErrFailed, maxFruitless, cause)
	}
	suspects := g.suspects(cause)
	failed, members := before.GetFormation(), before.GetMembers()
	g.c.opt.Logger.Info("a formation has failed", "group", g.id, "formation", failed, "cause", cause, "suspects", suspects)
	var added []string // by any attempt: what a member had before it left does not count
	for attempt := 0; ; attempt++ {
		if attempt == maxFruitless {
			return nil, fmt.Errorf("%w: it can't be formed anew: %w", ErrFailed, cause)
		}
		if !g.pause(attempt) {
			return nil, context.Cause(g.ctx)
		}
		asked := g.wanted()
		add := slices.DeleteFunc(slices.Clone(asked), func(r string) bool { return among(members, r) })
		added = append(added, add...)
		info, err := g.form(failed, suspects, add, cause, false)
		if err == nil {
			return g.formed(before, asked, added, cause), nil
		}
		g.c.opt.Logger.Info("a group can't be formed anew", "group", g.id, "attempt", attempt, "error", err)
		if info != nil {
			failed, members = info.GetFormation(), info.GetMembers()
		}
		if info == nil && !temporary(err) {
			if len(add) == 0 {
				return nil, err
			}
			g.refused(asked, err)
		}
		cause = err
	}
}

// pause waits before a further attempt, and returns false if the group has ended.
func (g *Group) pause(attempt int) bool {
	if attempt == 0 {
		return g.ctx.Err() == nil
	}
	timer := time.NewTimer(min(10*time.Millisecond<<attempt, time.Second))
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-g.ctx.Done():
		return false
	}
}

// temporary reports whether another try may help.
func temporary(err error) bool {
	for _, e := range []error{ErrUnreachable, ErrTimeout, ErrNoSwitch, errStale, context.DeadlineExceeded} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// suspects returns the receivers to blame for a failure.
func (g *Group) suspects(cause error) []string {
	var f *formationError
	if !errors.As(cause, &f) {
		return nil
	}
	if !f.blame {
		return f.suspects
	}
	return append(f.suspects, g.reportStall(time.Since(time.Unix(0, g.moved.Load())), f.refused)...)
}

// errCatchUp and errCaughtUp are why formations without a fault end.
var (
	errCatchUp  = errors.New("some receivers lack WRITEs that others were told of: hosts relay these first")
	errCaughtUp = errors.New("all receivers have what some of them were told of")
)

// most returns the largest number of messages that any member has.
func most(info *mcrdmav1.FormationInfo) (n uint64) {
	for _, m := range info.GetMembers() {
		n = max(n, m.GetHave())
	}
	return n
}

// form makes one formation. If there is a formation that can't be used, it is returned with
// the error. A formation in which switches would write again what some receivers were told
// of, and so show them older bytes, is not used: hosts relay until the others have caught
// up, because hosts skip what they have.
func (g *Group) form(failed uint32, suspects, add []string, cause error, catchUp bool) (*mcrdmav1.FormationInfo, error) {
	b, err := g.bring(catchUp)
	if err != nil {
		return nil, err
	}
	c := g.c
	resp, err := call(g.ctx, c, c.rpc.ReformGroup, &mcrdmav1.ReformGroupRequest{
		Token: c.token(), Group: g.id.wire(), Formation: failed, Forming: b.forming(), Suspects: suspects, Add: add, Reason: cause.Error(),
	})
	if err != nil {
		b.close()
		if errors.Is(err, errStale) {
			// An answer was lost: its formation can't be used without it.
			now, e := call(g.ctx, c, c.rpc.ResumeGroup, &mcrdmav1.ResumeGroupRequest{Token: c.token(), Group: g.id.wire(), Formation: failed})
			if e == nil {
				return now.GetFormation(), err
			}
		}
		return nil, err
	}
	info := resp.GetFormation()
	if err := g.canSkip(info.GetHave()); err != nil {
		b.close()
		return nil, err
	}
	g.mu.Lock()
	stepsBack := Path(info.GetPath()) == PathSwitch && g.queue.stepsBack(info.GetHave(), most(info))
	g.mu.Unlock()
	switch {
	case stepsBack && catchUp:
		b.close()
		return info, fmt.Errorf("%w: it does not let hosts relay, and some receivers lack what others were told of", ErrDaemon)
	case stepsBack:
		b.close()
		next, err := g.form(info.GetFormation(), nil, nil, errCatchUp, true)
		return cmp.Or(next, info), err
	}
	ctx, cancel := context.WithTimeout(g.ctx, joinWithin)
	defer cancel()
	return info, g.connect(ctx, b, info)
}

// canSkip reports whether the group can go on after the messages that all members have,
// according to the daemon.
func (g *Group) canSkip(have uint64) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if before := g.queue.before(g.queue.had(have)); have != before {
		return fmt.Errorf("%w: the daemon says that receivers have %d messages; %d are complete and %d were sent",
			ErrFailed, have, g.queue.before(0), g.queue.sent())
	}
	return nil
}

// formed announces a new formation, and begins it.
func (g *Group) formed(before *mcrdmav1.FormationInfo, asked, added []string, cause error) context.Context {
	info := g.next.info
	g.mu.Lock()
	g.lostMembers(before.GetMembers(), info, "it is not in the new formation")
	g.mu.Unlock()
	ctx := g.begin(before.GetMembers(), asked, added)
	g.events.put(Event{Type: Reformed, Formation: info.GetFormation(), Before: Path(before.GetPath()), After: Path(info.GetPath()),
		Text: cause.Error()}, false)
	return ctx
}

// A missing is a member that isn't in a formation any more. The daemon says why in an
// event, which may come later than the formation.
type missing struct {
	member *mcrdmav1.Member
	since  time.Time
	text   string
}

// reasonWithin is how long to wait for the daemon's reason.
const reasonWithin = 300 * time.Millisecond

// lostMembers records which receivers are no longer members. g.mu is held.
func (g *Group) lostMembers(before []*mcrdmav1.Member, after *mcrdmav1.FormationInfo, text string) {
	for _, m := range before {
		if !slices.ContainsFunc(after.GetMembers(), func(o *mcrdmav1.Member) bool { return o.GetAddress() == m.GetAddress() }) {
			g.missing = append(g.missing, missing{m, time.Now(), text})
			g.lacking(m.GetAddress(), after)
		}
	}
}

// lacking records from which operation on a member may lack some, now that there is another
// formation, or the same without it. g.mu is held.
func (g *Group) lacking(address string, after *mcrdmav1.FormationInfo) {
	var departed int64
	for _, d := range after.GetDepartures() {
		if d.GetAddress() == address {
			departed = since(d.GetSince(), d.GetClock())
		}
	}
	if departed == 0 && after.GetFormation() == g.info.GetFormation() {
		departed = longAgo // the daemon does not say when
	}
	g.lacks.out(address, departed)
}

// tellMissing tells the application which members have been missing since then.
func (g *Group) tellMissing(since time.Time) {
	for {
		g.mu.Lock()
		if len(g.missing) == 0 || g.missing[0].since.After(since) {
			g.mu.Unlock()
			return
		}
		m := g.missing[0]
		g.missing = g.missing[1:]
		e := g.removal(m.member.GetAddress(), m.member.GetHost(), m.text)
		g.mu.Unlock()
		g.tell(e)
	}
}

// removal returns the events for a member that was taken out: none, if the application
// knows. g.mu is held.
func (g *Group) removal(address, host, text string) []Event {
	if g.removed[address] {
		return nil
	}
	g.removed[address] = true
	return []Event{{Type: Removed, Address: address, Host: host, Text: text, Formation: g.info.GetFormation(), Operation: g.lacks.first[address]}}
}

func (g *Group) tell(list []Event) {
	for _, e := range list {
		g.events.put(e, false)
	}
}

// changed takes an event of the daemon. An event about a formation that isn't there yet
// waits for it.
func (g *Group) changed(e *mcrdmav1.GroupChanged) {
	g.mu.Lock()
	if e.GetFormation() > g.info.GetFormation() && e.GetType() != mcrdmav1.GroupChanged_TYPE_FAILED {
		g.early = append(g.early, e)
		g.mu.Unlock()
		return
	}
	current := e.GetFormation() == g.info.GetFormation()
	var out []Event
	switch e.GetType() {
	case mcrdmav1.GroupChanged_TYPE_REMOVED:
		if current {
			g.lacks.out(e.GetAddress(), since(cmp.Or(e.GetSince(), longAgo), e.GetClock()))
			// Other goroutines hold the old one.
			info := proto.CloneOf(g.info)
			info.Members = slices.DeleteFunc(info.Members, func(m *mcrdmav1.Member) bool {
				return m.GetAddress() == e.GetAddress()
			})
			g.info = info
			g.nudge()
		}
		if !among(g.info.GetMembers(), e.GetAddress()) { // otherwise it was removed before it was added
			out = g.removal(e.GetAddress(), e.GetHost(), e.GetText())
		}
	case mcrdmav1.GroupChanged_TYPE_REFORM:
		if current {
			g.fail(&formationError{err: errors.New(e.GetText())})
		}
	case mcrdmav1.GroupChanged_TYPE_FAILED:
		g.stop(fmt.Errorf("%w: %s", ErrMinSize, e.GetText()))
	case mcrdmav1.GroupChanged_TYPE_SUSPECTED, mcrdmav1.GroupChanged_TYPE_RECOVERED, mcrdmav1.GroupChanged_TYPE_ROUTE:
		out = []Event{{Type: passedOn[e.GetType()], Address: e.GetAddress(), Host: e.GetHost(), Text: e.GetText(), Formation: e.GetFormation()}}
	}
	g.mu.Unlock()
	g.tell(out)
}

// passedOn are the events of the daemon that concern only the application.
var passedOn = map[mcrdmav1.GroupChanged_Type]EventType{
	mcrdmav1.GroupChanged_TYPE_SUSPECTED: Suspected, mcrdmav1.GroupChanged_TYPE_RECOVERED: Recovered, mcrdmav1.GroupChanged_TYPE_ROUTE: Route,
}

// nudge speeds up operations that waited for a member that is out. g.mu is held.
func (g *Group) nudge() {
	if s, ok := g.path.(*switched); ok {
		s.nudge()
	}
}

// watch is called from time to time: it reports a stall to the daemon, if there is one. It
// returns the time after which there may be one.
func (g *Group) watch(now time.Time) (next time.Duration) {
	g.mu.Lock()
	since := now.Sub(time.Unix(0, g.moved.Load()))
	patience := g.patience()
	waits := g.path != nil && g.queue.posted > 0
	next = patience
	if waits {
		next = patience - min(since, now.Sub(g.stalled))
	}
	stall := waits && next <= 0
	if stall {
		g.stalled, next = now, patience
	}
	g.mu.Unlock()
	if stall {
		g.c.wg.Go(func() {
			if len(g.reportStall(since, false)) > 0 {
				g.hurry()
			}
		})
	}
	g.tellMissing(now.Add(-reasonWithin))
	return next
}

// hurry nudges while the receivers to blame are being taken out: the switch goes on without
// them first, and the daemons' message about it has to wait for disks.
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

// patience returns how long nothing may complete before the daemon is told: a timeout of
// the queue pair, if there is one, and time for an answer to the retransmission. g.mu is
// held.
func (g *Group) patience() time.Duration {
	if c := g.info.GetConnection(); c != nil {
		t := qp.AckTimeout(timeoutOf(c))
		return min(stallAfter, t+t/32)
	}
	return stallAfter
}

// reportStall tells the daemon that nothing completes, or that a receiver has refused
// something, and returns which receivers the daemon suspects.
func (g *Group) reportStall(since time.Duration, refused bool) []string {
	g.mu.Lock()
	if !refused {
		g.stats.Stalls++
	}
	formation := g.info.GetFormation()
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

// resume tells a daemon that has come back that the group is still there. It returns false
// if the daemon is gone again.
func (g *Group) resume(ctx context.Context) bool {
	g.mu.Lock()
	before := g.info
	g.mu.Unlock()
	resp, err := g.c.rpc.ResumeGroup(ctx, &mcrdmav1.ResumeGroupRequest{Token: g.c.token(), Group: g.id.wire(), Formation: before.GetFormation()})
	if lost(err) {
		return false
	}
	if err != nil {
		g.stop(fmt.Errorf("the daemon was gone, and does not take the group up again: %w", fromStatus(err)))
		return true
	}
	after := resp.GetFormation()
	g.mu.Lock()
	same := g.info.GetFormation() == after.GetFormation() && g.path != nil
	if same {
		g.lostMembers(g.info.GetMembers(), after, "it was taken out while the daemon was not there")
		g.info = after
		g.nudge()
	}
	g.mu.Unlock()
	if same {
		g.events.put(Event{Type: Resumed, Formation: after.GetFormation()}, false)
	}
	return true
}
