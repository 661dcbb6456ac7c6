package group

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/internal/failure"
)

// A SenderState is what a group does.
//
//	state              event                                   next
//	Forming            all have committed, the record is       Active
//	                   durable
//	Forming            a refusal, Cancelled, Close             Closing
//	Active             Lose, and switches copy                 Removing
//	Active             Lose, and hosts relay                   Broken
//	Active             the agent lacks the group, or cannot    Broken
//	                   reach a receiver, or is ready again; Stuck
//	Removing           record, views, AckView, Updated         Active
//	Removing           one of these failed                     Broken
//	Removing           AckView is not in time                  Closing
//	Active, Broken,    Reform                                  Reforming
//	Removing (but not while the agent updates: afterward)
//	Reforming          all have committed, the record is       Active
//	                   durable
//	Reforming          a failure                               Reforming without those that
//	                                                           failed, or as before
//	all but Closed     Lose or a failure that leaves too few   Closing; if the group waits, Broken,
//	                                                           without those that are lost
//	all but Closed     Close                                   Closing
//	Closing            all is undone, the record is deleted    Closed
//
// A formation has phases of its own; see phase.
type SenderState uint8

// States of a group.
const (
	Forming   SenderState = iota // the first formation is being made
	Active                       // formed
	Removing                     // formed, and receivers are being taken out
	Broken                       // the application has been asked to form it anew
	Reforming                    // another formation is being made
	Closing                      // it has ended, and is being undone elsewhere
	Closed                       // nothing is left
)

func (s SenderState) String() string {
	return [...]string{"forming", "active", "removing", "broken", "re-forming", "closing", "closed"}[s]
}

// Time limits of a Sender.
const (
	UndoTime    = 2 * time.Second        // for undoing, while a caller waits
	UndoAgain   = 500 * time.Millisecond // between two tries to undo, at first
	undoSlow    = 4 * time.Second        // the same, later
	ViewTime    = 5 * time.Second        // for AckView
	SettleTime  = time.Second            // until an agent's report that it cannot reach a receiver counts
	recordAgain = 100 * time.Millisecond // between two tries to record a view at a daemon
	firstRetry  = 10 * time.Second       // until the agent is asked again whether it can copy
	lastRetry   = 5 * time.Minute
)

// SenderConfig configures a Sender. All fields but Switch are required.
type SenderConfig struct {
	MinSize     uint32        // copies that must be left, the sender's own counted
	Waits       bool          // with fewer, for receivers that are added; otherwise the group ends
	Receivers   int           // most
	Switch      string        // name of the switch; "": there is none
	MemberLease time.Duration // after which a daemon that cannot be reached has given up the group
	GroupLease  time.Duration // the same, of an agent
	PrepareTime time.Duration // for all receivers of a new group
	ReformTime  time.Duration // the same, when it is re-formed
	Grace       time.Duration // for the application to come back after a restart
}

// A SenderAction is an action of a Sender; one of the types below. After a colon, the comment names
// the event that reports the outcome.
type SenderAction interface{ senderAction() }

