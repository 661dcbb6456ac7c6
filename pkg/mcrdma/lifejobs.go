package mcrdma

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/pkg/qp"
)

// created begins the life with the first formation.
func (l *life) created(info *mcrdmav1.FormationInfo) {
	l.info, l.departed, l.from = info, map[string]*departure{}, map[string]uint64{}
	l.connect(info)
}

// connect makes the next formation out of the daemon's answer.
func (l *life) connect(info *mcrdmav1.FormationInfo) {
	l.re.next, l.job = info, connecting
	cut := l.stats.Completed // nothing else completes before the formation begins
	if !allNew(info.GetMembers(), l.members, l.re.added) {
		cut += uint64(l.queue.had(info.GetHave()))
	}
	l.re.from = maps.Clone(l.from)
	for _, m := range info.GetMembers() {
		if l.state != forming && l.joins(m, l.members) {
			l.re.from[m.GetAddress()] = cut
		}
	}
	l.learnFormation(info)
}

// next returns the runner's next job. To wait, it waits for any event, and if until is not
// zero, for that time.
func (l *life) next(now time.Time) (j job, until time.Time) {
	switch {
	case l.job == viewing && len(l.told) == 0:
		l.job = beginning
	case l.job == pausing && !now.Before(l.re.until):
		l.ask()
	case l.job == pausing:
		until = l.re.until
	}
	return l.job, until
}

// takes returns the reason why the group cannot accept an operation.
func (l *life) takes(op *Op) error {
	switch {
	case l.state == closed:
		return l.err
	case l.draining:
		return errBeingClosed
	}
	return l.queue.window.fits(op)
}

// complete completes the n oldest operations, which every member has.
func (l *life) complete(n int) {
	if n > 0 {
		l.fruitless = 0
	}
	l.batch = l.batch[:0]
	for range n {
		op := l.queue.pop()
		op.View = l.view.Number
		l.batch = append(l.batch, op)
		l.stats.Completed++
		l.stats.Bytes += op.size
	}
	if l.queue.caughtUp() {
		l.fail(errCaughtUp)
	}
	l.checkDrained()
}

// ended: the path has ended.
func (l *life) ended(cause error) {
	l.queue.rewind()
	if l.state != active {
		return
	}
	switch {
	case l.queue.ops.len() == 0:
		l.fruitless = 0
	case !errors.Is(cause, errAdding): // of an application that goes on trying, nothing has failed
		l.fruitless++
	}
	if l.fruitless > maxFruitless {
		l.stop(fmt.Errorf("%w: nothing was completed in %d formations in a row, the last ended so: %w", ErrFailed, maxFruitless, cause))
		return
	}
	l.state, l.re = reForming, reforming{cause: cause, failed: l.info.GetFormation(), members: l.members, fruitless: l.stats.Completed == l.began}
	if f := l.re.suspect(cause); f != nil && f.blame {
		l.job = blaming
	} else {
		l.ask()
	}
}

// suspect takes over whom the failure of a formation suspects, and returns it; nil: it suspects no receiver.
func (re *reforming) suspect(cause error) *formationError {
	f, _ := errors.AsType[*formationError](cause)
	re.suspects, re.reporter, re.refused = nil, "", false
	if f != nil {
		re.suspects, re.reporter, re.refused = f.suspects, f.reporter, f.refused
	}
	return f
}

// unused: the daemon has made a formation that the group does not use, for this reason.
func (re *reforming) unused(info *mcrdmav1.FormationInfo, why error) {
	re.failed, re.members, re.fruitless = info.GetFormation(), info.GetMembers(), true
	_ = re.suspect(why) // those of the formation before have been named
}

// blamed: the daemon has said which receivers it suspects.
func (l *life) blamed(suspects []string) {
	if l.job == blaming {
		l.re.suspects = slices.Concat(l.re.suspects, suspects)
		l.ask()
	}
}

// ask asks the daemon for a formation, with all receivers to be added.
func (l *life) ask() {
	l.job, l.re.catchUp, l.re.through, l.re.asked, l.re.add = asking, nil, 0, nil, nil
	for _, w := range l.adding {
		l.re.asked = append(l.re.asked, w.receivers...)
	}
	for _, r := range l.re.asked {
		if !among(l.re.members, r) && !slices.Contains(l.re.add, r) { // Add may be called again when its context has ended
			l.re.add = append(l.re.add, r)
		}
	}
	l.re.added = append(l.re.added, l.re.add...)
}

// request returns the request for a formation.
func (re *reforming) request() *mcrdmav1.ReformGroupRequest {
	if re.catchUp != nil {
		return &mcrdmav1.ReformGroupRequest{Formation: re.failed, Fruitless: re.fruitless, Reason: re.catchUp.Error()}
	}
	return &mcrdmav1.ReformGroupRequest{Formation: re.failed, Suspects: re.suspects, Reporter: re.reporter, Fruitless: re.fruitless,
		Add: re.add, Reason: clipText(re.cause.Error())}
}

