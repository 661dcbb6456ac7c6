package group

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/internal/failure"
)

// A phase of a formation. Any failure, Cancelled and Close lead to undoing, from which there
// is no way back.
//
//	numbering   Numbered                            recording (of a new group: preparing)
//	recording   the record is durable, no drop is   preparing
//	            on its way to one that joins
//	preparing   all Prepared                        installing
//	installing  Installed                           committing
//	committing  all Committed, the record is        formed: the formation is the group's
//	            durable
//	undoing     no call is under way, the record    the next try, or the end of it
//	            does not say that it is complete,
//	            and all is undone or UndoTime is up
type phase uint8

const (
	numbering phase = iota
	recording
	preparing
	installing
	committing
	undoing
)

const (
	// MaxSuspected is in how many formations in a row a receiver may be suspected and yet
	// stay.
	MaxSuspected = 3
	// MaxLate is how many times in a row a group may try again because applications of its
	// receivers are late.
	MaxLate = 3
	// formTries is how many times a formation is tried if receivers drop out of it.
	formTries = 3
	// maxAhead limits by how much a receiver can raise the number of formations.
	maxAhead = 1 << 16
)

// A request is a call that asks for a formation.
type request struct {
	call       uint64
	by         time.Time // when the caller gives up; zero: never
	again      *Again    // nil: it is the first
	from       Endpoint
	candidates []netip.Addr
	joining    []netip.Addr // of the candidates, those that begin with this formation
	lost       map[netip.Addr]Loss
	flushed    bool // drops to those that are added have been tried once more
	skipped    bool // numbers of later formations that receivers reported have been skipped
	tries      int
	was        SenderState
	watch      stopwatch
}

// A Call is a call of the application: when it began, and when its caller gives up.
type Call struct {
	ID        uint64
	Begun, By time.Time // By zero: never
}

// Again is what is asked of the next formation.
type Again struct {
	Formation uint32 // the one that failed
	From      Endpoint
	Suspects  []netip.Addr
	Add       []netip.Addr
}

// A try is one formation that is being made.
type try struct {
	*request
	phase     phase
	f         *Formation           // nil: it has no numbers yet
	version   uint64               // of the record that is waited for
	calls     map[netip.Addr]phase // that are under way: preparing or committing
	busy      bool                 // TakeNumber or InstallFormation is under way
	ready     map[netip.Addr]Receiver
	reached   map[netip.Addr]bool // receivers that may have it
	out       map[netip.Addr]error
	left      bool      // the switches may have it
	news      *[]string // the agent's last news of it; nil: none
	err       error     // why it is given up
	cancelled bool
	until     time.Time // of undoing
}

// suspicion counts in how many formations in a row receivers were suspected.
type suspicion struct {
	in      map[netip.Addr]int
	counted uint32 // the formation that was counted last
}

// stopwatch takes the time of phases.
type stopwatch struct {
	begun, last time.Time
	phases      []Phase
}

func (w *stopwatch) lap(name string, now time.Time) {
	w.phases = append(w.phases, Phase{name, now.Sub(w.last)})
	w.last = now
}

// Create forms the group: with all receivers, or not at all.
func (s *Sender) Create(call Call, from Endpoint, receivers []netip.Addr, views bool, now time.Time) {
	s.app.views = views
	r := &request{call: call.ID, by: call.By, from: from, candidates: receivers, joining: receivers, watch: stopwatch{begun: call.Begun, last: call.Begun}}
	r.watch.lap("check", now)
	s.begin(r)
	s.step(now)
}

// Reform forms the group anew.
func (s *Sender) Reform(call Call, again Again, now time.Time) {
	if s.end != nil {
		s.reply(call.ID, nil, s.endedError())
		return
	}
	s.waiting = append(s.waiting, &request{call: call.ID, by: call.By, again: &again, from: again.From, watch: stopwatch{begun: call.Begun, last: call.Begun}})
	s.step(now)
}

