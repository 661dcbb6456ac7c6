package lab

import (
	"errors"
	"fmt"
	"log/slog"
	"net"

	"google.golang.org/grpc"

	"github.com/mcrdma/mcrdma/bmv2"
	"github.com/mcrdma/mcrdma/internal/softswitch"
	"github.com/mcrdma/mcrdma/internal/softswitch/p4rtserver"
	"github.com/mcrdma/mcrdma/internal/softswitch/ports"
	"github.com/mcrdma/mcrdma/internal/softswitch/traffic"
	"github.com/mcrdma/mcrdma/internal/topology"
)

// A Switch is an embedded switch that runs, with P4Runtime for its agent.
type Switch struct {
	*softswitch.Switch
	server *p4rtserver.Server
	grpc   *grpc.Server
	served chan struct{}
}

// OpenSwitch starts a switch without ports, with P4Runtime at a listener, which it closes in
// any case.
func OpenSwitch(l net.Listener, device uint64, log *slog.Logger) (*Switch, error) {
	sw, err := softswitch.New(softswitch.Config{CPUPort: bmv2.CPUPort, Log: log})
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	s := &Switch{Switch: sw, server: p4rtserver.New(sw, p4rtserver.Options{DeviceID: device}),
		grpc: grpc.NewServer(p4rtserver.ServerOptions()...), served: make(chan struct{})}
	s.server.Register(s.grpc)
	go func() { defer close(s.served); _ = s.grpc.Serve(l) }() // until it is stopped
	return s, nil
}

// Close ends P4Runtime and the switch.
func (s *Switch) Close() error {
	s.server.Close()
	s.grpc.Stop()
	<-s.served
	return s.Switch.Close()
}

func startSwitch(n *topology.Node, p plan, o Options) (_ *Switch, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("switch %s: %w", n.Name, err)
		}
	}()
	l, err := net.Listen("tcp", p.at(n, p4runtimePort).String())
	if err != nil {
		return nil, err
	}
	s, err := OpenSwitch(l, uint64(p.number(n)), o.Logger.With("switch", n.Name))
	if err != nil {
		return nil, err
	}
	for _, at := range n.Ports {
		local, remote := p.cable(n, at)
		tunnel, err := ports.OpenTunnel(ports.TunnelConfig{Local: local, Remote: remote})
		if err != nil {
			return nil, errors.Join(err, s.Close())
		}
		port, err := o.Port(n.Name, at.To.Name, tunnel)
		if err != nil {
			return nil, errors.Join(err, tunnel.Close(), s.Close())
		}
		if err := s.Attach(uint16(at.Near.Port), port); err != nil {
			return nil, errors.Join(err, port.Close(), s.Close())
		}
		if o.Rate == nil {
			continue
		}
		if err := s.SetRate(uint16(at.Near.Port), traffic.Rate{PerSecond: o.Rate(n.Name, at.To.Name), Bits: true}); err != nil {
			return nil, errors.Join(err, s.Close())
		}
	}
	return s, nil
}
