package core

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"
)

// An ID is a host that may have a copy of the volume (an OSD's number, in Ceph).
type ID uint32

// A Member is a host from one start of its process to the next: data that is only in memory is lost
// with the incarnation.
type Member struct {
	ID          ID
	Incarnation uint64 // 0: in the first map, of a member that has never run
}

// A Version names an entry of the log (Ceph's eversion_t): the epoch in which its primary became the
// primary, and how many entries come before it. There is one content for each.
type Version struct{ Epoch, Index uint64 }

// Compare orders versions as Ceph does: by epoch, then by index.
func (v Version) Compare(w Version) int {
	return cmp.Or(cmp.Compare(v.Epoch, w.Epoch), cmp.Compare(v.Index, w.Index))
}

// A Map is the configuration manager's record of a volume. It is changed only by compare-and-swap
// of Epoch, which rises by one with each change. A Map is immutable once it has been passed on.
type Map struct {
	Epoch   uint64
	Since   uint64 // the epoch in which Primary became the primary (Ceph's same_primary_since)
	Primary Member // zero: there was none yet
	Acting  []Member
	MinSize int
	Up      []ID `json:"-"`          // the hosts that may have a copy; nil: unchanged. The caller stores them beside the map.
	Former  []ID `json:",omitempty"` // the host that each of Up has replaced (Replaced); 0: none. nil: no host was replaced
}

// Acts reports whether a member, in this incarnation, is in the acting set.
func (m *Map) Acts(x Member) bool { return slices.Contains(m.Acting, x) }

// Holds reports whether a host is in the acting set, in any incarnation.
func (m *Map) Holds(id ID) bool {
	return slices.ContainsFunc(m.Acting, func(x Member) bool { return x.ID == id })
}

// An Interval is one attempt of a primary to lead: Round counts its groups.
type Interval struct{ Since, Round uint64 }

// HardState is the state that a node needs after a crash, besides its log.
type HardState struct {
	Incarnation      uint64
	Epoch            uint64 // of the newest map that it has followed: older ones never count again
	Born             uint64 // incarnation that made the log, which says nothing about earlier ones
	LastEpochStarted uint64 // the newest interval in which it has agreed to a log
	Applying         uint64 // the store may have entries up to this one; they are stable
	Backfilling      bool   // the store is incomplete
}

// A Stored is a node's durable state at its start.
type Stored struct {
	HardState
	Tail Version   // of the last entry that was trimmed; the store has all up to it
	Runs []Version // the last entry of each epoch in the log, in order
}

// A Config configures a Node. All fields but Boot and Size are required.
type Config struct {
	Volume uint64
	Self   ID
	Up     []ID   // the hosts that may have a copy, including Self, until a map names them
	Boot   uint64 // a number that this host has never used before (its clock, in ns), in case its disk was replaced
	// Lease is the duration of a grant, from when it was requested; Grace is how long a member that
	// has granted one waits before it takes over. The rates of clocks may differ by a tenth.
	Lease, Grace time.Duration
	Beat         time.Duration // between two tries, and two requests for leases
	Keep         uint64        // entries that the log keeps for members that return
	Limit        uint64        // entries in the log at which no more are accepted
	Near         uint64        // entries that a member may lack when it is added to the group
	Batch        uint64        // entries in a Push at most
	// Size returns the bytes of all entries up to an index; only differences count. It may be nil:
	// then all entries are equally long.
	Size func(index uint64) uint64
}

var errConfig = errors.New("replica: bad configuration")

// Check validates a configuration.
func (c *Config) Check() error {
	switch {
	case !slices.Contains(c.Up, c.Self):
		return fmt.Errorf("%w: host %d is not among those that have the volume, %v", errConfig, c.Self, c.Up)
	case c.Lease <= 0 || c.Beat <= 0 || c.Grace < c.Lease+c.Lease/4:
		return fmt.Errorf("%w: lease %v, grace %v, beat %v: all must be positive, and the grace at least 5/4 of the lease, since clocks may differ by a tenth", errConfig, c.Lease, c.Grace, c.Beat)
	case c.Keep == 0 || c.Batch == 0 || c.Limit < 2*c.Keep:
		return fmt.Errorf("%w: keep %d, limit %d, batch %d: they must be positive, and the limit at least twice what is kept", errConfig, c.Keep, c.Limit, c.Batch)
	}
	return nil
}

// A Message goes from a node to another. The transport knows From.ID for certain. Messages may be
// lost, duplicated and reordered.
type Message struct {
	Volume   uint64
	From, To Member   // a Notify is for any incarnation, 0
	Interval Interval // zero in a Notify
	Body     Body
}

// A Body is one of the types below. The first four are a primary's.
type Body interface{ body() }

