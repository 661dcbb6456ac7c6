package mcrdma

import (
	"context"
	"fmt"
	"slices"
	"time"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
)

// A Mode says whether switches or hosts may copy a group's packets.
type Mode uint8

// The modes.
const (
	ModeAuto    Mode = iota // switches if they can, else hosts
	ModeRequire             // switches, or it is an error; hosts relay only what receivers have to catch up with
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
	DefaultDepth = 64   // operations under way
	MaxDepth     = 4096 // operations under way
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

// A GroupConfig says what a group is to be. Service and Receivers are needed; the
// zero values of the others are good.
type GroupConfig struct {
	// Service is the name that the receivers listen for: 1 to 64 letters, digits, '.', '-',
	// '_'.
	Service string
	// Receivers are IPv4 addresses, or names of hosts that the daemon knows: 1 to 16.
	Receivers []string
	Mode      Mode
	// MinSize is how many copies, the sender's own counted, must remain when receivers
	// fail; 0: half of them, rounded up: 2 of 4, 2 of 3. At least one receiver must remain
	// in any case.
	MinSize int
	// WaitForMinSize has the group wait when fewer than MinSize copies, or no receiver, are left,
	// until Add has brought it enough; operations wait meanwhile. Otherwise the group ends. It
	// needs a daemon that can do that.
	WaitForMinSize bool
	// Regions are what is written to; At.Region is an index into them. None are needed for
	// SENDs alone.
	Regions []Region
	// Depth is how many operations may be under way; 0: DefaultDepth.
	Depth int
	// Wait is how long Create waits for receivers that are still starting: daemons that do
	// not answer, and hosts where no application listens for the service; 0: it does not
	// wait.
	Wait time.Duration
	// OnView, if not nil, is told each view of the group. Only after it has returned, the
	// group's operations complete with this view: before the first operation of a formation
	// is posted, and before an operation completes without a member that is being removed.
	// So an application that makes the view durable here finds after a crash which
	// receivers have everything that was complete: the members of the last view that it has.
	// The calls come one after the other, in the order of the views, by a goroutine of
	// their own; data goes on meanwhile. An error, or no return within ViewTime (then ctx
	// ends), ends the group. It must not wait for operations, nor close the group. It needs a
	// daemon that counts views.
	OnView func(ctx context.Context, v View) error
	Tuning
}

// Tuning is what few groups need to set.
type Tuning struct {
	DSCP uint8 // of the packets, 0 to 63
	// MTU limits the payload of a packet; 0: what the device allows.
	MTU int
	// Algorithm is how hosts relay, as package schedule names it ("sequential" is
	// fan-out by the sender); empty: chosen by TypicalSize and the number of members.
	Algorithm string
	// Transport is what hosts relay over, "rdma" or "tcp"; empty: chosen.
	Transport string
	// TypicalSize is the typical size of a message in bytes, used for choices such as the
	// algorithm; 0: not known.
	TypicalSize int64
	// CNPGap is the least time between two congestion notifications that switches
	// pass to the sender; 0: the daemon's choice.
	CNPGap time.Duration
	// ViewTime is how long OnView may take; 0: DefaultViewTime; at most MaxViewTime. The
	// daemon waits no longer than that.
	ViewTime time.Duration
}

// A View is a set of a group's receivers. Each formation has another one, and each removal
// of a receiver from one; their numbers rise, also when daemons are restarted. That an
// operation is complete with a view (Op.View) means: all members of that view have it.
type View struct {
	Number    uint32 // 0: the daemon is of a release that counts none
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
	// From is the operation from which on it has everything: 0 for the first receivers, and
	// for the others what Group.Add has returned. Operations are counted from 0; see Op.Number.
	From uint64
}

// A Departure is of a receiver that was taken out of its group.
type Departure struct {
	Peer
	// Operation is the first one that it may lack: it has those from From on that come
	// before this one.
	Operation uint64
	Why       string // for people; may be empty until the daemon has said it
}

// A Phase is a part of forming a group, and how long it took.
type Phase struct {
	Name string
	Took time.Duration
}

// Stats are what a sender has done.
type Stats struct {
	Operations  uint64 // that were submitted
	Completed   uint64 // operations that every member has
	Bytes       uint64 // of payload of those that are complete
	Posts       uint64 // send requests that were posted, or blocks sent where hosts relay
	Completions uint64 // that the device reported for them
	Replayed    uint64 // operations that were posted again in another formation
	Formations  uint64
	Stalls      uint64 // reported to the daemon
	Violations  uint64 // unicast connections that were ended because the member broke the protocol
	// Strangers are callers that were turned away where members of a relayed group listen, or, at a
	// member, where senders make unicast connections with any member of its Client.
	Strangers uint64
}

// Info is how a group is at present.
type Info struct {
	ID        GroupID
	Service   string
	Mode      Mode
	Path      Path
	Why       []string // why this path and not the other, a line for each reason
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

// What may happen to a group.
const (
	EventSuspected EventType = iota + 1 // a receiver may be dead
	EventRecovered                      // a suspected receiver answers again
	EventRemoved                        // a receiver was taken out; the others go on
	EventReformed                       // the group was formed anew; the path may be another one
	EventRoute                          // the tree has changed
	EventFailed                         // the group has failed
	EventClosed                         // the group was closed, in good order
	EventResumed                        // the daemon could be reached again
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

// An Event is something that happened to a group.
type Event struct {
	Type          EventType
	Time          time.Time
	Address, Host string // of the receiver that it is about, if it is about one
	Text          string // for people
	Before, After Path   // EventReformed: the mode that carries the group has changed if they differ
	// Operation, of EventRemoved: as in Departure, it is how many were complete when the view
	// changed. Of EventAdded: Peer.From.
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
