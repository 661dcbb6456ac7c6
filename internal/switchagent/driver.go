package switchagent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/mcrdma/mcrdma/internal/p4rt"
	"github.com/mcrdma/mcrdma/internal/switchspec"
)

const (
	// maxJobs bounds how many edits are written to the switch together.
	maxJobs = 512
	// lookEach is the time between two looks at whether another controller has cleared the switch.
	lookEach = time.Second
)

// A job is an edit that a caller waits for.
type job struct {
	edit  edit
	taken bool
	done  chan error
}

// A phase says how far a driver has come with its switch.
type phase uint8

const (
	away    phase = iota // the switch is not connected
	backup               // another agent controls it
	reading              // it is being read, and brought to the desired state
	serving              // edits are written
)

// driverStatus is what a driver reports.
type driverStatus struct {
	phase            phase
	err              error // why it is not connected
	pushes, sessions uint64
	refused          []string  // changes that the switch refused when it was reconciled
	cleared          string    // why the program was last pushed again
	replace          bool      // the program has to be pushed before anything else is written
	since            time.Time // when the last session ended, or run began
}

// A driver keeps the switch in the desired state. It owns that state, and the known state of the
// switch; all other parts change them by edits. While no switch is connected, edits wait. When the
// driver connects to a switch, it reads the switch back and writes the differences.
type driver struct {
	client *p4rt.Client
	log    *slog.Logger
	audit  time.Duration // at most between two checks of the switch against the desired state
	// judge is called when a switch has been read. It returns the reason why the program must be
	// pushed again, which clears the switch; "": it need not.
	judge func(have *switchspec.State) (why string, err error)
	// found is called before a switch is reconciled, and may adapt the desired state to the
	// switch's. blank: the program has just been pushed.
	found func(ctx context.Context, s *p4rt.Session, have, want *switchspec.State, blank bool) error
	// opened is called with each new session; the callee reads its channels.
	opened func(*p4rt.Session)

	mu      sync.Mutex
	queue   []*job
	status  driverStatus
	session *p4rt.Session // while serving
	wake    wakeup
	turned  wakeup // the session has begun or ended
	ended   bool   // run has returned

	want, have *switchspec.State // run's own
}

func newDriver(client *p4rt.Client, log *slog.Logger) *driver {
	return &driver{client: client, log: log, wake: make(wakeup, 1), turned: make(wakeup, 1), want: &switchspec.State{}, have: &switchspec.State{}}
}

