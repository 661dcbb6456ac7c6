package group

import (
	"net/netip"
	"slices"
	"time"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/internal/failure"
)

// The states of a membership, which is in one formation, and how it goes from one to another.
// "All" are the memberships of the group at this host.
//
//	from        event                                   to          what follows
//	–           Prepare                                 asked       Ask
//	asked       Prepare, the same again                 asked       the call waits
//	asked       Answer                                  ready       the calls get the answer
//	asked       Answer, refused                         ended       the calls get the refusal
//	asked       Cancelled, and no call is left          ended       TellEnded, ABORTED
//	ready, …    Prepare, the same again                 as it is    the call gets the answer
//	ready       Commit                                  committing  PutMembership; the call waits
//	committing  Commit again                            committing  the call waits
//	committing  Recorded                                formed      TellFormed; the calls succeed; all earlier end, REFORMED
//	committing  Recorded, with an error                 ready       the calls get the error
//	formed      Commit again, Resume                    formed      TellFormed again
//	formed      RecordView, of a later view             formed      PutMembership; the call waits
//	formed      Recorded                                formed      the calls succeed, or get the error
//	formed      Beat in a later one that is formed      ended       TellEnded, REFORMED
//	formed      Prepare of one that begins anew         ended       TellEnded, REMOVED; the call is refused
//	formed      Drop of it, ABORTED, unless it joined   formed      nothing: it has taken another's place
//	any         Drop otherwise                          ended       TellEnded, with the reason given
//	any         Tick, and the lease has ended           ended       TellEnded, SENDER_LOST
//	any         Tick, and no application came for it    ended       nothing is told
//	any         Leave, SessionEnded                     ended       nothing is told
//	any         Stop                                    ended       TellEnded, REMOVED
//	ended       Recorded                                –           DeleteMembership
//	–           Deleted                                 –           the calls of Drop succeed, if no other is left
//
// An end deletes the record if there may be one: at once, or when the write that is under way
// has its outcome. Calls that wait for what has ended get an error.
type membershipState uint8

const (
	membershipAsked      membershipState = iota // its application has not answered yet
	membershipReady                             // it can receive
	membershipCommitting                        // the formation is complete, which is being made durable
	membershipFormed                            // that is durable
	membershipEnded                             // it waits for the outcome of a write only
)

// An Owner is the application that has a group or a membership.
type Owner struct {
	Token    string // of its session
	UID, PID uint32
	Program  string
}

// A ViewMember is a receiver in a view.
type ViewMember struct {
	Addr netip.Addr
	Host string
}

// A RecordedView is a numbered set of a group's receivers.
type RecordedView struct {
	View    uint32       `json:",omitempty"` // 0: the sender's daemon counts no views
	Members []ViewMember `json:",omitempty"` // by address
}

func (v RecordedView) same(o RecordedView) bool {
	return slices.EqualFunc(v.Members, o.Members, func(x, y ViewMember) bool { return x.Addr == y.Addr })
}

// A Membership is the durable part of a membership.
type Membership struct {
	Formation uint32
	Attach    uint64 // names it to its application
	Service   string
	Sender    string // host
	Program   string // of the sender
	Path      mcrdmav1.Path
	MCID      uint32 `json:"-"` // 0: not known, as after a restart
	Memory    uint64
	Joins     bool `json:",omitempty"` // there was no formation before
	Lease     time.Duration
	Since     time.Time
	User      Owner
	RecordedView
}

// An Invitation is a checked request to join a formation.
type Invitation struct {
	// Membership is the membership to create. User is the application that listens for the service;
	// no token: there is none.
	Membership
	Deadline time.Time // for the application's answer
	Request  *mcrdmav1.PrepareRequest
	Content  string // equal in equal requests; not ""
	// Closed is the reason why the host accepts no new memberships, Full why it accepts no other
	// group; nil: it does.
	Closed, Full error
	Ended        string // the application that listened for the service and has ended since; "": there was none
}