func (s *Sender) begin(r *request) {
	r.tries++
	s.try = &try{request: r, busy: true, calls: map[netip.Addr]phase{}, ready: map[netip.Addr]Receiver{}, reached: map[netip.Addr]bool{}, out: map[netip.Addr]error{}}
	s.do(TakeNumber{})
}

// Numbered is the outcome of TakeNumber.
func (s *Sender) Numbered(mcID, psn uint32, err error, now time.Time) {
	t := s.try
	if t == nil || t.f != nil {
		return
	}
	t.busy = false
	switch {
	case err != nil:
		s.giveUp(err)
	case t.err != nil:
		s.do(FreeNumber{mcID})
	default:
		s.last++
		s.view++
		t.f = &Formation{N: s.last, MCID: mcID, PSN: psn, Sender: t.from, View: s.view}
		t.phase, t.version = recording, s.save()
		if s.form == nil { // a group's number is that of one run of the daemon
			s.prepare(now)
		}
	}
	s.step(now)
}

func (s *Sender) prepare(now time.Time) {
	t := s.try
	t.phase = preparing
	limit := s.cfg.ReformTime
	if s.form == nil {
		limit = s.cfg.PrepareTime
	}
	if !t.by.IsZero() {
		limit = min(limit, t.by.Sub(now))
	}
	for _, j := range slices.Clone(s.jobs) {
		if s.held(j) { // if this formation is given up, all is dropped there
			s.finish(j)
		}
	}
	for _, a := range t.candidates {
		t.calls[a], t.reached[a] = preparing, true
		s.do(PrepareMember{a, t.f, slices.Contains(t.joining, a), limit})
	}
}

// Prepared is the outcome of PrepareMember. unsent: the request cannot have arrived.
func (s *Sender) Prepared(mcID uint32, a netip.Addr, r Receiver, err error, unsent bool, now time.Time) {
	t := s.answered(mcID, a, preparing)
	if t == nil {
		return
	}
	if unsent {
		delete(t.reached, a)
	}
	if err == nil {
		t.ready[a] = r
	} else if t.fails(a, err); s.form == nil {
		s.giveUp(err)
	}
	s.step(now)
}

// answered finds the try of an outcome; nil: it is late.
func (s *Sender) answered(mcID uint32, a netip.Addr, p phase) *try {
	t := s.try
	if t == nil || t.f == nil || t.f.MCID != mcID {
		return nil
	}
	if call, ok := t.calls[a]; !ok || call != p {
		return nil
	}
	delete(t.calls, a)
	return t
}

// fails notes why a receiver drops out, unless its call was ended because of another.
func (t *try) fails(a netip.Addr, err error) {
	if t.err == nil {
		t.out[a] = err
	}
}

// behindError says that receivers know a later formation than the one that was begun: this
// daemon's state is an older copy. With a later number they take part.
type behindError struct{ last uint32 }

func (e *behindError) Error() string { return "receivers know a later formation" }

// lateError says that a group might go on if its receivers answered in time.
type lateError struct{ cause *failure.Error }

func (e *lateError) Error() string { return e.cause.Error() }
func (e *lateError) Unwrap() error { return e.cause }

// stepTry goes on with the formation.
func (s *Sender) stepTry(now time.Time) {
	t := s.try
	if t == nil {
		return
	}
	done, err := s.durable(t.version)
	if t.phase == recording && err != nil {
		s.giveUp(err)
	} else if t.phase == recording && done && !s.dropping() {
		s.prepare(now)
	}
	switch t.phase {
	case preparing:
		s.stepPreparing(err, now)
	case committing:
		if len(t.calls) == 0 && err != nil {
			s.giveUp(err)
		} else if len(t.calls) == 0 && done {
			s.formed(now)
			return
		}
	}
	if t.err != nil {
		s.stepUndoing(now)
	}
}