// write posts an edit, and waits until the switch has it. After an error that wraps ErrNotReady or
// ctx's, the edit may still be written; other errors mean that nothing of it is on the switch.
func (d *driver) write(ctx context.Context, e edit) error {
	j := d.post(e)
	select {
	case err := <-j.done:
		return err
	case <-ctx.Done():
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if !j.taken {
		d.queue = slices.DeleteFunc(d.queue, func(q *job) bool { return q == j })
		return fmt.Errorf("the switch was not written: %w", context.Cause(ctx))
	}
	return fmt.Errorf("the switch has not answered: %w", context.Cause(ctx))
}

// errOver: the driver has stopped.
var errOver = fmt.Errorf("%w: the agent is shutting down", ErrNotReady)

// post queues an edit, and does not wait.
func (d *driver) post(e edit) *job {
	j := &job{edit: e, done: make(chan error, 1)}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.ended {
		j.taken = true
		j.done <- errOver
		return j
	}
	d.queue = append(d.queue, j)
	d.wake.wake()
	return j
}

// clear makes the driver push the program again, before any edit that is posted later.
func (d *driver) clear(why string) {
	d.setStatus(func(s *driverStatus) { s.replace, s.cleared = true, why })
	d.wake.wake()
}

// take returns the queued edits, unless the program must be pushed first.
func (d *driver) take() (jobs []*job, replace bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.status.replace {
		return nil, true
	}
	n := min(len(d.queue), maxJobs)
	jobs = d.queue[:n:n]
	d.queue = d.queue[n:]
	for _, j := range jobs {
		j.taken = true
	}
	return jobs, false
}

// run serves edits until ctx ends.
func (d *driver) run(ctx context.Context) {
	const slowest = 2 * time.Second
	d.setStatus(func(s *driverStatus) { s.since = time.Now() })
	wait := 50 * time.Millisecond
	for ctx.Err() == nil {
		begun := time.Now()
		err := d.once(ctx)
		if ctx.Err() != nil {
			break
		}
		d.setStatus(func(s *driverStatus) {
			if s.err == nil || s.err.Error() != err.Error() { // not again with each try
				d.log.Warn("the switch is not connected", "error", err)
			}
			s.err = err
		})
		if time.Since(begun) > 10*slowest {
			wait = 50 * time.Millisecond
		}
		select {
		case <-ctx.Done():
		case <-time.After(wait):
		}
		wait = min(2*wait, slowest)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.ended = true
	for _, j := range d.queue {
		j.taken = true
		j.done <- errOver
	}
	d.queue = nil
}

// once opens a session and serves edits on it until it is lost.
func (d *driver) once(ctx context.Context) (err error) {
	opening, cancel := context.WithTimeoutCause(ctx, 10*time.Second, p4rt.ErrSilent)
	defer cancel()
	s, err := d.client.Open(opening)
	if err != nil {
		return err
	}
	d.setStatus(func(st *driverStatus) { st.sessions++ })
	defer func() {
		err = cmp.Or(s.Err(), err)
		d.enter(away, nil)
		s.Close()
	}()
	d.enter(reading, nil)
	role, _ := s.Role()
	if role == p4rt.Backup {
		d.log.Info("another agent controls the switch; waiting for it to leave")
	}
	if role != p4rt.Primary { // after a restart the switch may have none for a moment
		d.enter(backup, nil)
	}
	if err := s.WaitPrimary(ctx); err != nil {
		return err
	}
	if s.ElectionID().High == 0 { // a killed agent may still have it
		if err := s.Renew(ctx); err != nil {
			return err
		}
	}
	d.enter(reading, nil)
	if err := d.program(ctx, s); err != nil {
		return err
	}
	d.enter(serving, s)
	d.opened(s)
	return d.serve(ctx, s)
}

// program ensures that the switch runs the program, and is in the desired state.
func (d *driver) program(ctx context.Context, s *p4rt.Session) error {
	replace := false
	d.setStatus(func(st *driverStatus) { replace, st.replace = st.replace, false })
	if !replace {
		has, err := s.HasPipeline(ctx)
		if err != nil {
			return err
		}
		if has {
			if err := s.EnableDigests(ctx); err != nil {
				return err
			}
			return d.reconcile(ctx, s, false)
		}
	}
	if err := d.push(ctx, s); err != nil {
		d.setStatus(func(st *driverStatus) { st.replace = st.replace || replace })
		return err
	}
	return d.reconcile(ctx, s, true)
}

// push pushes the program to the switch, which loses all its state.
func (d *driver) push(ctx context.Context, s *p4rt.Session) error {
	if err := s.PushPipeline(ctx); err != nil {
		return err
	}
	d.log.Info("the switch got the program")
	d.setStatus(func(st *driverStatus) { st.pushes++ })
	return s.EnableDigests(ctx)
}

// reconcile reads the switch and brings it to the desired state. blank: the program has just been
// pushed.
func (d *driver) reconcile(ctx context.Context, s *p4rt.Session, blank bool) error {
	have, err := s.Read(ctx)
	why := ""
	if errors.Is(err, p4rt.ErrForeign) {
		why, err = err.Error(), nil
	} else if err == nil {
		why, err = d.judge(have)
	}
	if err == nil && why != "" && !blank {
		d.log.Warn("the switch is cleared", "reason", why)
		d.setStatus(func(st *driverStatus) { st.cleared = why })
		if err = d.push(ctx, s); err == nil {
			blank = true
			have, err = s.Read(ctx)
		}
	}
	if err != nil {
		return err
	}
	d.have = have
	if err := d.found(ctx, s, have, d.want, blank); err != nil {
		return err
	}
	changes := switchspec.Diff(d.have, d.want)
	level := slog.LevelInfo
	if st, _ := d.current(); st.phase == serving && len(changes) == 0 {
		level = slog.LevelDebug
	}
	d.log.Log(ctx, level, "the switch was read", "entities", have.Len(), "changes", len(changes))
	var refused []string
	for len(changes) > 0 {
		left, err := d.settle(ctx, s, changes)
		if err != nil {
			return err
		}
		for _, f := range left {
			refused = append(refused, f.Error())
			d.log.Error("the switch refused a change", "error", f)
		}
		if len(left) == 0 {
			break
		}
		changes = without(switchspec.Diff(d.have, d.want), left)
	}
	d.setStatus(func(st *driverStatus) { st.refused = refused })
	return nil
}

// without drops changes of entities that were refused, so that the rest can be tried.
func without(changes []switchspec.Change, refused []*p4rt.UpdateError) []switchspec.Change {
	bad := map[switchspec.Key]bool{}
	for _, f := range refused {
		bad[f.Change.Entity.Key()] = true
	}
	before := len(changes)
	changes = slices.DeleteFunc(changes, func(c switchspec.Change) bool { return bad[c.Entity.Key()] })
	if len(changes) == before {
		return nil // no progress
	}
	return changes
}

// settle applies changes and records which were done. It returns those that the switch refused; an
// error means that the session can no longer be used.
func (d *driver) settle(ctx context.Context, s *p4rt.Session, changes []switchspec.Change) ([]*p4rt.UpdateError, error) {
	err := s.Apply(ctx, changes)
	if err == nil {
		return nil, d.have.Apply(changes...)
	}
	var w *p4rt.WriteError
	if !errors.As(err, &w) || w.Err != nil || len(w.Failed) == 0 {
		return nil, err
	}
	return w.Failed, d.have.Apply(w.Done...)
}

// serve makes edits until the session is lost.
func (d *driver) serve(ctx context.Context, s *p4rt.Session) error {
	audit, look := time.NewTimer(pause(0, d.audit, false)), time.NewTicker(lookEach)
	defer audit.Stop()
	defer look.Stop()
	var rest time.Time // until then, no audit pushes the program
	for {
		jobs, replace := d.take()
		if replace {
			if err := d.program(ctx, s); err != nil {
				return err
			}
			continue
		}
		if len(jobs) > 0 {
			if err := d.do(ctx, s, jobs); err != nil {
				return err
			}
			continue
		}
		role, changed := s.Role()
		if role != p4rt.Primary {
			return p4rt.ErrNotPrimary
		}
		select {
		case <-d.wake:
		case <-changed:
		case <-look.C:
			now, err := s.Settings(ctx)
			if end := cmp.Or(ctx.Err(), s.Err()); end != nil {
				return end
			}
			if was, _ := d.have.Find(now.Key()); err == nil && was == switchspec.Entity(now) {
				continue
			}
			d.log.Warn("the switch does not have what this agent wrote: it is programmed anew", "settings", now, "error", err)
			if err := d.program(ctx, s); err != nil {
				return err
			}
		case <-audit.C:
			begun := time.Now()
			was, _ := d.current()
			if begun.Before(rest) {
				if _, err := s.Read(ctx); errors.Is(err, p4rt.ErrForeign) {
					audit.Reset(time.Until(rest))
					continue
				}
			}
			if err := d.reconcile(ctx, s, false); err != nil {
				return err
			}
			st, _ := d.current()
			if st.pushes != was.pushes {
				rest = time.Now().Add(d.audit)
			}
			audit.Reset(pause(time.Since(begun), d.audit, len(st.refused) > 0))
		case <-s.Done():
			return s.Err()
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// pause returns the time until the next audit, for which edits will wait. It is the longest if this one was in vain.
func pause(took, longest time.Duration, vain bool) time.Duration {
	const least, share = 10 * time.Second, 1000
	if vain {
		return longest
	}
	return min(max(least, share*took), longest)
}

// do makes edits, together if they all succeed, otherwise one by one. An error means that the
// session can no longer be used; unfinished jobs then wait for the next session.
func (d *driver) do(ctx context.Context, s *p4rt.Session, jobs []*job) error {
	dr := draft{want: d.want, old: map[switchspec.Key]switchspec.Entity{}}
	var edited []*job
	for _, j := range jobs {
		one := draft{want: d.want, old: map[switchspec.Key]switchspec.Entity{}}
		if err := j.edit(&one); err != nil {
			one.undo()
			j.done <- err
			continue
		}
		for k, e := range one.old {
			if _, ok := dr.old[k]; !ok {
				dr.old[k] = e
			}
		}
		edited = append(edited, j)
	}
	failed, err := d.settle(ctx, s, d.changes(dr.old))
	if err == nil && len(failed) == 0 {
		for _, j := range edited {
			j.done <- nil
		}
		return nil
	}
	dr.undo()
	if err != nil {
		d.requeue(edited)
		return err
	}
	back, err := d.settle(ctx, s, d.changes(dr.old))
	if len(back) > 0 {
		err = fmt.Errorf("it cannot go back: %w", refusal(back))
	}
	switch {
	case len(edited) == 1 || len(back) > 0:
		for _, j := range edited {
			j.done <- refusal(failed)
		}
		return err
	case err != nil:
		d.requeue(edited)
		return err
	}
	for i, j := range edited {
		if err := d.do(ctx, s, []*job{j}); err != nil {
			d.requeue(edited[i+1:])
			return err
		}
	}
	return nil
}

// requeue requeues jobs whose edits have been undone. They count as taken, because parts of them may
// be on the switch until it is read.
func (d *driver) requeue(jobs []*job) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.queue = append(slices.Clone(jobs), d.queue...)
}

// changes returns the changes that lead to the desired state, for these keys only.
func (d *driver) changes(keys map[switchspec.Key]switchspec.Entity) []switchspec.Change {
	var have, want switchspec.State
	copyTo := func(to *switchspec.State, from *switchspec.State, k switchspec.Key) {
		if e, ok := from.Find(k); ok {
			if err := to.Put(e); err != nil {
				panic(fmt.Sprintf("switchagent: %v is in a state and cannot be put in one: %v", e, err))
			}
		}
	}
	for k := range keys {
		copyTo(&have, d.have, k)
		copyTo(&want, d.want, k)
	}
	return switchspec.Diff(&have, &want)
}

func refusal(failed []*p4rt.UpdateError) error {
	errs := make([]error, 0, len(failed))
	for _, f := range failed[:min(len(failed), 3)] {
		errs = append(errs, f)
	}
	full := func(f *p4rt.UpdateError) bool { return f.Code == codes.ResourceExhausted }
	if slices.ContainsFunc(failed, full) {
		return fmt.Errorf("%w: the switch is full: %w", ErrLimit, errors.Join(errs...))
	}
	return fmt.Errorf("%w: %w", ErrSwitch, errors.Join(errs...))
}

func (d *driver) setStatus(f func(*driverStatus)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	f(&d.status)
}

// enter begins a phase; only serving has a session.
func (d *driver) enter(p phase, s *p4rt.Session) {
	d.setStatus(func(st *driverStatus) {
		if d.session != nil {
			st.since = time.Now()
		}
		if d.session, st.phase = s, p; p == serving {
			st.err = nil
		}
	})
	d.turned.wake()
}

// current returns the status and the session in use, which may be nil.
func (d *driver) current() (driverStatus, *p4rt.Session) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.status, d.session
}
