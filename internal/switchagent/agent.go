package switchagent

import (
	"context"
	"iter"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	"github.com/mcrdma/mcrdma/internal/fanout"
	"github.com/mcrdma/mcrdma/internal/identity"
	"github.com/mcrdma/mcrdma/internal/p4rt"
	"github.com/mcrdma/mcrdma/internal/routing/bgp"
	"github.com/mcrdma/mcrdma/internal/store"
	"github.com/mcrdma/mcrdma/internal/switchagent/config"
	"github.com/mcrdma/mcrdma/internal/switchagent/links"
	"github.com/mcrdma/mcrdma/pkg/bifurcation"
)

// Store is what the agent needs of its store; store.Store is one.
type Store interface {
	Boot() uint64
	Load(bucket string) iter.Seq2[[]byte, []byte]
	Commit(ctx context.Context, edits ...store.Edit) error
	Failed() error
	Close() error
}

// Options are what a configuration file does not say. The zero value works.
type Options struct {
	Logger  *slog.Logger // nil: silent
	Version string
	// Standby has New wait until no other agent has the state open, and so the
	// switch.
	Standby bool
	// Audit is the time between two checks that the switch still is in the wanted
	// state; 0: 5 minutes.
	Audit time.Duration
	// Busy says whether the processors have more work than they can do at once; nil: they
	// never have.
	Busy func(now time.Time) bool
	// Listener serves instead of one at Config.Listen.
	Listener net.Listener
	// DialSwitch are further options of the connection to the switch.
	DialSwitch []grpc.DialOption
	// OpenStore opens the state instead of store.Open.
	OpenStore func(ctx context.Context, path string) (Store, error)
	// OpenBGP opens the speaker instead of bgp.Open.
	OpenBGP func(ctx context.Context, cfg bgp.Config) (Speaker, error)
	// Leave makes the neighbors turn to other paths when Run ends, whatever
	// Config.Restart says: for when the switch itself is to be taken away.
	Leave bool
	// DialPeers are further options of the connections to other agents.
	DialPeers []grpc.DialOption
}

// An Agent is the agent of one switch.
type Agent struct {
	cfg  *config.Config
	name bifurcation.Switch
	opts Options
	log  *slog.Logger

	store   Store
	driver  *driver
	uni     *uni
	routes  *routes
	linksMu sync.Mutex
	links   *links.Manager
	peers   map[bifurcation.Switch]*peer
	metrics *metrics
	events  fanout.Fanout[groupEvent]

	listener net.Listener
	packets  chan p4rt.PacketIn
	digests  chan p4rt.ARPDigest
	portTo   map[uint16]string
	started  time.Time

	adopted  chan struct{} // closed when the switch has been read for the first time
	forwards bool          // the switch had routes then; to be read once adopted is closed
	settled  chan struct{} // closed when the routes are known
	restored chan struct{} // closed when all steps have been made again
	halt     func()        // ends the driver
	remade   sync.Once
	rerun    wakeup
	opened   wakeup         // a session with the switch has begun
	wg       sync.WaitGroup // all goroutines of Run
	sequence atomic.Uint64  // of requests to others, and generations; never repeats
	detours  atomic.Bool    // some step bypasses a switch that did not answer

	sizes map[string]uint64 // of the program's tables

	mu           sync.Mutex
	steps        map[stepKey]*step
	groups       map[groupKey]*group
	bySource     map[netip.Addr]int
	heldBy       map[bifurcation.Switch]map[*step]struct{}
	slots        *slots
	groupNumbers *numbers
	preNumbers   *numbers
}

func (a *Agent) files() identity.Files { return identity.Files(a.cfg.TLS) }

// Addr is where the agent serves.
func (a *Agent) Addr() net.Addr { return a.listener.Addr() }

// Ready is closed when the switch first is in the wanted state after the agent
// started: routes are known, and all earlier groups have been made again.
func (a *Agent) Ready() <-chan struct{} { return a.restored }

// absence is how long neighbors keep using the switch when Run ends.
func (a *Agent) absence() time.Duration {
	if a.opts.Leave {
		return 0
	}
	return a.cfg.Restart.Hold
}

// background runs what must be finished even if the caller has gone.
func (a *Agent) background(f func(context.Context)) {
	a.wg.Go(func() { f(context.Background()) })
}