// answered: the daemon has made a formation, or has failed. With an error, info may be a formation
// that it made before. again: another try may help.
//
// A formation is not used if its switches would write again what some receivers have reported to
// their applications, and so show them older bytes: hosts relay until the others have caught up,
// because hosts skip what they have. Nor is one whose switches cannot carry a queued operation.
func (l *life) answered(info *mcrdmav1.FormationInfo, err error, again bool, now time.Time) {
	if l.job != asking {
		return
	}
	if err != nil {
		l.retry(info, err, again, now)
		return
	}
	if have, before := info.GetHave(), l.queue.before(l.queue.had(info.GetHave())); have != before {
		l.stop(fmt.Errorf("%w: the daemon says that receivers have %d messages; %d are complete and %d were sent",
			ErrFailed, have, l.queue.before(0), l.queue.sent()))
		return
	}
	switch why := l.relaysFirst(info); {
	case why != nil && l.re.catchUp != nil:
		l.retry(info, fmt.Errorf("%w: it does not let hosts relay: %w", ErrDaemon, why), true, now)
	case why != nil:
		l.re.unused(info, why)
		l.re.catchUp = why
	default:
		l.connect(info)
	}
}

// relaysFirst returns the reason why hosts must relay first.
func (l *life) relaysFirst(info *mcrdmav1.FormationInfo) error {
	if Path(info.GetPath()) != PathSwitch {
		return nil
	}
	if l.queue.stepsBack(info.GetHave(), most(info)) {
		return errCatchUp
	}
	if l.re.through = l.queue.tooLong(windowOf(info.GetConnection())); l.re.through > 0 {
		return errTooLong
	}
	return nil
}

// retry asks again after a while, if that may help. info is a formation that cannot be used.
func (l *life) retry(info *mcrdmav1.FormationInfo, err error, again bool, now time.Time) {
	few := l.waits && errors.Is(err, ErrMinSize)
	if few && !l.re.few {
		l.re.few = true
		l.tell(Event{Type: EventWaiting, Formation: l.info.GetFormation(), Text: err.Error()})
	}
	settled := false
	switch {
	case info != nil:
		l.re.unused(info, err)
	case l.re.catchUp != nil:
	case again && (len(l.re.add) == 0 || !errors.Is(err, ErrNoSwitch)):
	case len(l.re.add) == 0 && !few:
		l.stop(err)
		return
	default: // the daemon doesn't form the group with them, or the switches cannot copy for them
		l.settle(func(*addition) error { return err })
		settled = true // the next try is another one
	}
	l.re.cause = err
	l.re.attempt++
	if !few && !settled && !errors.Is(err, &Error{Reason: mcrdmav1.Reason_UNREACHABLE}) { // while daemons that are away may come back, this host's daemon says so
		l.re.failures++
	}
	if l.re.failures >= maxFruitless {
		l.stop(fmt.Errorf("%w: it cannot be re-formed: %w", ErrFailed, err))
		return
	}
	l.job, l.re.until = pausing, now.Add(min(10*time.Millisecond<<min(l.re.attempt, maxFruitless), time.Second))
}

// connected: the next formation's path is connected, or has failed.
func (l *life) connected(err error, now time.Time) {
	switch {
	case l.job != connecting:
	case err == nil:
		l.job = viewing
	case l.state == forming:
		l.stop(fmt.Errorf("%w: %w", ErrFailed, err))
	default:
		l.retry(l.re.next, err, true, now)
	}
}

// begin begins the next formation: the operations that all members have, by their counts of
// messages, are complete, and the others can be posted.
func (l *life) begin() {
	re, before, had, first := &l.re, l.members, l.sure(), l.state == forming
	last := Path(l.info.GetPath())
	l.formation = formation{info: re.next, members: re.next.GetMembers(), tree: re.next.GetTree()}
	l.compare(before, re.next, had)
	l.do(changed{})
	if re.next.GetView() == 0 {
		l.view = viewOf(re.next, re.from)
	}
	l.stats.Formations++
	if !first && allNew(l.members, before, re.added) {
		l.queue.renumber(l.info.GetHave())
	}
	if re.catchUp != nil {
		l.queue.catchUp(most(l.info), re.through)
	}
	l.queue.window = windowOf(l.info.GetConnection())
	l.state, l.job = active, carrying
	l.complete(l.queue.had(l.info.GetHave()))
	l.began = l.stats.Completed
	if !first {
		l.joined(before, had)
	}
	l.from = re.from
	early := l.early
	l.early = nil
	for _, e := range early {
		l.changed(e)
	}
	if !first {
		l.tell(Event{Type: EventReformed, Formation: l.info.GetFormation(), Before: last, After: Path(l.info.GetPath()), Text: re.cause.Error()})
	}
}

