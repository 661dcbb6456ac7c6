package mcrdma

import (
	"context"
	"fmt"
	"slices"
	"time"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
)

// A Mode says whether switches or hosts copy a group's packets.
type Mode uint8

// The modes.
const (
	ModeAuto    Mode = iota // switches if they can, else hosts
	ModeRequire             // switches, else an error; hosts relay only what receivers must catch up with
	ModeOff                 // hosts
)

// String returns "auto", "require" or "off".
func (m Mode) String() string {
	if text, err := m.MarshalText(); err == nil {
		return string(text)
	}
	return fmt.Sprintf("mode %d", uint8(m))
}

var modes = [...]struct {
	name string
	wire mcrdmav1.Mode
}{ModeAuto: {"auto", mcrdmav1.Mode_MODE_AUTO}, ModeRequire: {"require", mcrdmav1.Mode_MODE_REQUIRE}, ModeOff: {"off", mcrdmav1.Mode_MODE_OFF}}

// MarshalText returns the mode's name, or an error that wraps ErrInvalid.
func (m Mode) MarshalText() ([]byte, error) {
	if int(m) >= len(modes) {
		return nil, fmt.Errorf("%w mode %d", ErrInvalid, uint8(m))
	}
	return []byte(modes[m].name), nil
}

// UnmarshalText reads what MarshalText writes. The error wraps ErrInvalid.
func (m *Mode) UnmarshalText(text []byte) error {
	for i, known := range modes {
		if known.name == string(text) {
			*m = Mode(i)
			return nil
		}
	}
	return fmt.Errorf("%w mode %q: it is auto, require or off", ErrInvalid, text)
}

// Limits of a group's sender.
const (
	DefaultDepth = 64   // operations in flight
	MaxDepth     = 4096 // operations in flight
	MaxPieces    = 16   // of one operation
)

// Limits of Tuning.ViewTime.
const (
	DefaultViewTime = 2 * time.Second
	MaxViewTime     = 4 * time.Second
)

// A Region is memory that the sender writes to at each receiver.
type Region struct {
	Name   string // for the receivers; may be empty
	Length uint64 // bytes, at least 1
}

// A GroupConfig configures a group. Service and Receivers are required; the other fields have
// useful zero values.
type GroupConfig struct {
	// Service is the name that the receivers listen for: 1 to 64 letters, digits, '.', '-',
	// '_'.
	Service string
	// Receivers are IPv4 addresses, or names of hosts that the daemon knows: 1 to 16.
	Receivers []string
	Mode      Mode
	// MinSize is the number of copies, including the sender's own, that must remain when receivers
	// fail; 0: half of them, rounded up (2 of 4, 2 of 3). At least one receiver must remain in any
	// case.
	MinSize int
	// WaitForMinSize makes the group wait, when fewer than MinSize copies or no receiver are left,
	// until one call of Add adds enough; a call with too few adds none, and its error wraps
	// ErrMinSize. Operations wait meanwhile. Otherwise the group fails. An older daemon may not
	// support it.
	WaitForMinSize bool
	// Regions are the memory to write to at each receiver; At.Region is an index into them. For
	// SENDs alone none are needed.
	Regions []Region
	// Depth is the maximum number of operations in flight; 0: DefaultDepth.
	Depth int
	// Wait is how long Create waits for receivers that are still starting: for daemons that do not
	// answer, and for hosts where no application listens for the service, or where it ends before
	// the group has begun; 0: it does not wait.
	Wait time.Duration
	// OnView, if not nil, is called with each view of the group. Operations complete with the view
	// only after OnView has returned: it is called before the first operation of a formation is
	// posted, and before an operation completes without a member that is being removed. So an
	// application that makes the view durable here finds out after a crash which receivers have
	// every completed operation: the members of the last durable view. The calls are sequential, in
	// the order of the views, in a separate goroutine; data keeps flowing meanwhile. If it returns
	// an error, or does not return within ViewTime (ctx ends then), the group fails. It must not
	// wait for operations, nor close the group. It needs a daemon that has views.
	OnView func(ctx context.Context, v View) error
	Tuning
}

// Tuning has the settings that few groups need.
type Tuning struct {
	DSCP uint8 // of the packets, 0 to 63
	// MTU limits the payload of a packet in bytes; 0: the device's limit.
	MTU int
	// Algorithm is the relay's algorithm, by its name in package schedule ("sequential" is fan-out
	// by the sender); empty: chosen by TypicalSize and the number of members.
	Algorithm string
	// Transport is the relay's transport, "rdma" or "tcp"; empty: chosen.
	Transport string
	// TypicalSize is the typical size of a message in bytes, used for choices such as the
	// algorithm; 0: not known.
	TypicalSize int64
	// CNPGap is the minimum time between two congestion notifications (CNPs) that switches pass to
	// the sender; 0: the daemon's choice.
	CNPGap time.Duration
	// ViewTime limits the duration of OnView; 0: DefaultViewTime; at most MaxViewTime.
	ViewTime time.Duration
}

