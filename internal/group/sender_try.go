package group

import (
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
	// MaxSuspected is the number of formations in a row after which a suspected receiver is left
	// out.
	MaxSuspected = 3
	// MaxUnclear is the same for a suspect whose reporter is as suspicious.
	MaxUnclear = 5
	// MaxLate is the maximum number of tries in a row because receivers' applications are late.
	MaxLate = 3
	// formTries is the maximum number of tries of a formation if receivers drop out of it.
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

// Again is a request for the next formation.
type Again struct {
	Formation uint32 // the one that failed
	From      Endpoint
	Suspects  []netip.Addr
	Reporter  netip.Addr // that has named the first suspect, if it is a receiver: either may be the cause
	Fruitless bool       // nothing was completed in the one that failed
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

// suspicion counts in how many formations in a row receivers were suspected. One in which nothing was completed may end
// because of any of several receivers that are not well, so it clears none. One that carried data for long clears all.
type suspicion struct {
	in      map[netip.Addr]int
	counted uint32    // the formation that was counted last
	since   time.Time // when the present formation began
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

func (s *Sender) begin(r *request) {
	r.tries++
	s.try = &try{request: r, busy: true, calls: map[netip.Addr]phase{}, ready: map[netip.Addr]Receiver{}, reached: map[netip.Addr]bool{}, out: map[netip.Addr]error{}}
	s.do(TakeNumber{r.candidates})
}

// giveUp begins to undo the formation.
func (s *Sender) giveUp(err error) {
	t := s.try
	if t.err != nil {
		return
	}
	was := t.phase
	t.err, t.phase = err, undoing
	if was == committing { // the record says that it is complete
		t.version = s.save()
	}
	s.do(CancelCalls{})
}

// fails records why a receiver drops out, unless its call was canceled because of another.
func (t *try) fails(a netip.Addr, err error) {
	if t.err == nil {
		t.out[a] = err
	}
}

// behindError says that receivers know a later formation than the one begun, because this daemon's
// state file is an older copy. With a later number they join.
type behindError struct{ last uint32 }

func (e *behindError) Error() string { return "receivers know a later formation" }

// lateError says that a group might go on if its receivers answered in time.
type lateError struct{ cause *failure.Error }

func (e *lateError) Error() string { return e.cause.Error() }

func (e *lateError) Unwrap() error { return e.cause }

// lostIn returns the reasons why receivers have dropped out.
func lostIn(out map[netip.Addr]error) map[netip.Addr]Loss {
	lost := map[netip.Addr]Loss{}
	for a, err := range out {
		lost[a] = LossBy(err)
	}
	return lost
}

// LossBy returns the loss of a receiver whose host answers with an error, or not at all.
func LossBy(err error) Loss {
	l := Loss{Label: "unprepared", Why: err.Error(), Reason: mcrdmav1.Reason_UNREACHABLE}
	if f := failure.Of(err); f != nil {
		l.Why, l.Reason = f.Text, f.Reason
	}
	return l
}

// suspects reports whether the caller suspects a receiver.
func (r *request) suspects(a netip.Addr) bool {
	return r.again != nil && slices.Contains(r.again.Suspects, a)
}

// absent returns the receivers that should have joined with a formation, and have not.
func (r *request) absent(f *Formation) (list []Absent) {
	for _, a := range r.joining {
		if !f.Has(a) {
			list = append(list, Absent{a, r.lost[a]})
		}
	}
	return list
}
