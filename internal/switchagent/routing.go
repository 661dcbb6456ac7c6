package switchagent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/mcrdma/mcrdma/internal/identity"
	"github.com/mcrdma/mcrdma/internal/routing"
	"github.com/mcrdma/mcrdma/internal/routing/bgp"
	"github.com/mcrdma/mcrdma/internal/routing/kernel"
	"github.com/mcrdma/mcrdma/internal/routing/static"
	"github.com/mcrdma/mcrdma/internal/switchagent/config"
	"github.com/mcrdma/mcrdma/internal/topology"
	"github.com/mcrdma/mcrdma/pkg/bifurcation"
)

// routes is the agent's routing source.
type routes struct {
	routing.Source
	// link tells the source that the agent's hellos found a link up or down. It does
	// not block.
	link func(port uint16, to string, up bool)
	// next looks ahead through non-programmable switches, if the source knows the fabric.
	next func(neighbor string, dst netip.Addr) ([]bifurcation.Switch, bool)
	// known is closed when the source has its routes again after a restart; nil: it has them from
	// the start.
	known stage
	// neighbors returns the BGP sessions, including configured ones that are not open; nil: the
	// source is not BGP.
	neighbors func(ctx context.Context) ([]neighbor, error)
	// end closes the source: permanently, or so that neighbors wait for its successor.
	end func(restart bool) error
}

// A Speaker is a BGP speaker; bgp.Source implements it.
type Speaker interface {
	routing.Source
	Announce(ctx context.Context, p netip.Prefix) error
	AddPeer(ctx context.Context, p bgp.Peer) error
	RemovePeer(ctx context.Context, addr netip.Addr) error
	Resume(ctx context.Context, peers []bgp.Peer) error
	Suspend() error
	Neighbors(ctx context.Context) ([]bgp.Neighbor, error)
}

// A neighbor is a switch with a BGP session, open or configured.
type neighbor struct {
	bgp.Neighbor
	name string
}

// noLink is the state of a session that is not open because no link to the switch is up.
const noLink = "no link"

// speaking opens a speaker.
type speaking func(ctx context.Context, cfg bgp.Config) (Speaker, error)

func speak(ctx context.Context, cfg bgp.Config) (Speaker, error) {
	return bgp.Open(ctx, cfg)
}

// openRouting opens the source that the configuration names. It runs until ctx ends, or Close.
func openRouting(ctx context.Context, cfg *config.Config, begun *start, open speaking, log *slog.Logger) (*routes, error) {
	switch cfg.Routing.Source {
	case config.Static:
		return openStatic(cfg)
	case config.Kernel:
		s, err := kernel.Open(kernel.Config{Namespace: cfg.Routing.Kernel.Namespace, Table: cfg.Routing.Kernel.Table,
			OnError: func(err error) { log.Error("the kernel's routes cannot be read", "error", err) }})
		if err != nil {
			return nil, err
		}
		return &routes{Source: s, link: func(uint16, string, bool) {}, end: func(bool) error { return s.Close() }}, nil
	case config.BGP:
		if open == nil {
			open = speak
		}
		return openBGP(ctx, cfg, begun, open, log)
	}
	return nil, fmt.Errorf("%w: there is no routing source %q", ErrConfig, cfg.Routing.Source)
}

// Check reads the files that a valid configuration names, except the state file: the topology and
// the certificates.
func Check(cfg *config.Config) error {
	if cfg.Routing.Source == config.Static {
		if _, err := openStatic(cfg); err != nil {
			return err
		}
	}
	files := identity.Files(cfg.TLS)
	if err := files.Accepted(identity.Identity{Role: identity.Switch, Name: cfg.Name}); err != nil && !errors.Is(err, identity.ErrSoon) {
		return fmt.Errorf("tls: %w", err)
	}
	return files.Exposed()
}

