package lab

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync"
	"time"

	"google.golang.org/grpc"

	"github.com/mcrdma/mcrdma/internal/identity"
	"github.com/mcrdma/mcrdma/internal/labca"
	"github.com/mcrdma/mcrdma/internal/routing/bgp"
	"github.com/mcrdma/mcrdma/internal/softswitch/ports"
)

// Options configure a lab.
type Options struct {
	// Dir is an existing directory for certificates, state and sockets. Its name is
	// short: that of a socket has 107 bytes at most.
	Dir string
	// Logger gets what agents, switches and daemons log; nil: none.
	Logger *slog.Logger
	// Failed is called when an agent or daemon ends without being told to. It must
	// not block; nil: no call.
	Failed func(error)
	// Port is given each port as it is opened, of a switch at the cable to a host or
	// another switch, and returns what the switch gets instead: one that loses frames,
	// is slower, or writes them down. nil: as they are.
	Port func(at, to string, p ports.Port) (ports.Port, error)
	// DeadAfter is how long a daemon may be silent before its host is taken out of
	// groups; 0: 10 s, since all hosts are on one machine, which may have other things
	// to do. With more of it, queue pairs send later again what was lost.
	DeadAfter time.Duration
}

// A Lab runs. Its methods may be called by many goroutines at once.
type Lab struct {
	o        Options
	place    place
	ca       *labca.CA
	admin    identity.Files
	switches map[string]*embedded
	speakers map[string]*bgp.Source // that no agent has yet
	agents   []*part
	daemons  []*part

	mu    sync.Mutex
	conns map[string]*grpc.ClientConn // with agents, by address
}

func asItIs(_, _ string, p ports.Port) (ports.Port, error) { return p, nil }

// patience bounds what takes seconds.
const patience = 30 * time.Second

// Start starts a lab and waits until everything is ready: agents know the ways to
// both racks, and daemons serve. If it fails, or ctx ends, nothing is left.
func Start(ctx context.Context, o Options) (*Lab, error) {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Failed == nil {
		o.Failed = func(error) {}
	}
	if o.DeadAfter == 0 {
		o.DeadAfter = 10 * time.Second
	}
	if o.Port == nil {
		o.Port = asItIs
	}
	l := &Lab{o: o, switches: map[string]*embedded{}, speakers: map[string]*bgp.Source{}, conns: map[string]*grpc.ClientConn{}}
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("not within %v", patience))
	defer cancel()
	if err := l.start(ctx); err != nil {
		return nil, fmt.Errorf("starting the lab: %w", errors.Join(err, l.Close()))
	}
	return l, nil
}

func (l *Lab) start(ctx context.Context) (err error) {
	if l.place, err = findPlace(); err != nil {
		return err
	}
	if err := l.openCA(); err != nil {
		return err
	}
	if l.admin, err = l.issue(identity.Identity{Role: identity.Admin, Name: "admin"}); err != nil {
		return err
	}
	for i := range switches {
		n := &switches[i]
		if l.switches[n.name], err = startSwitch(n, l.place, l.o); err != nil {
			delete(l.switches, n.name)
			return err
		}
	}
	for i := range switches {
		n := &switches[i]
		s, err := openSpeaker(ctx, n, l.place, l.o.Logger.With("switch", n.name))
		if err != nil {
			return err
		}
		l.speakers[n.name] = s
	}
	for i := range switches {
		if err := l.startAgent(ctx, &switches[i]); err != nil {
			return err
		}
	}
	for i := range hosts {
		if err := l.startDaemon(ctx, &hosts[i]); err != nil {
			return err
		}
	}
	for _, p := range append(l.agents, l.daemons...) {
		if err := p.wait(ctx); err != nil {
			return err
		}
	}
	return l.converged(ctx)
}

func (l *Lab) startAgent(ctx context.Context, n *node) error {
	files, err := l.issue(identity.Identity{Role: identity.Switch, Name: n.name})
	if err != nil {
		return err
	}
	p, err := startAgent(ctx, agentConfig(n, l.place, files, l.o.Dir), l.speakers[n.name], l.o.Logger.With("agent", n.name), l.o.Failed)
	if err != nil {
		return err
	}
	delete(l.speakers, n.name) // the agent closes it
	l.agents = append(l.agents, p)
	return nil
}

// Close ends everything: daemons, then agents, then switches.
func (l *Lab) Close() error {
	errs := closeAll(l.daemons)
	l.mu.Lock()
	for _, c := range l.conns {
		errs = append(errs, c.Close())
	}
	clear(l.conns)
	l.mu.Unlock()
	errs = append(errs, closeAll(l.agents)...)
	for _, s := range l.speakers {
		errs = append(errs, s.Close())
	}
	for _, s := range l.switches {
		errs = append(errs, s.close())
	}
	l.daemons, l.agents = nil, nil
	clear(l.speakers)
	clear(l.switches)
	return errors.Join(errs...)
}

// closeAll ends parts at the same time.
func closeAll(parts []*part) []error {
	for _, p := range parts {
		p.end()
	}
	var errs []error
	for _, p := range parts {
		<-p.done
		errs = append(errs, p.err)
	}
	return errs
}

// A Host is what a user of the lab needs to know about a host.
type Host struct {
	Name    string
	Address string
	Switch  string // its ToR
	Socket  string // of its daemon, for applications
}

// Host tells of the host with this name; it must exist.
func (l *Lab) Host(name string) Host {
	h := hostOf(name)
	return Host{Name: h.name, Address: h.addr.String(), Switch: h.tor, Socket: l.socket(h)}
}

func (l *Lab) socket(h *host) string { return filepath.Join(l.o.Dir, h.name+".sock") }

// Network is where the lab is, for people.
func (l *Lab) Network() string { return l.place.String() }

// Agent is the address of a switch's agent.
func (l *Lab) Agent(name string) string {
	return l.place.at(switchOf(name).number, agentPort).String()
}

// Admin are the files of an administrator, for switchctl.
func (l *Lab) Admin() identity.Files { return l.admin }

// Uplink is how many bytes a host has sent, as its ToR has counted them: whole
// Ethernet frames.
func (l *Lab) Uplink(name string) uint64 {
	h := hostOf(name)
	number := switchOf(h.tor).port(h.name)
	for _, p := range l.switches[h.tor].sw.Stats().Ports {
		if p.Number == number {
			return p.RxBytes
		}
	}
	return 0
}

// Lost counts the frames that were dropped at the switches' ports.
func (l *Lab) Lost() (n uint64) {
	for _, s := range l.switches {
		for _, p := range s.sw.Stats().Ports {
			for _, d := range p.Drops {
				n += d
			}
		}
	}
	return n
}
