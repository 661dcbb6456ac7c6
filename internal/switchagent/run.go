package switchagent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"net"
	"time"

	"google.golang.org/grpc"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/internal/grpcserver"
	"github.com/mcrdma/mcrdma/internal/identity"
	"github.com/mcrdma/mcrdma/internal/p4rt"
	"github.com/mcrdma/mcrdma/internal/store"
	"github.com/mcrdma/mcrdma/internal/switchagent/config"
	"github.com/mcrdma/mcrdma/internal/switchagent/groups"
	"github.com/mcrdma/mcrdma/internal/switchagent/links"
	"github.com/mcrdma/mcrdma/internal/switchagent/planner"
	"github.com/mcrdma/mcrdma/internal/switchagent/unicast"
	"github.com/mcrdma/mcrdma/internal/switchspec"
	"github.com/mcrdma/mcrdma/pkg/bifurcation"
)

// New returns an agent. It listens, and opens its state file, and does nothing else before Run,
// which must be called. Errors wrap ErrConfig or say what cannot be opened.
func New(ctx context.Context, cfg *config.Config, o Options) (*Agent, error) {
	own := *cfg
	cfg = &own
	cfg.SetDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrConfig, err)
	}
	a := &Agent{cfg: cfg, name: bifurcation.Switch(cfg.Name), opts: o, log: o.Logger,
		ports: &ports{packets: make(chan p4rt.PacketIn), digests: make(chan p4rt.ARPDigest), opened: make(wakeup, 1)},
		start: newStart(), rerun: make(wakeup, 1),
		peers: peers{name: bifurcation.Switch(cfg.Name), all: map[bifurcation.Switch]*peer{}}}
	if a.log == nil {
		a.log = slog.New(slog.DiscardHandler)
	}
	a.metrics = newMetrics(a)
	a.peers.metrics = a.metrics
	if err := a.open(ctx); err != nil {
		a.close()
		return nil, err
	}
	return a, nil
}

// open opens everything that can fail at the start.
func (a *Agent) open(ctx context.Context) error {
	client, err := p4rt.New(p4rt.Config{Target: a.cfg.P4Runtime.Target, DeviceID: a.cfg.P4Runtime.DeviceID,
		ElectionID: p4rt.ElectionID{Low: a.cfg.P4Runtime.ElectionID}, Dial: append([]grpc.DialOption{reconnect}, a.opts.DialSwitch...), Busy: a.opts.Busy})
	if err != nil {
		return err
	}
	a.driver = newDriver(client, a.log)
	a.driver.audit = cmp.Or(a.opts.Audit, 5*time.Minute)
	a.driver.judge, a.driver.found, a.driver.opened = a.judge, a.found, a.listen
	open := a.opts.OpenStore
	if open == nil {
		o := store.Options{Kind: "switch agent"}
		if a.opts.Standby {
			o.Wait = 100 * 365 * 24 * time.Hour
		}
		open = func(ctx context.Context, path string) (Store, error) { return store.Open(ctx, path, o) }
	}
	if a.store, err = open(ctx, a.cfg.State); err != nil {
		a.store = nil // not an interface around a nil pointer
		return err
	}
	a.peers.sequence.Store(a.store.Boot())
	a.table, err = groups.New(ctx, groups.Options{Config: a.cfg, File: a.store, Sequence: &a.peers.sequence, Log: a.log, Clear: a.driver.clear,
		Settings: switchspec.Settings{ICRC: icrcModes[a.cfg.ICRC], HashSeed: a.cfg.HashSeed}})
	if errors.Is(err, groups.ErrRecord) {
		return fmt.Errorf("%w: the state in %s holds %w; move the file away to begin anew, and have the groups installed again", ErrConfig, a.cfg.State, err)
	}
	if errors.Is(err, groups.ErrOther) {
		return fmt.Errorf("%w: state: %s: %w: give each agent a file of its own; if the switch was renamed, move the file away", ErrConfig, a.cfg.State, err)
	}
	if err != nil {
		return err
	}
	a.peers.table = a.table
	if err := a.dialPeers(); err != nil {
		return err
	}
	if a.listener = a.opts.Listener; a.listener == nil {
		if a.listener, err = net.Listen("tcp", a.cfg.Listen); err != nil {
			return fmt.Errorf("%w: %w", ErrConfig, grpcserver.CannotListen("listen", a.cfg.Listen, err))
		}
	}
	return nil
}

func (a *Agent) dialPeers() error {
	own := identity.Identity{Role: identity.Switch, Name: a.cfg.Name}
	for _, s := range a.cfg.Switches {
		if s.Agent == "" || !s.Programmable {
			continue
		}
		creds, err := a.files().Client(identity.Identity{Role: identity.Switch, Name: s.Name})
		if err != nil {
			return fmt.Errorf("%w: %w", ErrConfig, err)
		}
		conn, err := grpc.NewClient(s.Agent, append(append(clientOptions(), grpc.WithTransportCredentials(creds), identity.Claim(own)), a.opts.DialPeers...)...)
		if err != nil {
			return fmt.Errorf("%w: the agent of switch %s: %w", ErrConfig, s.Name, err)
		}
		name := bifurcation.Switch(s.Name)
		a.peers.all[name] = &peer{of: &a.peers, at: name, conn: conn, rpc: mcrdmav1.NewSwitchPeerClient(conn),
			held: planner.Holdings[groups.StepKey, *groups.Step]{}, unsure: make(wakeup, 1)}
	}
	return nil
}

