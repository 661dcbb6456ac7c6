package lab

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"path/filepath"
	"time"

	"github.com/mcrdma/mcrdma/internal/identity"
	"github.com/mcrdma/mcrdma/internal/routing/bgp"
	"github.com/mcrdma/mcrdma/internal/switchagent"
	"github.com/mcrdma/mcrdma/internal/switchagent/config"
)

const (
	// hello is between two hellos of a link. No cable is pulled here, and a busy
	// machine should not look like that.
	hello = 300 * time.Millisecond
	// settle is enough for sessions that all begin at the same time.
	settle = time.Second
)

// openSpeaker opens a switch's BGP speaker. That is done for all switches before the
// first has a session: GoBGP asks for it where several are in one process.
func openSpeaker(ctx context.Context, n *node, p place, log *slog.Logger) (*bgp.Source, error) {
	at := p.at(n.number, bgpPort)
	s, err := bgp.Open(ctx, bgp.Config{ASN: n.asn(), RouterID: n.address(), Listen: []netip.Addr{at.Addr()}, ListenPort: at.Port(),
		Logger: log.With("part", "bgp")})
	if err != nil {
		return nil, fmt.Errorf("switch %s: %w", n.name, err)
	}
	return s, nil
}

// agentConfig is what a person would write for a switch's agent.
func agentConfig(n *node, p place, files identity.Files, dir string) *config.Config {
	c := &config.Config{Name: n.name, Address: n.address(), MAC: n.mac(0), Programmable: true,
		P4Runtime: config.P4Runtime{Target: p.at(n.number, p4runtimePort).String(), DeviceID: uint64(n.number)},
		Listen:    p.at(n.number, agentPort).String(),
		TLS:       config.TLS{Cert: files.Cert, Key: files.Key, CA: files.CA},
		State:     filepath.Join(dir, n.name+".db"),
		Hello:     config.Hello{Interval: hello},
		Routing: config.Routing{Source: config.BGP, Settle: settle,
			BGP: config.Speaker{ASN: n.asn(), Listen: []netip.Addr{p.addr(n.number)}, Port: bgpPort + p.shift}}}
	if n.prefix.IsValid() {
		c.Prefixes = []netip.Prefix{n.prefix}
	}
	for i, to := range n.cables {
		port := config.Port{Port: uint16(i + 1), MAC: n.mac(uint16(i + 1))}
		if far := switchOf(to); far != nil {
			port.To, port.Hello = to, true
			c.Switches = append(c.Switches, neighbour(n, far, p))
		}
		c.Ports = append(c.Ports, port)
	}
	return c
}

// neighbour is how a switch's configuration names another switch.
func neighbour(n, far *node, p place) config.Switch {
	s := config.Switch{Name: far.name, Programmable: true, Agent: p.at(far.number, agentPort).String(),
		Addresses: []netip.Addr{far.address()},
		BGP: &config.Peer{Address: p.addr(far.number), ASN: far.asn(), Port: bgpPort + p.shift, Local: p.addr(n.number),
			Passive: n.number > far.number}}
	if far.prefix.IsValid() {
		s.Prefixes = []netip.Prefix{far.prefix}
	}
	return s
}

// A part runs until it is told to end: an agent or a daemon.
type part struct {
	name  string
	ready <-chan struct{}
	end   context.CancelFunc
	done  chan struct{}
	err   error // once done is closed
}

// start runs a part; failed is called if it ends without being told to.
func start(name string, ready <-chan struct{}, run func(context.Context) error, failed func(error)) *part {
	ctx, cancel := context.WithCancel(context.Background())
	p := &part{name: name, ready: ready, end: cancel, done: make(chan struct{})}
	go func() {
		defer close(p.done)
		if p.err = run(ctx); p.err != nil {
			p.err = fmt.Errorf("%s: %w", name, p.err)
		}
		if ctx.Err() == nil {
			failed(errors.Join(fmt.Errorf("%s has ended", name), p.err))
		}
	}()
	return p
}

func (p *part) wait(ctx context.Context) error {
	select {
	case <-p.ready:
		return nil
	case <-p.done:
		return errors.Join(fmt.Errorf("%s has ended before it was ready", p.name), p.err)
	case <-ctx.Done():
		return fmt.Errorf("%s: not ready: %w", p.name, context.Cause(ctx))
	}
}

func startAgent(ctx context.Context, cfg *config.Config, speaker *bgp.Source, log *slog.Logger, failed func(error)) (*part, error) {
	a, err := switchagent.New(ctx, cfg, switchagent.Options{Logger: log, Version: "lab",
		OpenBGP: func(context.Context, bgp.Config) (switchagent.Speaker, error) { return speaker, nil }})
	if err != nil {
		return nil, fmt.Errorf("agent of %s: %w", cfg.Name, err)
	}
	return start("agent of "+cfg.Name, a.Ready(), a.Run, failed), nil
}