// most returns the largest number of messages that any member has.
func most(info *mcrdmav1.FormationInfo) (n uint64) {
	for _, m := range info.GetMembers() {
		n = max(n, m.GetHave())
	}
	return n
}

// finish fails all operations with err.
func (l *life) finish() {
	l.state = closed
	l.batch = l.batch[:0]
	for l.queue.ops.len() > 0 {
		l.batch = append(l.batch, l.queue.pop())
	}
}

// over tells the application of the end, as the last event.
func (l *life) over() {
	l.job = over
	for _, d := range l.departed { // also those for which the daemon has not said why
		l.removed(l.departs(d.Peer, l.sure()))
	}
	l.tell(lastEvent(l.err, l.info.GetFormation()))
}

// lookedAt must be called from time to time: it reports whether there is a stall to report to the
// daemon, and the time after which there may be one. moved is when an operation last completed, or
// began when none was in flight.
func (l *life) lookedAt(now, moved time.Time) (next time.Duration, stall bool) {
	if l.state == closed {
		return stallAfter, false
	}
	next = l.patience()
	if l.state == active && l.queue.posted > 0 {
		if next -= min(now.Sub(moved), now.Sub(l.stalled)); next <= 0 {
			l.stalled, next, stall = now, l.patience(), true
		}
	}
	return next, stall
}

// patience returns the time without a completion after which a stall is reported: a timeout of the
// queue pair, if there is one, and time for an answer to the retransmission.
func (l *life) patience() time.Duration {
	if c := l.info.GetConnection(); c != nil {
		t := qp.AckTimeout(timeoutOf(c))
		t = min(stallAfter, t+t/32)
		return min(max(t, l.usual+l.usual/32), 3*t)
	}
	return stallAfter
}

// joins says whether a member begins with a formation, or begins again.
func (l *life) joins(m *mcrdmav1.Member, before []*mcrdmav1.Member) bool {
	return l.departed[m.GetAddress()] != nil || isNew(m, before, l.re.added)
}

// settle answers the requested additions.
func (l *life) settle(result func(*addition) error) {
	for n := len(l.re.asked); n > 0; {
		w := l.adding[0]
		l.adding, n = l.adding[1:], n-len(w.receivers)
		l.do(answer{w, l.began, result(w)})
	}
	l.re.asked = nil
}

// joined tells the application which receivers joined with this formation, and answers the
// requested additions. A member that left and joined again unnoticed had that many operations
// before.
func (l *life) joined(before []*mcrdmav1.Member, had uint64) {
	for _, m := range l.members {
		if !l.joins(m, before) {
			continue
		}
		d := l.departed[m.GetAddress()]
		if d == nil && among(before, m.GetAddress()) {
			d = l.departs(peerOf(m), had)
		}
		if d != nil { // the Removed event comes before the Added event
			l.removed(d)
			delete(l.departed, m.GetAddress())
		}
		l.tell(Event{Type: EventAdded, Address: m.GetAddress(), Host: m.GetHost(), Formation: l.info.GetFormation(), Operation: l.began})
	}
	l.settle(func(w *addition) (err error) {
		for _, r := range w.receivers {
			if !among(l.members, r) {
				err = errors.Join(err, l.absent(r))
			}
		}
		return err
	})
	l.addNext() // what came too late for this formation
}

// addNext ends the formation if receivers are to be added. One that was made for others to be added
// completes something before: an application that adds receivers again and again does not stop its
// operations.
func (l *life) addNext() {
	waits := errors.Is(l.re.cause, errAdding) && l.stats.Completed == l.began && l.queue.ops.len() > 0
	if len(l.adding) > 0 && l.state == active && !waits {
		l.fail(errAdding)
	}
}

// isNew reports whether a member has nothing from before: it was not a member, or it has left since
// and was added again.
func isNew(m *mcrdmav1.Member, before []*mcrdmav1.Member, added []string) bool {
	return !among(before, m.GetAddress()) || slices.Contains(added, m.GetAddress()) || slices.Contains(added, m.GetHost())
}

// allNew reports whether all members are new.
func allNew(members, before []*mcrdmav1.Member, added []string) bool {
	return !slices.ContainsFunc(members, func(m *mcrdmav1.Member) bool { return !isNew(m, before, added) })
}

// add requests further receivers.
func (l *life) add(w *addition) error {
	if l.state >= closing || l.draining {
		return cmp.Or(l.err, errBeingClosed)
	}
	for _, r := range w.receivers {
		if among(l.members, r) {
			return newError(mcrdmav1.Reason_DUPLICATE_ADDRESS, "receiver %s is in the group", r)
		}
	}
	l.adding = append(l.adding, w)
	l.addNext()
	if l.re.few {
		l.re.until = time.Time{}
	}
	return nil
}

// drain accepts no more operations.
func (l *life) drain() {
	l.draining = true
	l.checkDrained()
}

func (l *life) checkDrained() {
	if l.draining && l.state < closed && l.queue.ops.len() == 0 {
		l.do(drained{})
	}
}
