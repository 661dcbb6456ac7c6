package lab

import (
	"context"
	"fmt"
	"net/netip"
	"path/filepath"

	"github.com/mcrdma/mcrdma/internal/connmgr"
	"github.com/mcrdma/mcrdma/internal/connmgr/config"
	"github.com/mcrdma/mcrdma/internal/identity"
)

// daemonConfig is what a person would write for a host's daemon.
func (l *Lab) daemonConfig(h *host, files identity.Files) *config.Config {
	c := &config.Config{Name: h.name, Address: h.addr, Device: l.place.device(h),
		Socket:    l.socket(h),
		Listen:    l.place.at(h.number, daemonPort).String(),
		TLS:       config.TLS{Cert: files.Cert, Key: files.Key, CA: files.CA},
		State:     filepath.Join(l.o.Dir, h.name+".db"),
		Switch:    config.Switch{Name: h.tor, Agent: l.Agent(h.tor)},
		Bootstrap: l.place.addr(h.number),
		Relay:     config.Relay{Transport: "rdma", Block: 128 << 10}, // over the lab's cables, and several blocks to a write
		Rack:      h.rack,
		Beat:      config.Beat{DeadAfter: l.o.DeadAfter}}
	for _, o := range hosts {
		if o.name != h.name {
			c.Hosts = append(c.Hosts, config.Host{Name: o.name, Address: o.addr, Daemon: l.place.at(o.number, daemonPort).String()})
		}
	}
	return c
}

func (l *Lab) startDaemon(ctx context.Context, h *host) error {
	files, err := l.issue(identity.Identity{Role: identity.Host, Name: h.name, Addrs: []netip.Addr{h.addr}})
	if err != nil {
		return err
	}
	m, err := connmgr.New(ctx, l.daemonConfig(h, files), connmgr.Options{Logger: l.o.Logger.With("host", h.name), Version: "lab"})
	if err != nil {
		return fmt.Errorf("daemon of %s: %w", h.name, err)
	}
	l.daemons = append(l.daemons, start("daemon of "+h.name, m.Ready(), m.Run, l.o.Failed))
	return nil
}