// Bodies of messages.
type (
	// Lease requests a lease. It also carries the volume's progress, and asks that entries up to
	// Hurry become durable without delay.
	Lease struct {
		Epoch          uint64
		Sent           time.Duration // the primary's clock
		Commit, Stable uint64
		Hurry          uint64
	}
	// Push carries the entries after Prev; the caller adds their content. Runs is the last entry of
	// each epoch among them. Reset: the log restarts after Prev, and the store will be copied,
	// unless the member has received more than Have meanwhile: then the primary has decided by an
	// old report.
	Push struct {
		Prev  Version
		Runs  []Version
		Reset bool
		Have  uint64
	}
	// Start says that Head is the end of the log: entries beyond it were never acknowledged.
	Start struct{ Head Version }
	// Chunk carries a piece of the store, from Cursor to before Next, as of Applied or later. The
	// sender's caller sets Next (Full with the last piece), and adds the content.
	Chunk struct{ Cursor, Next, Applied uint64 }
	// Report answers a primary. The numbers rise during an interval, and the largest counts.
	Report struct {
		Sent              time.Duration // of the granted Lease; 0: none
		Log               []Version     // the tail, then the last entry of each epoch; nil once Started
		Applying          uint64        // the log is never truncated below this
		Received, Durable uint64        // the log is the primary's up to here, in memory and on disk
		Started           bool          // the log is the primary's, and LastEpochStarted is durable
		Backfill          Backfill
		Cursor            uint64 // Pulling: of the Chunk that comes next
	}
	// Durable is only the Durable of a Report, which a member of the group sends with each sync.
	// Only the largest of an interval counts, so a counter carries it.
	Durable struct{ Index uint64 }
	// Notify is the report of a node that is not in the acting set (Ceph's MNotify).
	Notify struct {
		HardState
		Head Version // of what is durable
	}
)

func (Lease) body()   {}
func (Push) body()    {}
func (Start) body()   {}
func (Chunk) body()   {}
func (Report) body()  {}
func (Durable) body() {}
func (Notify) body()  {}

// Full is the cursor of a store that is complete (Ceph's last_backfill = MAX).
const Full uint64 = math.MaxUint64

// A Backfill is the progress of the copy of a store, in an interval.
type Backfill uint8

// Stages of a backfill.
const (
	Intact     Backfill = iota // the store needs none, as far as the node knows
	Incomplete                 // it was begun in an earlier interval
	Pulling                    // chunks are asked for
	Filled                     // it is complete
)

// An Action is an action of a Node; one of the types below.
type Action interface{ action() }

// Actions. Persist must be carried out in the order of Seq, so that a crash leaves the result of a
// prefix of them: for example as records of one file.
type (
	// Send sends a message, and with a Push or a Chunk the content. It may be lost.
	Send struct{ Message Message }
	// Persist changes what is durable: Synced, when it is.
	Persist struct {
		Seq    uint64
		Change Change
	}
	// Hurry asks that entries up to To become durable without delay, as soon as they are appended.
	// It is a hint: without it that may take a little longer.
	Hurry struct{ To uint64 }
	// Apply applies the entries up to To to the store. If Partial, only the parts before Before:
	// the rest comes with a later Chunk.
	Apply struct {
		To      uint64
		Partial bool
		Before  uint64
	}
	// Install writes a Chunk to the store.
	Install struct{ Chunk Chunk }
	// ReadMap asks the configuration manager for the map: MapIs. It may fail silently.
	ReadMap struct{}
	// Propose writes the map if the current one's epoch is one less, and reads it: MapIs. It may
	// fail silently, and be carried out late.
	Propose struct{ Map Map }
	// Form creates the group, and tells all members its interval: Formed. A member of another
	// incarnation must not join. Without members all operations complete at once.
	Form struct {
		Interval Interval
		Members  []Member
	}
	// Add adds a member to the group: Added.
	Add struct {
		Interval Interval
		Member   Member
	}
	// Post writes the entry that Write returned to all members of the group: Completed.
	Post struct {
		Version        Version
		Commit, Stable uint64
	}
	// AnswerView answers View. Without OK the group must end.
	AnswerView struct {
		Interval Interval
		Number   uint32
		OK       bool
	}
	// Dissolve ends the group that this node leads: it posts no more operations.
	Dissolve struct{ Interval Interval }
	// Leave ends the membership in a group, so that nothing more is received; received entries are
	// reported by Landed, and then Left.
	Leave struct{ Interval Interval }
	// Ack says that all writes up to an index are done: they are in the memory of all acting members.
	Ack struct{ Index uint64 }
	// Flushed says that a flush is done: what it covers is durable at all acting members.
	Flushed struct{ Call uint64 }
	// Deposed says that unanswered calls will get no answer here: another node is the primary. They
	// may have taken effect, or may still do so.
	Deposed struct{}
)

func (Send) action()       {}
func (Persist) action()    {}
func (Hurry) action()      {}
func (Apply) action()      {}
func (Install) action()    {}
func (ReadMap) action()    {}
func (Propose) action()    {}
func (Form) action()       {}
func (Add) action()        {}
func (Post) action()       {}
func (AnswerView) action() {}
func (Dissolve) action()   {}
func (Leave) action()      {}
func (Ack) action()        {}
func (Flushed) action()    {}
func (Deposed) action()    {}

// A Change is the change of a Persist; one of the types below.
type Change interface{ change() }

// Changes of what is durable.
type (
	// Append adds an entry, whose content came with Write, Landed or a Push.
	Append struct{ Version Version }
	// Truncate drops the entries after an index.
	Truncate struct{ After uint64 }
	// Reset empties the log, which then continues after Tail.
	Reset struct{ Tail Version }
	// Trim drops the entries up to an index, after the store has been synced.
	Trim struct{ To uint64 }
	// Save replaces the hard state; if Backfilling is false, after the store has been synced.
	Save struct{ HardState HardState }
)

func (Append) change()   {}
func (Truncate) change() {}
func (Reset) change()    {}
func (Trim) change()     {}
func (Save) change()     {}
