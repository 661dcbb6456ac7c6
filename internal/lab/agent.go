package lab

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/mcrdma/mcrdma/internal/hostload"
	"github.com/mcrdma/mcrdma/internal/identity"
	"github.com/mcrdma/mcrdma/internal/routing/bgp"
	"github.com/mcrdma/mcrdma/internal/switchagent"
	"github.com/mcrdma/mcrdma/internal/switchagent/config"
	"github.com/mcrdma/mcrdma/internal/topology"
)

// settle is enough for sessions that all begin at the same time.
const settle = time.Second

// openSpeaker opens a switch's BGP speaker. That is done for all switches before the
// first has a session: GoBGP asks for it where several are in one process.
func (l *Lab) openSpeaker(ctx context.Context, n *topology.Node) error {
	if len(l.plan.switches()) == 1 { // it has no neighbor
		return nil
	}
	at := l.plan.at(n, bgpPort)
	s, err := bgp.Open(ctx, bgp.Config{ASN: l.plan.asn(n), RouterID: n.Address, Listen: []netip.Addr{at.Addr()}, ListenPort: at.Port(),
		Logger: l.o.Logger.With("switch", n.Name, "part", "bgp")})
	if err != nil {
		return fmt.Errorf("switch %s: %w", n.Name, err)
	}
	l.speakers.Store(n.Name, s)
	return nil
}

// agentConfig is what a person would write for a switch's agent.
func (l *Lab) agentConfig(n *topology.Node, files identity.Files) *config.Config {
	p := l.plan
	c := &config.Config{Name: n.Name, Address: n.Address, MAC: p.mac(n), Prefixes: n.Switch.Prefixes, Programmable: n.Switch.Programmable,
		P4Runtime: config.P4Runtime{Target: p.at(n, p4runtimePort).String(), DeviceID: uint64(p.number(n))},
		Listen:    p.at(n, agentPort).String(),
		TLS:       config.TLS(files),
		State:     filepath.Join(l.o.Dir, n.Name+".db"),
		Limits:    config.Limits{GroupsPerSource: l.o.Groups},
		Routing: config.Routing{Source: config.BGP, Settle: settle,
			BGP: config.Speaker{ASN: p.asn(n), Listen: []netip.Addr{p.addr(n)}, Port: bgpPort + p.shift}}}
	if _, speaks := l.speakers.Load(n.Name); !speaks {
		c.Routing = config.Routing{Source: config.Static, Topology: filepath.Join(l.o.Dir, "fabric.yaml")}
	}
	named := map[string]bool{}
	for _, at := range n.Ports {
		port, far := config.Port{Port: uint16(at.Near.Port)}, at.To
		if far.Switch != nil {
			port.To, port.Hello = far.Name, true
			if !named[far.Name] {
				c.Switches = append(c.Switches, config.Switch{Name: far.Name, Programmable: far.Switch.Programmable, Agent: l.Agent(far.Name),
					Addresses: []netip.Addr{far.Address}, Prefixes: far.Switch.Prefixes,
					BGP: &config.Peer{Address: p.addr(far), ASN: p.asn(far), Port: bgpPort + p.shift, Local: p.addr(n),
						Passive: p.number(n) > p.number(far)}})
			}
			named[far.Name] = true
		}
		c.Ports = append(c.Ports, port)
	}
	for _, far := range p.switches() { // behind switches that only route, as "switchctl init" names them
		if !named[far.Name] && far != n && far.Switch.Programmable {
			c.Switches = append(c.Switches, config.Switch{Name: far.Name, Programmable: true, Agent: l.Agent(far.Name),
				Addresses: []netip.Addr{far.Address}, Prefixes: far.Switch.Prefixes})
		}
	}
	return c
}

func (l *Lab) startAgent(ctx context.Context, n *topology.Node) error {
	files, err := l.issue(identity.Identity{Role: identity.Switch, Name: n.Name})
	if err != nil {
		return err
	}
	if _, speaks := l.speakers.Load(n.Name); !speaks {
		prefixes := make([]string, 0, len(n.Switch.Prefixes))
		for _, p := range n.Switch.Prefixes {
			prefixes = append(prefixes, p.String())
		}
		text := fmt.Sprintf("switches: [{name: %s, address: %v, prefixes: [%s]}]\n", n.Name, n.Address, strings.Join(prefixes, ", "))
		if err := os.WriteFile(filepath.Join(l.o.Dir, "fabric.yaml"), []byte(text), 0o600); err != nil {
			return err
		}
	}
	a, err := switchagent.New(ctx, l.agentConfig(n, files), switchagent.Options{Logger: l.o.Logger.With("agent", n.Name), Version: "lab", Busy: new(hostload.Meter).Busy,
		OpenBGP: func(context.Context, bgp.Config) (switchagent.Speaker, error) {
			s, _ := l.speakers.LoadAndDelete(n.Name) // the agent closes it
			return s.(*bgp.Source), nil
		}})
	if err != nil {
		return fmt.Errorf("agent of %s: %w", n.Name, err)
	}
	l.agents = append(l.agents, Run("agent of "+n.Name, a.Ready(), a.Run, l.o.Failed))
	return nil
}

// Agent is the address of a switch's agent.
func (l *Lab) Agent(name string) string { return l.plan.at(l.plan.Node(name), agentPort).String() }