// A ReceiverAction is an action of Memberships; one of the types below.
type ReceiverAction interface{ receiverAction() }

// Actions of Memberships.
type (
	// Ask asks an application whether it joins.
	Ask struct {
		Invitation
		Previous uint64 // its membership so far; 0: none
	}
	// TellFormed tells an application that its formation is complete. It may be repeated.
	TellFormed struct {
		Attach uint64
		User   Owner
		Info   *mcrdmav1.FormationInfo
	}
	// TellEnded reports the end of a membership, once for each. Its application must be told,
	// unless the reason is UNSPECIFIED: then it knows, or has ended. If it has not fetched the
	// request to join (Asked) yet, it need not learn of either.
	TellEnded struct {
		Attach uint64
		User   Owner
		Asked  bool
		Reason mcrdmav1.Detached_Reason
		Text   string
	}
	// PutMembership makes a membership durable, with what its application must be told after a
	// restart. Recorded reports the outcome.
	PutMembership struct {
		Membership Membership
		Info       *mcrdmav1.FormationInfo // nil: not known
	}
	// DeleteMembership deletes the record of a membership: Deleted.
	DeleteMembership struct{ Attach uint64 }
	// TellGone tells the sender's daemon that a membership has ended here. If the message is lost,
	// the answer to its next beat says so.
	TellGone struct {
		Formation uint32
		Text      string
	}
	// Respond ends a call of Prepare (with an answer), Commit, RecordView or Drop.
	Respond struct {
		Call   uint64
		Answer *mcrdmav1.PrepareResponse
		Err    error
	}
)

func (Ask) receiverAction()              {}
func (TellFormed) receiverAction()       {}
func (TellEnded) receiverAction()        {}
func (PutMembership) receiverAction()    {}
func (DeleteMembership) receiverAction() {}
func (TellGone) receiverAction()         {}
func (Respond) receiverAction()          {}

// MaxFormations is the maximum number of formations of a group at a time: the one that is formed,
// the one that is being made, and some whose end has not arrived yet.
const MaxFormations = 4

// goneTime is how long the reason why a membership has ended is remembered.
const goneTime = 5 * time.Minute

// A writer is a call that waits until a view is durable; for Commit, the formation's view.
type writer struct {
	call uint64
	view uint32
}

// A membership is a Membership with its state.
type membership struct {
	Membership
	state    membershipState
	content  string                    // of the invitation; "": it is known from its record only
	request  *mcrdmav1.PrepareRequest  // the same
	answer   *mcrdmav1.PrepareResponse // once ready
	info     *mcrdmav1.FormationInfo   // once committing
	calls    []uint64                  // of Prepare
	writers  []writer
	wanted   RecordedView // the latest view to record
	underWay RecordedView // the one that is being written
	writing  bool
	stored   bool // there may be a record
	expires  time.Time
	resumed  bool // false: after a restart, the application has not confirmed it yet
}

// Memberships are all memberships of a group at a receiver's host. The zero value has none.
// Tick is called every beat: leases are much longer.
type Memberships struct {
	list     []*membership // by formation
	last     uint32        // the latest requested formation
	content  string        // of that invitation
	gone     gone
	deleting []uint64 // memberships whose records are being deleted
	drops    []uint64 // calls of Drop that wait for that
	out      []ReceiverAction
}

// gone is the reason of the latest end of a membership that the sender's daemon did not ask for. It
// is told at once (TellGone), and also in the answer to its next beat. Until then, no membership is
// created again in that formation.
type gone struct {
	formation uint32 // 0: none
	why       string
	until     time.Time
}

// Take returns the actions since it was called last.
func (r *Memberships) Take() []ReceiverAction {
	out := r.out
	r.out = nil
	return out
}

func (r *Memberships) do(action ReceiverAction) { r.out = append(r.out, action) }

func (r *Memberships) respond(call uint64, answer *mcrdmav1.PrepareResponse, err error) {
	r.do(Respond{call, answer, err})
}