func (s *Sender) stepPreparing(err error, now time.Time) {
	t := s.try
	if len(t.calls) > 0 {
		return
	}
	if n := t.ahead(); n > 0 && !t.skipped {
		s.giveUp(&behindError{n})
		return
	}
	f := *t.f
	for _, a := range t.candidates {
		if r, ok := t.ready[a]; ok {
			f.Receivers = append(f.Receivers, r)
		}
	}
	slow := s.slow(len(f.Receivers))
	switch {
	case slow != nil:
		s.giveUp(slow)
	case !s.enough(len(f.Receivers)):
		s.giveUp(s.tooFew(len(f.Receivers)))
	case err != nil:
		s.giveUp(err)
	default: // if the record of a new group is not durable when the daemon ends, the next run sweeps the switch
		f.First = f.Receivers[0].Addr
		f.settle(t.joining)
		t.watch.lap("prepare", now)
		t.f, t.phase, t.busy, t.left = &f, installing, true, true
		install := InstallFormation{Formation: t.f}
		if s.form != nil && s.form.switched() && s.cfg.Switch != "" {
			install.Old, s.agent.missed = s.form, true
		}
		s.do(install)
	}
}

// ahead returns the highest number of a formation that receivers know; 0: none is as high as
// the one that was begun.
func (t *try) ahead() (n uint32) {
	for _, err := range t.out {
		if f, ok := errors.AsType[*failure.Error](err); ok && f.Reason == mcrdmav1.Reason_STALE && f.Formation >= t.f.N && f.Formation-t.f.N < maxAhead {
			n = max(n, f.Formation)
		}
	}
	return n
}

// settle determines where the receivers go on. A receiver that joins has nothing, and begins
// there.
func (f *Formation) settle(joining []netip.Addr) {
	f.Have = f.Sender.Sent
	for _, r := range f.Receivers {
		if !slices.Contains(joining, r.Addr) {
			f.Have = min(f.Have, r.Have)
		}
	}
	for i, r := range f.Receivers {
		if slices.Contains(joining, r.Addr) {
			f.Receivers[i].Have = f.Have
		}
	}
}

// slow returns an error if the formation, which so many receivers are ready for, is to be tried
// again with those that have not answered in time: if they are not known to be dead, they, or
// this host, may have been busy. One that continues to be late is left out, and one that is to
// join, at once. What cannot be done without daemons that are away waits for them: they come
// back, or are dead soon.
func (s *Sender) slow(ready int) error {
	t, late, gone, out := s.try, 0, 0, 0
	for a, err := range t.out {
		if _, lost := s.lost[a]; lost || !away(err) {
			continue
		}
		out++
		if failure.Is(err, mcrdmav1.Reason_UNREACHABLE) {
			gone++
		}
		if t.reached[a] && !(s.enough(ready) && slices.Contains(t.joining, a)) {
			late++
		}
	}
	text := ""
	if !s.enough(ready) {
		text = s.few(ready) + "; "
	}
	switch {
	case s.form == nil:
	case text != "" && s.enough(ready+gone):
		return &lateError{failure.New(mcrdmav1.Reason_UNREACHABLE, "%s%s did not answer, and may yet: try again", text, plural(gone, "daemon"))}
	case late > 0 && s.late < MaxLate && s.enough(ready+out):
		s.late++
		return &lateError{failure.New(mcrdmav1.Reason_TIMEOUT, "%s%s did not answer in time, and may yet: try again", text, plural(late, "receiver"))}
	}
	return nil
}

// tooFew returns the error of a formation with too few receivers.
func (s *Sender) tooFew(n int) error {
	t := s.try
	for _, a := range t.candidates {
		if err := t.out[a]; err != nil {
			return failure.New(mcrdmav1.Reason_MIN_SIZE, "%s; the first that is missing: %v", s.few(n), err)
		}
	}
	return failure.New(mcrdmav1.Reason_MIN_SIZE, "%s", s.few(n))
}