// farewellTime limits the time for sending the last hellos to the switch.
const farewellTime = time.Second

// Run runs the agent until ctx ends, and closes it. The switch keeps its entries. The neighbors
// keep using it for Config.Restart, or use other paths if that is zero.
func (a *Agent) Run(ctx context.Context) error {
	defer a.close()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var err error
	if a.routes, err = openRouting(ctx, a.cfg, a.start, a.opts.OpenBGP, a.log); err != nil {
		return err
	}
	defer func() {
		if err := a.routes.end(a.absence() > 0); err != nil {
			a.log.Warn("the end of routing", "error", err)
		}
	}()
	table, err := unicast.New(a.unicastConfig())
	if err != nil {
		return fmt.Errorf("%w: %w", ErrConfig, err)
	}
	a.uni = newUni(table, a.driver)
	a.start.at = time.Now()
	a.ports.links = links.New(a.linksConfig(), a.start.at)

	server, err := a.newServer(ctx)
	if err != nil {
		return err
	}
	stopMetrics, err := grpcserver.ServeMetrics(a.cfg.Metrics, a.metrics.registry, func() (bool, string) {
		why := a.waitsFor()
		return why == "", why
	}, cancel)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrConfig, err)
	}
	defer stopMetrics()
	driving, halt := context.WithCancel(context.WithoutCancel(ctx)) // the last hellos go to the switch
	defer halt()
	a.halt = halt
	said := make(chan struct{})
	a.wg.Go(func() { a.driver.run(driving) })
	a.wg.Go(func() { defer close(said); a.fabric(ctx) })
	a.wg.Go(func() { a.follow(ctx) })
	a.wg.Go(func() { a.tick(ctx) })
	a.wg.Go(func() {
		if a.start.restored.wait(ctx) { // before that, it is unknown what is held
			a.syncPeers(ctx)
		}
	})
	a.wg.Go(func() {
		if err := server.Serve(a.listener); err != nil {
			cancel(fmt.Errorf("serving: %w", err))
		}
	})
	a.log.Info("the agent serves", "switch", a.name, "address", a.listener.Addr())
	<-ctx.Done()
	server.Stop()
	select {
	case <-said:
	case <-time.After(farewellTime):
	}
	halt()
	a.wg.Wait()
	if err := context.Cause(ctx); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

func (a *Agent) close() {
	for _, p := range a.peers.all {
		_ = p.conn.Close()
	}
	if a.listener != nil {
		_ = a.listener.Close()
	}
	if a.driver != nil {
		_ = a.driver.client.Close()
	}
	if a.store != nil {
		_ = a.store.Close()
	}
}

func (a *Agent) unicastConfig() unicast.Config {
	c := unicast.Config{Name: a.cfg.Name, MAC: a.cfg.MAC, Addr: a.cfg.Address, Prefixes: a.cfg.Prefixes, Gateways: a.cfg.Gateways,
		ECN: ecnPort(a.cfg.ECN), Guard: a.cfg.Guard, Next: a.routes.next}
	for _, p := range a.cfg.Ports {
		router := a.cfg.Router(p)
		c.Ports = append(c.Ports, unicast.Port{Number: p.Port, Name: p.Name, MAC: p.MAC, To: p.To, Hello: p.Hello || router.IsValid(),
			PeerMAC: p.PeerMAC, Router: router})
		if p.Address.IsValid() {
			c.Gateways = append(c.Gateways[:len(c.Gateways):len(c.Gateways)], p.Address.Addr())
		}
	}
	for _, h := range a.cfg.Hosts {
		c.Hosts = append(c.Hosts, unicast.Host{Addr: h.Address, MAC: h.MAC, Port: h.Port})
	}
	for _, s := range a.cfg.Switches {
		x := unicast.Switch{Name: s.Name, Programmable: s.Programmable, Addrs: s.Addresses, Prefixes: s.Prefixes}
		if s.BGP != nil {
			x.Addrs = append(x.Addrs[:len(x.Addrs):len(x.Addrs)], s.BGP.Address)
		}
		c.Switches = append(c.Switches, x)
	}
	return c
}

// ecnPort converts the marking's parameters to the data plane's units; nil: no marking.
func ecnPort(e config.ECN) *switchspec.ECNPort {
	if e.Off {
		return nil
	}
	kmin, kmax := e.Steps()
	// In 1/65536, at least 1, because 0 would mean never, and at most 65535.
	chance := min(max(math.Round(e.PMax*65536), 1), 65535)
	return &switchspec.ECNPort{KMin: kmin, KMax: kmax, PMax: uint16(chance)}
}

func (a *Agent) linksConfig() links.Config {
	c := links.Config{Name: a.cfg.Name, Interval: a.cfg.Hello.Interval, Multiplier: a.cfg.Hello.Multiplier,
		Rand: rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64()))}
	for _, p := range a.cfg.Ports {
		if router := a.cfg.Router(p); p.Hello || router.IsValid() {
			c.Ports = append(c.Ports, links.Port{Number: p.Port, MAC: p.MAC, Expect: p.To, Router: router, Own: p.Address.Addr()})
		}
	}
	return c
}