// live returns the memberships that have not ended.
func (r *Memberships) live() []*membership {
	return slices.DeleteFunc(slices.Clone(r.list), func(x *membership) bool { return x.state == membershipEnded })
}

// in returns the membership in a formation; nil: there is none.
func (r *Memberships) in(formation uint32) *membership {
	for _, x := range r.live() {
		if x.Formation == formation {
			return x
		}
	}
	return nil
}

// of returns an application's membership; nil: there is none.
func (r *Memberships) of(token string, attach uint64) *membership {
	for _, x := range r.live() {
		if x.Attach == attach && x.User.Token == token {
			return x
		}
	}
	return nil
}

// Idle reports that there are no memberships, and nothing to remember.
func (r *Memberships) Idle() bool { return len(r.list)+len(r.deleting) == 0 && r.gone == gone{} }

// One returns any membership, for fields that all have in common; false: there is none.
func (r *Memberships) One() (Membership, bool) {
	for _, x := range r.live() {
		return x.Membership, true
	}
	return Membership{}, false
}

// Formed returns the memberships whose formation is complete.
func (r *Memberships) Formed() (out []Membership) {
	for _, x := range r.live() {
		if x.state == membershipFormed {
			out = append(out, x.Membership)
		}
	}
	return out
}

// Load adds a membership from its record; its application must reconnect.
func (r *Memberships) Load(x Membership, info *mcrdmav1.FormationInfo, now time.Time) {
	r.list = append(r.list, &membership{Membership: x, state: membershipFormed, info: info, wanted: x.RecordedView, stored: true, expires: now.Add(x.Lease)})
	slices.SortFunc(r.list, func(x, y *membership) int { return int(x.Formation) - int(y.Formation) })
	r.last = max(r.last, x.Formation)
}

// end ends a membership.
func (r *Memberships) end(x *membership, reason mcrdmav1.Detached_Reason, text string) {
	r.do(TellEnded{x.Attach, x.User, x.state == membershipAsked, reason, text})
	for _, w := range x.writers {
		x.calls = append(x.calls, w.call)
	}
	for _, call := range x.calls {
		r.respond(call, nil, failure.New(mcrdmav1.Reason_NO_SERVICE, "it is not in the group any longer: %s", text))
	}
	x.state, x.calls, x.writers = membershipEnded, nil, nil
	if !x.writing {
		r.remove(x)
	}
}

// remove removes a membership that has ended, and its record.
func (r *Memberships) remove(x *membership) {
	r.list = slices.DeleteFunc(r.list, func(o *membership) bool { return o == x })
	if x.stored {
		r.deleting = append(r.deleting, x.Attach)
		r.do(DeleteMembership{x.Attach})
	}
}

// answerDrops answers the calls of Drop if no record of a membership that has ended is left.
func (r *Memberships) answerDrops() {
	if len(r.deleting) > 0 || len(r.live()) < len(r.list) {
		return
	}
	for _, call := range r.drops {
		r.respond(call, nil, nil)
	}
	r.drops = nil
}

// endHere ends a membership for a reason of this host, which is sent to the sender's daemon, and
// kept for its next beat.
func (r *Memberships) endHere(x *membership, reason mcrdmav1.Detached_Reason, text string, now time.Time) {
	news := x.state != membershipAsked && x.Formation >= r.gone.formation
	r.end(x, reason, text)
	if news {
		r.gone = gone{x.Formation, text, now.Add(min(x.Lease, goneTime))}
		r.do(TellGone{x.Formation, text})
	}
}

// supersede ends the formations before a formed one.
func (r *Memberships) supersede(x *membership) {
	for _, o := range r.live() {
		if o.Formation < x.Formation {
			r.end(o, mcrdmav1.Detached_REASON_REFORMED, "")
		}
	}
}

func (r *Memberships) tellFormed(x *membership) {
	r.do(TellFormed{x.Attach, x.User, x.info})
}
