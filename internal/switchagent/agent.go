package switchagent

import (
	"context"
	"iter"
	"log/slog"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc"

	"github.com/mcrdma/mcrdma/internal/fanout"
	"github.com/mcrdma/mcrdma/internal/identity"
	"github.com/mcrdma/mcrdma/internal/routing/bgp"
	"github.com/mcrdma/mcrdma/internal/store"
	"github.com/mcrdma/mcrdma/internal/switchagent/config"
	"github.com/mcrdma/mcrdma/internal/switchagent/groups"
	"github.com/mcrdma/mcrdma/pkg/bifurcation"
)

// Store is the agent's state file; store.Store implements it.
type Store interface {
	Boot() uint64
	Load(bucket string) iter.Seq2[[]byte, []byte]
	Commit(ctx context.Context, edits ...store.Edit) error
	Failed() error
	Close() error
}

// Options are settings that are not in the configuration file. The zero value works.
type Options struct {
	Logger  *slog.Logger // nil: silent
	Version string
	// Standby makes New wait until no other agent has the state file open, and so controls the
	// switch.
	Standby bool
	// Audit is the longest time between two checks that the switch is still in the desired state; 0: 5
	// minutes. It is less, down to 10 s, where that is not much work.
	Audit time.Duration
	// Busy reports whether the processors are overloaded; nil: never.
	Busy func(now time.Time) bool
	// Listener serves instead of one at Config.Listen.
	Listener net.Listener
	// DialSwitch are further options of the connection to the switch.
	DialSwitch []grpc.DialOption
	// OpenStore opens the state instead of store.Open.
	OpenStore func(ctx context.Context, path string) (Store, error)
	// OpenBGP opens the speaker instead of bgp.Open.
	OpenBGP func(ctx context.Context, cfg bgp.Config) (Speaker, error)
	// Leave makes the neighbors use other paths when Run ends, whatever Config.Restart says. It is
	// for removing the switch.
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
	ports   *ports
	peers   peers
	table   *groups.Table
	metrics *metrics
	events  fanout.Fanout[groupEvent]

	listener net.Listener
	start    *start
	halt     func() // ends the driver
	rerun    wakeup
	wg       sync.WaitGroup // all goroutines of Run
}

func (a *Agent) files() identity.Files { return identity.Files(a.cfg.TLS) }

// Addr is where the agent serves.
func (a *Agent) Addr() net.Addr { return a.listener.Addr() }

// Ready is closed when the switch is first in the desired state after the agent's start: routes are
// known, and the steps of all earlier groups have been recomputed.
func (a *Agent) Ready() <-chan struct{} { return a.start.restored }

// absence is how long neighbors keep using the switch when Run ends.
func (a *Agent) absence() time.Duration {
	if a.opts.Leave {
		return 0
	}
	return a.cfg.Restart.Hold
}
