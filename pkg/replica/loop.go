package replica

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/mcrdma/mcrdma/pkg/replica/core"
)

// outside is what a loop uses of its host.
type outside interface {
	send(m message)
	device(id core.ID) (address string, ok bool)
	reachable(id core.ID) bool
	named(host string) core.ID // 0: there is none
	readMap(ctx context.Context) (core.Map, error)
	propose(ctx context.Context, m core.Map) (core.Map, error)
	// lead makes a group of members, by the addresses of their devices.
	lead(ctx context.Context, wg *sync.WaitGroup, iv core.Interval, members map[string]core.Member, first uint64, l leaderEvents) *leading
	// statusChanged is called with the status after each event.
	statusChanged(s core.Status, failure error)
}

// A loop owns a volume's node, and carries out its actions, one event after another. Everything
// else posts events to it; a poster carries out its event itself if none is being carried out. Its
// other methods are called by itself.
type loop struct {
	*mailbox
	beat    time.Duration
	volume  uint64
	node    *core.Node
	out     outside
	log     *slog.Logger
	ctx     context.Context // of all that it has begun
	cancel  context.CancelFunc
	wg      sync.WaitGroup // the same
	stopped chan struct{}

	memory  memory
	content *content
	calls   *calls
	disk    *disk
	follow  *following
	lead    *leading      // nil: there is none
	alone   core.Interval // in which this node is the only member of the group
	joining core.Member   // the first other member is being added

	shown   uint64    // entries that the store has
	unsaved []unsaved // by seq
	pieces  []piece   // of the chunk that is being installed
	busy    busy
	failure error // the node has ended by it
}

// busy is the work in progress.
type busy struct {
	reading, proposing int // calls to the configuration manager
	timer              *time.Timer
	due                time.Duration // of the timer
}

// unsaved is the buffer of an entry that is not durable yet.
type unsaved struct {
	seq uint64
	buf *Buffer
}

// now is the time since boot. It includes time in which the host is suspended, so leases expire
// meanwhile. It is a raw system call, because it does not block.
func now() time.Duration {
	var t unix.Timespec
	if _, _, errno := unix.RawSyscall(unix.SYS_CLOCK_GETTIME, unix.CLOCK_BOOTTIME, uintptr(unsafe.Pointer(&t)), 0); errno != 0 {
		panic(errno) // Linux has this clock since 2.6.39
	}
	return time.Duration(t.Nano())
}

func (l *loop) tick() {
	l.node.Tick(now())
	if l.busy.due > now() {
		l.busy.due = 0 // it came early
	}
}

// fail ends the node: it claims nothing more, and the group goes on without it.
func (l *loop) fail(err error) {
	if l.failure != nil {
		return
	}
	l.failure = fmt.Errorf("%w; this host's copy has ended, and the others go on without it: repair that, and start this host's mcblock again", err)
	l.log.Error("the volume's copy on this host has ended", "error", err)
	l.cancel() // leaves its group, and ends the group that it leads
	l.calls.end()
	if l.lead != nil {
		l.lead.close()
	}
	l.content.truncate(l.content.tail) // requests at this host, which others serve, need the memory
}

// synced: changes up to seq are durable.
func (l *loop) synced(seq uint64, err error) {
	if err != nil {
		l.fail(fmt.Errorf("the log: %w", err))
		seq = math.MaxUint64 // nothing is written any more
	}
	n := 0
	for ; n < len(l.unsaved) && l.unsaved[n].seq <= seq; n++ {
		l.unsaved[n].buf.Release()
	}
	l.unsaved = append(l.unsaved[:0], l.unsaved[n:]...)
	if l.failure != nil {
		return
	}
	l.content.durable = seq
	l.spare()
	l.node.Synced(seq, now())
}

// spare releases memory that need not be kept.
func (l *loop) spare() {
	to := l.shown
	if l.memory.wanted() {
		to = l.content.head()
	}
	l.content.release(to)
}

// mapIs handles the map from the configuration manager.
func (l *loop) mapIs(m core.Map) {
	l.node.MapIs(m, now()) // even after a failure, because requests go to the primary
}
