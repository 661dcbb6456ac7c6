// Package inproc runs a host's daemon inside the calling process, for tests and
// demonstrations where no cmd-daemon runs. The library finds it by its socket:
//
//	d, err := inproc.Start(ctx, inproc.Options{Name: "h1", Address: netip.MustParseAddr("127.0.1.1")})
//	defer d.Close()
//	client, err := mcrdma.Dial(ctx, mcrdma.Options{Socket: d.Socket()})
//
// Its state is in a separate directory, which Close removes: unlike those of cmd-daemon, its groups
// end when it is closed.
//
// It imports the daemon's code, which no other part of the library does.
package inproc

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/mcrdma/mcrdma/internal/connmgr"
	"github.com/mcrdma/mcrdma/internal/connmgr/config"
	"github.com/mcrdma/mcrdma/internal/hostload"
	"github.com/mcrdma/mcrdma/internal/store"
)

// Options describe the host. The zero value is a host called "local" at 127.0.0.1.
type Options struct {
	Name    string     // of the host; empty: "local"
	Address netip.Addr // of the RDMA device; zero: 127.0.0.1
	Device  string     // as pkg/qp names it; empty: "softroce:ADDRESS"
	// Listener serves other daemons. Start takes it over. Nil: port 9550 of Address, where
	// others look for a host that they have no other address for.
	Listener net.Listener
	// Hosts are other hosts, so that receivers can be named, or use another port.
	Hosts []Host
	// Switch and Agent are the name of the ToR and where its agent serves; empty:
	// hosts relay.
	Switch, Agent string
	// Cert, Key and CA are PEM files for mutual TLS; empty: plain text.
	Cert, Key, CA string
	// Rack is the host's, counted from 1; 0: not known.
	Rack uint32
	// Beat is the time between two beats to the daemons of receivers, and DeadAfter
	// how long one may be silent. 0: 80 ms and 1 s.
	Beat, DeadAfter time.Duration
	Logger          *slog.Logger // nil: silent
	// Metrics gets the daemon's metrics; nil: they are not registered.
	Metrics prometheus.Registerer
}

// A Host is another host.
type Host struct {
	Name    string
	Address netip.Addr // of its RDMA device
	Daemon  string     // "host:port"; empty: port 9550 of Address
}

// A Daemon runs until it is closed.
type Daemon struct {
	m      *connmgr.Manager
	dir    string
	cancel context.CancelFunc
	done   chan error
	once   sync.Once
	err    error
}

// Start starts a daemon and returns when it serves. It ends with Close, and not with
// ctx. Errors say what cannot be used or opened.
func Start(ctx context.Context, o Options) (*Daemon, error) {
	o.Name = cmp.Or(o.Name, "local")
	if !o.Address.IsValid() {
		o.Address = netip.AddrFrom4([4]byte{127, 0, 0, 1})
	}
	dir, err := os.MkdirTemp("", "mcrdma-")
	if err != nil {
		return nil, fmt.Errorf("inproc: %w", err)
	}
	cfg := &config.Config{Name: o.Name, Address: o.Address, Device: o.Device, Socket: filepath.Join(dir, "daemon.sock"),
		TLS: config.TLS{Cert: o.Cert, Key: o.Key, CA: o.CA}, Insecure: o.Cert == "", State: filepath.Join(dir, "daemon.db"),
		Switch: config.Switch{Name: o.Switch, Agent: o.Agent}, Rack: o.Rack, Beat: config.Beat{Interval: o.Beat, DeadAfter: o.DeadAfter}}
	if o.Listener != nil {
		cfg.Listen = o.Listener.Addr().String()
	}
	for _, h := range o.Hosts {
		cfg.Hosts = append(cfg.Hosts, config.Host{Name: h.Name, Address: h.Address, Daemon: h.Daemon})
	}
	open := func(ctx context.Context, path string) (connmgr.Store, error) {
		return store.Open(ctx, path, store.Options{NoSync: true})
	}
	m, err := connmgr.New(ctx, cfg, connmgr.Options{Logger: o.Logger, Metrics: o.Metrics, Hosts: o.Listener, OpenStore: open, Version: "in process",
		Busy: new(hostload.Meter).Busy})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("inproc: host %s: %w", o.Name, err), os.RemoveAll(dir))
	}
	run, cancel := context.WithCancel(context.WithoutCancel(ctx))
	d := &Daemon{m: m, dir: dir, cancel: cancel, done: make(chan error, 1)}
	go func() { d.done <- m.Run(run) }()
	select {
	case <-m.Ready():
		return d, nil
	case err := <-d.done:
		d.done <- err
		return nil, errors.Join(fmt.Errorf("inproc: host %s: %w", o.Name, err), d.Close())
	}
}

// Socket is where applications find the daemon.
func (d *Daemon) Socket() string { return d.m.Socket() }

// Addr is where other daemons find it.
func (d *Daemon) Addr() net.Addr { return d.m.Addr() }

// Close stops the daemon and removes its state.
func (d *Daemon) Close() error {
	d.once.Do(func() {
		d.cancel()
		d.err = errors.Join(<-d.done, os.RemoveAll(d.dir))
	})
	return d.err
}