// Actions of a Sender.
type (
	// SaveGroup makes a record durable, or deletes it if Record is nil: Recorded. There is
	// one at a time.
	SaveGroup struct {
		Version uint64
		Record  *SenderRecord
	}
	// TakeNumber takes numbers that were never used, for a formation of receivers: Numbered.
	TakeNumber struct{ Receivers []netip.Addr }
	// FreeNumber says that an MC_ID is not used any longer.
	FreeNumber struct{ MCID uint32 }
	// PrepareMember asks a receiver's daemon to prepare: Prepared.
	PrepareMember struct {
		Addr      netip.Addr
		Formation *Formation
		Joins     bool // it begins with this formation
		Limit     time.Duration
	}
	// InstallFormation removes Old from the switches (nil: nothing to remove), and installs the new
	// formation in the switches, or chooses a relay: Installed.
	InstallFormation struct{ Formation, Old *Formation }
	// CommitMember tells a receiver's daemon that the formation is complete: Committed.
	CommitMember struct {
		Addr      netip.Addr
		Formation *Formation
	}
	// CancelCalls ends the calls of PrepareMember, InstallFormation, CommitMember,
	// RecordMembers and UpdateSwitch that are under way. They still have outcomes.
	CancelCalls struct{}
	// RecordMembers makes a receiver's daemon record the view: ViewRecorded.
	RecordMembers struct {
		Addr netip.Addr
		Next *Formation
	}
	// UpdateSwitch makes the switches go on with Next's receivers only: Updated.
	UpdateSwitch struct{ Next *Formation }
	// CleanUp undoes something elsewhere: Cleaned.
	CleanUp struct{ Job Job }
	// DrawTree asks the agent for the group's tree: Drawn.
	DrawTree struct{ Formation *Formation }
	// AskMissing asks the agent whether it lacks the group: Missing.
	AskMissing struct{ MCID uint32 }
	// ProbeSwitch asks whether the agent is ready: Probed.
	ProbeSwitch struct{}
	// TellSender tells the application.
	TellSender struct {
		Type      mcrdmav1.GroupChanged_Type
		Formation uint32
		Member    Departure // TYPE_REMOVED; otherwise address and host at most
		Text      string
		Reason    mcrdmav1.Reason // TYPE_FAILED
		Label     string          // TYPE_REMOVED: for the metrics
		View      *Formation      // TYPE_VIEW
		Tree      []string
	}
	// ReplySender answers a call.
	ReplySender struct {
		Call      uint64
		Err       error
		Formation *Formation
	}
	// FormationComplete says that a formation is complete.
	FormationComplete struct{ Formation *Formation }
	// SenderEnded reports that the group has ended for its application. Why is nil if the
	// application ended it.
	SenderEnded struct{ Why *failure.Error }
)

func (SaveGroup) senderAction()         {}
func (TakeNumber) senderAction()        {}
func (FreeNumber) senderAction()        {}
func (PrepareMember) senderAction()     {}
func (InstallFormation) senderAction()  {}
func (CommitMember) senderAction()      {}
func (CancelCalls) senderAction()       {}
func (RecordMembers) senderAction()     {}
func (UpdateSwitch) senderAction()      {}
func (CleanUp) senderAction()           {}
func (DrawTree) senderAction()          {}
func (AskMissing) senderAction()        {}
func (ProbeSwitch) senderAction()       {}
func (TellSender) senderAction()        {}
func (ReplySender) senderAction()       {}
func (FormationComplete) senderAction() {}
func (SenderEnded) senderAction()       {}

// away reports whether a daemon could not be reached, or has not answered.
func away(err error) bool {
	return failure.Is(err, mcrdmav1.Reason_UNREACHABLE) || failure.Is(err, mcrdmav1.Reason_TIMEOUT)
}

// A Loss is the reason for a receiver's removal.
type Loss struct {
	Label  string // of the metrics
	Why    string
	At     time.Time       // of a loss that the daemon has reported
	Reason mcrdmav1.Reason // of a receiver that could not join a formation
}

// A Sender is one group at its sender's daemon. Its methods are for one goroutine at a time.
type Sender struct {
	cfg   SenderConfig
	state SenderState
	form  *Formation // nil: the first is being made, or never was complete
	last  uint32     // number of the latest formation begun
	view  uint32     // the latest one
	lost  map[netip.Addr]Loss
	out   []SenderAction

	departures []Departure // without those that lost has
	suspected  suspicion
	late       int        // formations in a row that failed because applications were late
	try        *try       // the formation that is being made
	waiting    []*request // calls of Reform that wait until the agent has updated
	removal    *removal
	end        *ending
	journal    journal
	agent      agent
	jobs       []*job
	jobID      uint64
	app        application
}

// application is what is known of the sender's application.
type application struct {
	views   bool
	resumed bool      // false: after a restart, it has not said that it has the group
	by      time.Time // when it must have said so
}

