package lab

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	"github.com/mcrdma/mcrdma/internal/identity"
	"github.com/mcrdma/mcrdma/internal/labca"
	"github.com/mcrdma/mcrdma/internal/routing/bgp"
	"github.com/mcrdma/mcrdma/internal/softswitch/ports"
	"github.com/mcrdma/mcrdma/internal/topology"
)

// Options configure a lab.
type Options struct {
	// Dir is an existing directory for certificates, state and sockets. Its name is
	// short: that of a socket has 107 bytes at most.
	Dir string
	// Topology is the fabric, whose hosts have one link each; nil: two racks of two
	// hosts and a spine, as in [Picture].
	Topology *topology.Topology
	// Logger gets what agents, switches and daemons log; nil: none.
	Logger *slog.Logger
	// Failed is called when an agent or daemon ends without being told to. It must
	// not block; nil: no call.
	Failed func(error)
	// Port is given each port as it is opened, of a switch at the cable to a host or
	// another switch, and returns what the switch gets instead: one that loses frames,
	// is slower, or writes them down. nil: as they are.
	Port func(at, to string, p ports.Port) (ports.Port, error)
	// Rate is how fast a switch sends to a host or another switch, in bits a second; 0: as it
	// can. nil: all as they can.
	Rate func(at, to string) uint64
	// Groups is how many groups one host may send to; 0: the default of daemons and agents.
	Groups int
	// DeadAfter is how long a daemon may be silent before its host is taken out of
	// groups; 0: the default of daemons. With more of it, queue pairs send later again what
	// was lost.
	DeadAfter time.Duration
}

// A Lab runs. Its methods may be called by many goroutines at once.
type Lab struct {
	o        Options
	plan     plan
	ca       *labca.CA
	admin    identity.Files
	switches map[string]*Switch
	agents   []*Part
	daemons  []*Part

	speakers sync.Map // *bgp.Source by switch, that no agent has yet
}

func asItIs(_, _ string, p ports.Port) (ports.Port, error) { return p, nil }

// patience bounds what takes seconds.
const patience = 30 * time.Second

// Start starts a lab and waits until everything is ready: switches have ways to all
// racks, and daemons serve. If it fails, or ctx ends, nothing is left.
func Start(ctx context.Context, o Options) (*Lab, error) {
	o.Logger = cmp.Or(o.Logger, slog.New(slog.DiscardHandler))
	if o.Failed == nil {
		o.Failed = func(error) {}
	}
	if o.Port == nil {
		o.Port = asItIs
	}
	if o.Topology == nil {
		var err error
		if o.Topology, err = Racks(); err != nil {
			return nil, err
		}
	}
	l := &Lab{o: o, switches: map[string]*Switch{}}
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("not within %v", patience))
	defer cancel()
	if err := l.start(ctx); err != nil {
		return nil, fmt.Errorf("starting the lab: %w", errors.Join(err, l.Close()))
	}
	return l, nil
}

func (l *Lab) start(ctx context.Context) (err error) {
	if l.plan, err = newPlan(l.o.Topology); err != nil {
		return err
	}
	if err := l.plan.findNetwork(); err != nil {
		return err
	}
	if err := l.openCA(); err != nil {
		return err
	}
	if l.admin, err = l.issue(identity.Identity{Role: identity.Admin, Name: "admin"}); err != nil {
		return err
	}
	for _, n := range l.plan.switches() {
		s, err := startSwitch(n, l.plan, l.o)
		if err != nil {
			return err
		}
		l.switches[n.Name] = s
	}
	for _, step := range []struct {
		nodes []*topology.Node
		start func(context.Context, *topology.Node) error
	}{{l.plan.switches(), l.openSpeaker}, {l.plan.switches(), l.startAgent}, {l.plan.hosts(), l.startDaemon}} {
		for _, n := range step.nodes {
			if err := step.start(ctx, n); err != nil {
				return err
			}
		}
	}
	for _, p := range append(l.agents, l.daemons...) {
		if err := p.Wait(ctx); err != nil {
			return err
		}
	}
	return l.converged(ctx)
}

// Close ends everything: daemons, then agents, then switches.
func (l *Lab) Close() error {
	errs := closeAll(l.daemons)
	errs = append(errs, closeAll(l.agents)...)
	for _, s := range l.speakers.Range {
		errs = append(errs, s.(*bgp.Source).Close())
	}
	for _, s := range l.switches {
		errs = append(errs, s.Close())
	}
	l.daemons, l.agents = nil, nil
	l.speakers.Clear()
	clear(l.switches)
	return errors.Join(errs...)
}

// closeAll ends parts at the same time.
func closeAll(parts []*Part) []error {
	for _, p := range parts {
		p.cancel()
	}
	var errs []error
	for _, p := range parts {
		errs = append(errs, p.End())
	}
	return errs
}

// A Host is what a user of the lab needs to know about a host.
type Host struct {
	Name    string
	Address string
	Switch  string         // its ToR
	Socket  string         // of its daemon, for applications
	Local   netip.Addr     // its own loopback address, for what else runs on it
	Files   identity.Files // its certificate, for Address and Local
}

// Host describes the host with this name; it must exist.
func (l *Lab) Host(name string) Host {
	h := l.plan.Node(name)
	return Host{Name: h.Name, Address: h.Address.String(), Switch: tor(h).To.Name, Socket: l.socket(h), Local: l.plan.addr(h), Files: l.files(name)}
}

// Device is the host's device, as package qp opens it; one process at a time can.
func (l *Lab) Device(name string) string { return l.plan.device(l.plan.Node(name)) }

// Admin are the files of an administrator, for switchctl.
func (l *Lab) Admin() identity.Files { return l.admin }

// Uplink is how many bytes a host has sent, as its ToR has counted them: whole
// Ethernet frames.
func (l *Lab) Uplink(name string) uint64 {
	at := tor(l.plan.Node(name)).Far
	for _, p := range l.switches[at.Node].Stats().Ports {
		if uint32(p.Number) == at.Port {
			return p.RxBytes
		}
	}
	return 0
}