// few says why so many receivers are not enough.
func (s *Sender) few(receivers int) string {
	if receivers == 0 {
		return fmt.Sprintf("no receiver is left, whatever min_size is (%d)", s.cfg.MinSize)
	}
	copies := fmt.Sprintf("%d copies", receivers+1)
	return fmt.Sprintf("%s are left, the sender's own counted, and min_size is %d", copies, s.cfg.MinSize)
}

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// An Installation is how a formation's packets are copied.
type Installation struct {
	Path      mcrdmav1.Path
	Why       []string
	Relay     *Relay
	Transient bool // as in Formation
	Left      bool // the switches may have the formation
	OldLeft   bool // the switches may have the one before
}

// Installed is the outcome of InstallFormation.
func (s *Sender) Installed(mcID uint32, in Installation, err error, now time.Time) {
	t := s.try
	if t == nil || t.f == nil || t.f.MCID != mcID || !t.busy {
		return
	}
	t.busy, t.left = false, in.Left
	if in.OldLeft {
		s.remove(s.form.MCID, now)
	}
	switch {
	case t.err != nil:
	case err != nil:
		s.giveUp(err)
	default:
		f := *t.f
		f.Path, f.Why, f.Relay, f.Transient = in.Path, in.Why, in.Relay, in.Transient
		t.watch.lap("install", now)
		t.f, t.phase = &f, committing
		if !f.switched() && t.left { // whether or not the agent has installed it
			t.left = false
			s.remove(mcID, now)
		}
		// After a crash in between, the daemon finds no complete record and undoes the
		// formation, or one whose members report what they know of it.
		t.version = s.save()
		for _, a := range f.Addrs() {
			t.calls[a] = committing
			s.do(CommitMember{a, t.f})
		}
	}
	s.step(now)
}

// Committed is the outcome of CommitMember. Without one of the receivers, the formation is
// another.
func (s *Sender) Committed(mcID uint32, a netip.Addr, err error, now time.Time) {
	t := s.answered(mcID, a, committing)
	if t == nil {
		return
	}
	if err != nil && t.err == nil {
		t.fails(a, err)
		if slow := s.slow(len(t.f.Receivers) - 1); slow != nil {
			err = slow
		}
		s.giveUp(err)
	}
	s.step(now)
}

// formed makes a formation the group's present one.
func (s *Sender) formed(now time.Time) {
	t, old := s.try, s.form
	f := *t.f
	t.watch.lap("commit", now)
	f.Phases = append(t.watch.phases, Phase{"total", now.Sub(t.watch.begun)})
	s.form, s.try, s.state, s.late = &f, nil, Active, 0
	maps.Copy(t.lost, lostIn(t.out))
	clear(s.lost)
	f.Absent = t.absent(&f)
	s.agent = agent{wait: s.agent.wait, drawing: s.agent.drawing}
	s.agent.plan(&f, now)
	s.do(FormationComplete{&f})
	if old == nil {
		s.tell(TellSender{Type: mcrdmav1.GroupChanged_TYPE_CREATED})
	} else {
		s.leftOut(old, t, now)
		s.settle(old.MCID)
	}
	s.reply(t.call, &f, nil)
	if t.news != nil && f.switched() {
		s.heard(*t.news, now)
	}
	s.draw(false)
}

// leftOut takes out those of the formation before that are not in the present one, and ends
// what those have that could not join.
func (s *Sender) leftOut(old *Formation, t *try, now time.Time) {
	var gone []netip.Addr
	for _, x := range old.Receivers {
		l, lost := t.lost[x.Addr]
		if !lost || s.form.Has(x.Addr) {
			continue
		}
		gone = append(gone, x.Addr)
		s.depart(Departure{Addr: x.Addr, Host: x.Host, Why: l.Why}, l.Label)
	}
	late := slices.DeleteFunc(slices.Clone(t.joining), func(a netip.Addr) bool { return s.form.Has(a) || !t.reached[a] })
	s.drop(late, 0, 0, mcrdmav1.Detached_REASON_ABORTED, "it was not ready in time", now)
	if len(gone) > 0 {
		s.save()
		s.drop(gone, 0, 0, mcrdmav1.Detached_REASON_REMOVED, "it could not be in the next formation", now)
	}
}
