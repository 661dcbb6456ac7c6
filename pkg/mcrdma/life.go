package mcrdma

import (
	"errors"
	"fmt"
	"slices"
	"time"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
)

// A life is a group's life at its sender's application. It is pure: its caller gives it
// events, and the time where it needs that, and does the actions in out. None of these
// waits. What takes time is the jobs of one goroutine, the runner, which takes them from
// next and returns what came of them.
//
//	state       event                                         state
//	forming     begin                                         active
//	            connected, with an error                      closing
//	active      ended: the path carries nothing any more      re-forming
//	re-forming  begin                                         active
//	            answered or connected: no other try may help  closing
//	any         stop: Close, the daemon, a hook's error       closing
//	closing     finish: all operations are handed back        closed
//
//	job         event that ends it      job
//	connecting  connected               viewing; an error: pausing, or the group's end
//	viewing     hooked, for all views   beginning
//	beginning   begin                   carrying
//	carrying    ended                   blaming, if a receiver is to blame; else asking
//	blaming     blamed                  asking
//	asking      answered                connecting; asking, to catch up; pausing, or the group's end
//	pausing     time                    asking
//	any         stop                    ending
//	ending      finish, over            over
type life struct {
	state    state
	job      job
	queue    opQueue
	batch    []*Op // operations to be handed back, by the runner
	stats    Stats
	draining bool  // nothing more is submitted
	err      error // closing: why
	formation
	views
	re        reforming
	early     []*mcrdmav1.GroupChanged // that are about a formation that has not begun
	adding    []*addition              // of Add, for the next formation
	waits     bool                     // with too few receivers, for others
	fruitless int                      // formations in a row in which nothing was completed
	usual     time.Duration            // how long the device waits for acknowledgements
	stalled   time.Time                // when a stall was last reported
	out       []action
}

type state uint8

const (
	forming state = iota
	active
	reForming
	closing
	closed
)

func (s state) String() string {
	return [...]string{"forming", "active", "re-forming", "closing", "closed"}[s]
}

// A job is what the runner does.
type job uint8

const (
	connecting job = iota
	viewing        // waits for the application's hook
	beginning
	carrying
	blaming
	asking
	pausing
	ending
	over
)

// A formation is one that has begun, or will as the first.
type formation struct {
	info    *mcrdmav1.FormationInfo
	members []*mcrdmav1.Member // those that are not out
	tree    []string
	began   uint64 // operations that were complete when it began
}

// A reforming is how the next formation is being made.
type reforming struct {
	cause     error
	suspects  []string
	reporter  string
	refused   bool // a receiver has refused something
	fruitless bool // nothing was completed in the failed formation
	few       bool // receivers: the application was told
	attempt   int
	failures  int                     // attempts that failed, and not because daemons are away
	until     time.Time               // of the pause
	failed    uint32                  // the last formation that the daemon has made
	members   []*mcrdmav1.Member      // of it
	asked     []string                // receivers that are to be added
	add       []string                // … and are not members
	added     []string                // … by any attempt: what a member had before it left does not count
	from      map[string]uint64       // views.from once next has begun
	catchUp   error                   // why hosts only send what comes first; nil: they do not
	through   uint64                  // number of the operation that comes after that, at least
	next      *mcrdmav1.FormationInfo // the daemon's answer
}

// Actions.
type (
	action any
	cut    struct{ why error } // end the present formation's path
	halt   struct{ why error } // end what the runner does
	tell   struct{ event Event }
	show   struct{ view View } // to the application's hook
	ack    struct{ view uint32 }
	answer struct {
		to  *addition
		cut uint64
		err error
	}
	nudge   struct{}
	changed struct{} // the members have changed
	drained struct{} // draining, and nothing is under way
)

const (
	// stallAfter is the longest time without a completion before a stall is reported to the daemon.
	stallAfter = 500 * time.Millisecond
	// maxFruitless limits the formations in a row without a completed operation, and the tries for
	// one formation.
	maxFruitless = 10
)

// A formationError says why a formation failed.
type formationError struct {
	suspects []string // addresses
	reporter string   // of the first, if it is a receiver
	blame    bool     // a receiver is to blame: the daemon may know which
	refused  bool     // … and has refused something
	err      error
}

func (e *formationError) Error() string { return e.err.Error() }
func (e *formationError) Unwrap() error { return e.err }

// Why groups and formations without a fault end.
var (
	errClosing     = fmt.Errorf("%w: the group was closed", ErrClosed)
	errBeingClosed = fmt.Errorf("%w: the group is being closed", ErrClosed)
	errAdding      = errors.New("receivers are to be added")
	errTooLong     = errors.New("an operation has more packets than the switches take: hosts relay it first")
	errCatchUp     = errors.New("some receivers lack WRITEs that others have reported to their applications: hosts relay these first")
	errCaughtUp    = errors.New("all receivers have the WRITEs that some have reported to their applications")
)

func (l *life) do(a action) { l.out = append(l.out, a) }

func (l *life) tell(e Event) { l.do(tell{e}) }

// fail ends the present formation.
func (l *life) fail(why error) {
	if l.state == active {
		l.do(cut{why})
	}
}

// stop begins the end of the group.
func (l *life) stop(why error) {
	if l.state < closing {
		l.state, l.job, l.err = closing, ending, groupID(l.info.GetGroup()).about(why)
		l.do(halt{why})
	}
}

// among reports whether a receiver, by its address or its host's name, is a member.
func among(members []*mcrdmav1.Member, receiver string) bool {
	return slices.ContainsFunc(members, func(m *mcrdmav1.Member) bool { return m.GetAddress() == receiver || m.GetHost() == receiver })
}
