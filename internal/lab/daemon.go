package lab

import (
	"context"
	"fmt"
	"net/netip"
	"path/filepath"

	"github.com/mcrdma/mcrdma/internal/connmgr"
	"github.com/mcrdma/mcrdma/internal/connmgr/config"
	"github.com/mcrdma/mcrdma/internal/hostload"
	"github.com/mcrdma/mcrdma/internal/identity"
	"github.com/mcrdma/mcrdma/internal/topology"
)

// daemonConfig is what a person would write for a host's daemon.
func (l *Lab) daemonConfig(h *topology.Node, files identity.Files) *config.Config {
	p, sw := l.plan, tor(h).To
	c := &config.Config{Name: h.Name, Address: h.Address, Device: p.device(h),
		Socket:    l.socket(h),
		Listen:    p.at(h, daemonPort).String(),
		TLS:       config.TLS(files),
		State:     filepath.Join(l.o.Dir, h.Name+".db"),
		Switch:    config.Switch{Name: sw.Name, Agent: l.Agent(sw.Name)},
		Bootstrap: p.addr(h),
		Relay:     config.Relay{Transport: "rdma", Block: 128 << 10}, // over the lab's cables, and several blocks to a write
		Rack:      uint32(p.number(sw)),
		Limits:    config.Limits{Groups: l.o.Groups, PerSender: l.o.Groups},
		Beat:      config.Beat{DeadAfter: l.o.DeadAfter}}
	for _, o := range p.hosts() {
		if o != h {
			c.Hosts = append(c.Hosts, config.Host{Name: o.Name, Address: o.Address, Daemon: p.at(o, daemonPort).String()})
		}
	}
	return c
}

func (l *Lab) startDaemon(ctx context.Context, h *topology.Node) error {
	files, err := l.issue(identity.Identity{Role: identity.Host, Name: h.Name, Addrs: []netip.Addr{h.Address, l.plan.addr(h)}})
	if err != nil {
		return err
	}
	m, err := connmgr.New(ctx, l.daemonConfig(h, files), connmgr.Options{Logger: l.o.Logger.With("host", h.Name), Version: "lab", Busy: new(hostload.Meter).Busy})
	if err != nil {
		return fmt.Errorf("daemon of %s: %w", h.Name, err)
	}
	l.daemons = append(l.daemons, Run("daemon of "+h.Name, m.Ready(), m.Run, l.o.Failed))
	return nil
}

func (l *Lab) socket(h *topology.Node) string { return filepath.Join(l.o.Dir, h.Name+".sock") }