// A View is a numbered set of a group's receivers. Each formation and each removal of a receiver
// makes a new one; the numbers rise, even across restarts of daemons. If an operation is complete
// with a view (Op.View), all members of that view have it whose Peer.From is not above Op.Number:
// operations that were in flight when receivers were added may complete with the view that has them.
type View struct {
	Number    uint32 // 0: the daemon's release has no views
	Formation uint32
	Members   []Peer
}

func (v View) clone() View {
	v.Members = slices.Clone(v.Members)
	return v
}

// A Path says whether switches or hosts copy a group's packets at present.
type Path uint8

// The paths.
const (
	PathSwitch Path = iota + 1
	PathRelay       // by hosts
)

// String returns "switch" or "relay".
func (p Path) String() string {
	switch p {
	case PathSwitch:
		return "switch"
	case PathRelay:
		return "relay"
	}
	return "none"
}

// A GroupID names a group for as long as it lives.
type GroupID struct {
	Source string // the sender's address
	Number uint64
}

// String returns source/number.
func (id GroupID) String() string { return fmt.Sprintf("%s/%d", id.Source, id.Number) }

// A Peer is a receiver of a group, as its sender sees it.
type Peer struct {
	Address string
	Host    string
	QPN     uint32 // 0: none
	// From is the first operation that the receiver has: 0 for the first receivers, and the result
	// of Group.Add for the others. Operations are counted from 0; see Op.Number.
	From uint64
}

// A Departure is the removal of a receiver from its group.
type Departure struct {
	Peer
	// Operation is the first operation that the receiver may lack. It has those from From up to
	// this one.
	Operation uint64
	Why       string // for people; may be empty until the daemon has reported it
}

// A Phase is a part of the formation of a group, and its duration.
type Phase struct {
	Name string
	Took time.Duration
}

// Stats are a sender's counters.
type Stats struct {
	Operations  uint64 // submitted
	Completed   uint64 // operations that every member has
	Bytes       uint64 // of payload of completed operations
	Posts       uint64 // posted send requests, or blocks sent where hosts relay
	Completions uint64 // reported by the device for them
	Replayed    uint64 // operations posted again in another formation
	Formations  uint64
	Stalls      uint64 // reported to the daemon
	Violations  uint64 // unicast connections ended because the member broke the protocol
	// Strangers are callers refused at the port where members of a relayed group listen, or, at a
	// member, where senders connect for unicast with any member of its Client.
	Strangers uint64
}

// Info is the current state of a group.
type Info struct {
	ID        GroupID
	Service   string
	Mode      Mode
	Path      Path
	Why       []string // why this path and not the other, one line per reason
	Members   []Peer   // the receivers
	MinSize   int
	Formation uint32 // counts from 1
	View      uint32 // number of the present View
	MCID      uint32 // the virtual queue pair that stands for all receivers
	PSN       uint32 // of the formation's first packet
	MTU       int    // bytes of payload in a packet, where switches copy
	Algorithm string // of relaying
	Transport string // of relaying
	Block     int    // of relaying, bytes
	Tree      []string
	Phases    []Phase // of the present formation, the library's own included
	Stats     Stats
}

// An EventType says what happened.
type EventType uint8

// The events of a group.
const (
	EventSuspected EventType = iota + 1 // a receiver may be dead
	EventRecovered                      // a suspected receiver answers again
	EventRemoved                        // a receiver was removed; the others go on
	EventReformed                       // the group was re-formed; the path may have changed
	EventRoute                          // the tree has changed
	EventFailed                         // the group has failed
	EventClosed                         // the group was closed normally
	EventResumed                        // the daemon can be reached again
	EventAdded                          // a receiver has joined; see Group.Add
	EventWaiting                        // too few receivers are left; see GroupConfig.WaitForMinSize
)

var eventNames = [...]string{EventSuspected: "suspected", EventRecovered: "recovered", EventRemoved: "removed", EventReformed: "reformed",
	EventRoute: "route", EventFailed: "failed", EventClosed: "closed", EventResumed: "resumed", EventAdded: "added",
	EventWaiting: "waiting"}

// String returns the type's name in lower case.
func (t EventType) String() string {
	if t > 0 && int(t) < len(eventNames) {
		return eventNames[t]
	}
	return fmt.Sprintf("event %d", uint8(t))
}

// An Event reports a change of a group.
type Event struct {
	Type          EventType
	Time          time.Time
	Address, Host string // of the receiver that it is about, if it is about one
	Text          string // for people
	Before, After Path   // EventReformed: the path has changed if they differ
	// Operation of EventRemoved is that of the Departure: how many operations were complete when
	// the view changed. Of EventAdded it is Peer.From.
	Operation uint64
	Formation uint32
}

// String returns the event in one line.
func (e Event) String() string {
	s := e.Type.String()
	if e.Address != "" {
		s += " " + e.Address
	}
	if e.Host != "" {
		s += " (" + e.Host + ")"
	}
	if e.Before != e.After {
		s += fmt.Sprintf(" %v → %v", e.Before, e.After)
	}
	if e.Text != "" {
		s += ": " + e.Text
	}
	return s
}