func openStatic(cfg *config.Config) (*routes, error) {
	t, err := topology.Load(cfg.Routing.Topology)
	if err != nil {
		return nil, err
	}
	for _, h := range t.Hosts { // packets to it would be taken for the switch's own
		if slices.Contains(cfg.Gateways, h.Address) {
			return nil, fmt.Errorf("%s: host %s: %v is the gateway of its prefix: give the host another address, or set gateways in this switch's configuration",
				cfg.Routing.Topology, h.Name, h.Address)
		}
		if h.Address == cfg.Address || slices.ContainsFunc(cfg.Ports, func(p config.Port) bool { return p.Address.Addr() == h.Address }) {
			return nil, fmt.Errorf("%s: host %s: %v is this switch's own in its agent's configuration: give one of them another address",
				cfg.Routing.Topology, h.Name, h.Address)
		}
	}
	s, err := static.Open(t, cfg.Name)
	if err == nil {
		err = agrees(cfg, t)
	}
	if err != nil {
		return nil, err
	}
	return &routes{Source: s, next: lookAhead(t), end: func(bool) error { return s.Close() }, link: func(port uint16, _ string, up bool) {
		if p, err := t.At(cfg.Name, uint32(port)); err == nil {
			_ = s.SetLink(p.Link, up) // the link is in the topology
		}
	}}, nil
}

// agrees reports how a switch's configuration differs from the topology in what routes depend on.
func agrees(cfg *config.Config, t *topology.Topology) error {
	n := t.Node(cfg.Name)
	var errs []error
	add := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("%s: %s", cfg.Routing.Topology, fmt.Sprintf(format, args...)))
	}
	if own := n.Switch.Prefixes; len(own) != len(cfg.Prefixes) || slices.ContainsFunc(own, func(p netip.Prefix) bool { return !slices.Contains(cfg.Prefixes, p) }) {
		add("the prefixes of %s are %v, and in its agent's configuration %v: want the same", cfg.Name, own, cfg.Prefixes)
	}
	for _, l := range n.Ports {
		want := config.Port{Port: uint16(l.Near.Port)} //nolint:gosec // checked
		text := fmt.Sprintf("{port: %d}", want.Port)
		if l.To.Switch != nil {
			want.To = l.To.Name
			text = fmt.Sprintf("{port: %d, to: %s}", want.Port, want.To)
		}
		if !slices.ContainsFunc(cfg.Ports, func(p config.Port) bool { return p.Port == want.Port && p.To == want.To }) {
			add("port %d of %s leads to %s, and not so in its agent's configuration: want %s under ports there", want.Port, cfg.Name, l.To.Name, text)
		}
	}
	return errors.Join(errs...)
}

// lookAhead follows the topology's paths from a non-programmable switch to the next programmable
// ones.
func lookAhead(t *topology.Topology) func(string, netip.Addr) ([]bifurcation.Switch, bool) {
	return func(neighbor string, dst netip.Addr) (next []bifurcation.Switch, direct bool) {
		seen := map[string]bool{neighbor: true}
		for queue := []string{neighbor}; len(queue) > 0; queue = queue[1:] {
			hops, err := t.Hops(queue[0], dst, nil)
			if err != nil || len(hops) == 0 {
				direct = true // unknown, so assume no programmable switch behind it
			}
			for _, h := range hops {
				switch sw := t.Node(h.Node).Switch; {
				case sw == nil:
					direct = true
				case seen[h.Node]:
				case sw.Programmable:
					seen[h.Node] = true
					next = append(next, bifurcation.Switch(h.Node))
				default:
					seen[h.Node] = true
					queue = append(queue, h.Node)
				}
			}
		}
		return next, direct
	}
}

// openBGP opens a speaker. A neighbor's session is kept only while a link to it works, because a
// session over another network would not notice a link failure.
func openBGP(ctx context.Context, cfg *config.Config, begun *start, open speaking, log *slog.Logger) (*routes, error) {
	r := cfg.Routing.BGP
	s, err := open(ctx, bgp.Config{ASN: r.ASN, RouterID: cfg.Address, Listen: r.Listen, ListenPort: r.Port,
		DrainTime: r.Drain, Restart: cfg.Restart.Hold, Logger: log.With("part", "bgp")})
	if err != nil {
		return nil, err
	}
	for _, p := range cfg.Prefixes {
		if err := s.Announce(ctx, p); err != nil {
			return nil, errors.Join(fmt.Errorf("announcing %v: %w", p, err), s.Close())
		}
	}
	n := &sessions{source: s, log: log, up: map[string]map[uint16]bool{}, peers: map[string]bgp.Peer{}, on: map[string]bool{},
		wake: make(wakeup, 1), known: make(stage)}
	if cfg.Restart.Hold > 0 {
		n.start = begun
	}
	watched := map[string]bool{}
	for _, p := range cfg.Ports {
		if p.To != "" && (p.Hello || cfg.Router(p).IsValid()) {
			watched[p.To] = true
		}
	}
	for _, sw := range cfg.Switches {
		if sw.BGP == nil {
			continue
		}
		n.peers[sw.Name] = bgp.Peer{Addr: sw.BGP.Address, ASN: sw.BGP.ASN, Port: sw.BGP.Port, Local: sw.BGP.Local,
			Passive: sw.BGP.Passive, HoldTime: sw.BGP.Hold, NextHop: sw.BGP.NextHop}
		if !watched[sw.Name] {
			n.link(0, sw.Name, true)
		}
	}
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() { n.run(ctx) })
	return &routes{Source: s, link: n.link, known: n.known, neighbors: n.neighbors, end: func(restart bool) error {
		cancel()
		wg.Wait()
		if restart {
			return s.Suspend()
		}
		return s.Close()
	}}, nil
}