// NewSender makes a group, whose Create is to follow.
func NewSender(cfg SenderConfig) *Sender {
	return &Sender{cfg: cfg, state: Forming, lost: map[netip.Addr]Loss{}, suspected: suspicion{in: map[netip.Addr]int{}}, app: application{resumed: true}}
}

// Take returns the actions since the last call, in order.
func (s *Sender) Take() []SenderAction {
	out := s.out
	s.out = nil
	return out
}

func (s *Sender) do(a SenderAction) { s.out = append(s.out, a) }

// A SenderStatus is the published status of a group.
type SenderStatus struct {
	State      SenderState
	Form       *Formation // nil: there is none, or the group has ended
	Making     uint32     // MC_ID of the formation that is being made; 0: none
	Lost       []netip.Addr
	Departures []Departure
	Problems   []string
	Resumed    bool
}

// Status returns the group's present status.
func (s *Sender) Status() *SenderStatus {
	out := &SenderStatus{State: s.state, Lost: slices.Collect(maps.Keys(s.lost)), Departures: s.allDepartures(), Problems: s.agent.problems, Resumed: s.app.resumed}
	if s.end == nil {
		out.Form = s.form
	}
	if s.try != nil && s.try.f != nil {
		out.Making = s.try.f.MCID
	}
	return out
}

// allDepartures returns the completed departures, and those in progress.
func (s *Sender) allDepartures() []Departure {
	out := slices.Clone(s.departures)
	if r := s.removal; r != nil {
		for _, x := range r.lost {
			out = append(out, s.departureOf(x))
		}
	}
	return out
}

func (s *Sender) departureOf(x Receiver) Departure {
	return Departure{Addr: x.Addr, Host: x.Host, Why: s.lost[x.Addr].Why, At: s.lost[x.Addr].At}
}

// tell tells the application.
func (s *Sender) tell(t TellSender) {
	if s.form != nil {
		t.Formation = s.form.N
	}
	s.do(t)
}

func (s *Sender) reply(call uint64, f *Formation, err error) {
	if call != 0 {
		s.do(ReplySender{call, err, f})
	}
}

// enough reports whether the group may go on with this number of receivers.
func (s *Sender) enough(receivers int) bool {
	return receivers > 0 && uint32(receivers)+1 >= s.cfg.MinSize //nolint:gosec // at most 16
}

// depart records the removal of a receiver, unless recorded before, and tells the application.
func (s *Sender) depart(d Departure, label string) {
	delete(s.suspected.in, d.Addr)
	if !slices.ContainsFunc(s.departures, func(o Departure) bool { return o.Addr == d.Addr }) {
		s.departures = append(s.departures, d)
	}
	s.tell(TellSender{Type: mcrdmav1.GroupChanged_TYPE_REMOVED, Member: d, Text: d.Host + ": " + d.Why, Label: label})
}

// takenOut records the removal of lost receivers.
func (s *Sender) takenOut(lost []Receiver) (gone []netip.Addr) {
	for _, x := range lost {
		s.depart(s.departureOf(x), s.lost[x.Addr].Label)
		delete(s.lost, x.Addr)
		gone = append(gone, x.Addr)
	}
	return gone
}

// split returns the remaining receivers, and the lost ones.
func (s *Sender) split() (stay, lost []Receiver) {
	for _, r := range s.form.Receivers {
		if _, ok := s.lost[r.Addr]; ok {
			lost = append(lost, r)
		} else {
			stay = append(stay, r)
		}
	}
	return stay, lost
}

// few returns a text that says why this number of receivers is too small.
func (s *Sender) few(receivers int) string {
	if receivers == 0 {
		return fmt.Sprintf("no receiver is left, whatever min_size is (%d)", s.cfg.MinSize)
	}
	return fmt.Sprintf("%d copies are left, the sender's own counted, and min_size is %d", receivers+1, s.cfg.MinSize)
}

// Plural formats a count for people.
func Plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
