package mcrdma

import (
	"cmp"
	"errors"
	"fmt"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
)

// A memberLife is a member's life at its application. It is pure: its caller gives it events,
// and does the actions in out, one after the other. What takes time is an action, too, with an
// event as its outcome; other events may come before that.
//
//	state       event                                       state       actions
//	joining     asked                                       joining     drop the one before, offer
//	            offered, resumed: an error; ABORTED         ended       drop
//	            formed                                      formed      carry
//	formed      asked                                       re-forming  drop, offer
//	            detached, resumed: an error                 ended
//	re-forming  asked                                       re-forming  drop the one before, offer
//	            offered, resumed: an error; ABORTED         formed      drop; it ends if last has ended
//	            formed                                      formed      carry
//	            detached from last                          re-forming
//	            detached from next                          ended
//	any         stop                                        ended       leave, drop, finish
//	ended       asked                                       ended       refuse
//
// In re-forming, last carries nothing any more, so that it is known what the member has.
type memberLife struct {
	next    *attach // requested and not formed; nil: none
	last    *attach // that was formed last; nil: none
	pending error   // why last has ended: the member's end, unless next is formed
	err     error   // ended: why
	out     []action
}

// An attach is a membership in one formation.
type attach struct {
	req *mcrdmav1.AttachRequested
	endpoint

	// Under the Member's lock:
	path inbound // nil: it carries nothing
	stop func()  // ends the path, and returns when all received messages are delivered
}

// Actions of a memberLife.
type (
	drop   struct{ a *attach } // end its path, if there is one, and close its resources
	offer  struct{ a *attach } // prepare it, and answer: offered
	refuse struct{ a *attach } // because the member has left
	carry  struct {
		a    *attach
		info *mcrdmav1.FormationInfo
	}
	leave struct { // tell the daemon
		a   *attach
		why error
	}
	finish struct{ why error }
)

func (l *memberLife) do(a action) { l.out = append(l.out, a) }

// find returns the attach with that number, if it is still active.
func (l *memberLife) find(number uint64) *attach {
	for _, a := range []*attach{l.next, l.last} {
		if a != nil && a.req.GetAttach() == number {
			return a
		}
	}
	return nil
}

// asked: the daemon asks for a receiver in another formation.
func (l *memberLife) asked(a *attach) {
	if l.err != nil {
		l.do(refuse{a})
		return
	}
	l.dropAll()
	l.next = a
	l.do(offer{a})
}

func (l *memberLife) dropAll() {
	for _, a := range []*attach{l.next, l.last} {
		if a != nil {
			l.do(drop{a})
		}
	}
}

// offered: the daemon has the answer, or err says why not.
func (l *memberLife) offered(a *attach, err error) {
	if err != nil && a == l.next {
		l.abandon(err)
	}
}

// abandon gives next up.
func (l *memberLife) abandon(err error) {
	l.do(drop{l.next})
	l.next = nil
	switch {
	case l.last == nil:
		l.stop(fmt.Errorf("%w: %w", ErrFailed, err), false)
	case l.pending != nil:
		l.stop(l.pending, false)
	}
}

// formed: the formation is complete.
func (l *memberLife) formed(a *attach, info *mcrdmav1.FormationInfo) {
	if a == l.next {
		l.next, l.last, l.pending = nil, a, nil
		l.do(carry{a, info})
	}
}

// detached: the daemon has ended it.
func (l *memberLife) detached(a *attach, reason mcrdmav1.Detached_Reason, text string) {
	switch reason {
	case mcrdmav1.Detached_REASON_ABORTED: // it never was complete everywhere
		switch err := errors.New(text); {
		case a == l.next:
			l.abandon(err)
		case a.req.GetJoins():
			l.ended(a, fmt.Errorf("%w: %w", ErrFailed, err))
		}
	case mcrdmav1.Detached_REASON_REFORMED: // formed has come before that, or is about to come
	case mcrdmav1.Detached_REASON_CLOSED:
		l.ended(a, fmt.Errorf("%w: the sender has closed the group", ErrClosed))
	case mcrdmav1.Detached_REASON_REMOVED:
		l.ended(a, fmt.Errorf("%w: %s", ErrRemoved, text))
	case mcrdmav1.Detached_REASON_SENDER_LOST:
		l.ended(a, fmt.Errorf("%w: %s", ErrSenderLost, text))
	default:
		l.ended(a, fmt.Errorf("%w: %s", ErrFailed, text))
	}
}

// ended ends the member with one of its formations. If another one is being made, its outcome
// decides.
func (l *memberLife) ended(a *attach, err error) {
	if a != l.next && l.next != nil {
		l.pending = err
		return
	}
	l.stop(err, false)
}

// resumed: a daemon that has come back knows the formation, or err says why not.
func (l *memberLife) resumed(a *attach, err error) {
	switch {
	case l.err != nil:
	case a == l.next && err != nil: // it was not complete when the daemon ended: the sender's daemon asks again
		l.abandon(err)
	case a == l.last && errors.Is(err, ErrDaemon):
		l.ended(a, fmt.Errorf("the daemon could not be reached, and does not resume the member: %w", err))
	case a == l.last && err != nil:
		l.ended(a, err)
	case a == l.last:
		l.do(tell{Event{Type: EventResumed, Formation: a.req.GetFormation()}})
	}
}

// stop ends the member, once, after received messages are delivered. leave: the daemons do not know
// yet, and are told first, so that the sender does not wait for this member.
func (l *memberLife) stop(err error, leaves bool) {
	if l.err != nil {
		return
	}
	l.err = err
	if a := cmp.Or(l.next, l.last); leaves && a != nil {
		l.do(leave{a, err})
	}
	l.dropAll()
	l.do(finish{err})
	l.next = nil
}