// sessions opens and closes BGP sessions as links go up and down.
type sessions struct {
	source Speaker
	log    *slog.Logger
	peers  map[string]bgp.Peer
	wake   wakeup
	start  *start // nil: there is nothing to wait for
	known  stage  // closed when neighbors have advertised their routes again

	mu sync.Mutex
	up map[string]map[uint16]bool // neighbor's ports that are up
	on map[string]bool            // sessions that are open; run's own
}

// neighbors are all switches with a configured session, by name.
func (n *sessions) neighbors(ctx context.Context) ([]neighbor, error) {
	open, err := n.source.Neighbors(ctx)
	if err != nil {
		return nil, err
	}
	var out []neighbor
	for _, name := range slices.Sorted(maps.Keys(n.peers)) {
		p := n.peers[name]
		x := bgp.Neighbor{Addr: p.Addr, ASN: p.ASN, State: noLink, NextHop: p.NextHop}
		if i := slices.IndexFunc(open, func(o bgp.Neighbor) bool { return o.Addr == p.Addr }); i >= 0 {
			x = open[i]
		}
		out = append(out, neighbor{x, name})
	}
	return out, nil
}

func (n *sessions) link(port uint16, to string, up bool) {
	n.mu.Lock()
	if n.up[to] == nil {
		n.up[to] = map[uint16]bool{}
	}
	if up {
		n.up[to][port] = true
	} else {
		delete(n.up[to], port)
	}
	n.mu.Unlock()
	n.wake.wake()
}

// there reports whether a link to a neighbor is up.
func (n *sessions) there(name string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.up[name]) > 0
}

// resume opens all sessions again after a restart, if the switch kept forwarding by their routes.
// It does not wait until it knows which links work, because the neighbors might drop the routes
// before.
func (n *sessions) resume(ctx context.Context) {
	defer n.known.reach()
	if n.start == nil || !n.start.adopted.wait(ctx) || !n.start.forwards {
		return
	}
	var peers []bgp.Peer
	for name, p := range n.peers {
		n.on[name] = true
		peers = append(peers, p)
	}
	begun := time.Now()
	resuming, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() { n.giveUp(resuming) })
	defer wg.Wait()
	defer cancel()
	if err := n.source.Resume(ctx, peers); err != nil && ctx.Err() == nil {
		n.log.Error("BGP sessions after the restart", "error", err)
	}
	n.log.Info("BGP sessions are open again", "after", time.Since(begun))
}

// giveUp ends the sessions with neighbors that are gone, so that the speaker does not wait for
// them.
func (n *sessions) giveUp(ctx context.Context) {
	select {
	case <-time.After(linkGrace):
	case <-ctx.Done():
		return
	}
	for name, p := range n.peers {
		if n.there(name) {
			continue
		}
		if err := n.source.RemovePeer(ctx, p.Addr); err == nil { // else it is tried again later
			n.on[name] = false
			n.log.Info("BGP session", "switch", name, "open", false)
		}
	}
}

func (n *sessions) run(ctx context.Context) {
	n.resume(ctx)
	for ctx.Err() == nil {
		for name, p := range n.peers {
			want := n.there(name)
			if want == n.on[name] {
				continue
			}
			var err error
			if want {
				err = n.source.AddPeer(ctx, p)
			} else {
				err = n.source.RemovePeer(ctx, p.Addr)
			}
			if err != nil {
				n.log.Error("a BGP session", "switch", name, "open", want, "error", err)
				continue
			}
			n.on[name] = want
			n.log.Info("BGP session", "switch", name, "open", want)
		}
		select {
		case <-n.wake:
		case <-ctx.Done():
			return
		}
	}
}
