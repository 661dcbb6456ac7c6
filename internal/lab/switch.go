package lab

import (
	"errors"
	"fmt"
	"net"

	"google.golang.org/grpc"

	"github.com/mcrdma/mcrdma/bmv2"
	"github.com/mcrdma/mcrdma/internal/softswitch"
	"github.com/mcrdma/mcrdma/internal/softswitch/p4rtserver"
	"github.com/mcrdma/mcrdma/internal/softswitch/ports"
)

// An embedded switch runs, with P4Runtime for its agent.
type embedded struct {
	sw     *softswitch.Switch
	server *p4rtserver.Server
	grpc   *grpc.Server
	served chan struct{}
}

func startSwitch(n *node, p place, o Options) (_ *embedded, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("switch %s: %w", n.name, err)
		}
	}()
	l, err := net.Listen("tcp", p.at(n.number, p4runtimePort).String())
	if err != nil {
		return nil, err
	}
	sw, err := softswitch.New(softswitch.Config{CPUPort: bmv2.CPUPort, Log: o.Logger.With("switch", n.name)})
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	for i, to := range n.cables {
		number := uint16(i + 1)
		local, remote := p.cable(n, number)
		tunnel, err := ports.OpenTunnel(ports.TunnelConfig{Local: local, Remote: remote})
		if err != nil {
			return nil, errors.Join(err, l.Close(), sw.Close())
		}
		port, err := o.Port(n.name, to, tunnel)
		if err != nil {
			return nil, errors.Join(err, tunnel.Close(), l.Close(), sw.Close())
		}
		if err := sw.Attach(number, port); err != nil {
			return nil, errors.Join(err, port.Close(), l.Close(), sw.Close())
		}
	}
	e := &embedded{sw: sw, server: p4rtserver.New(sw, p4rtserver.Options{DeviceID: uint64(n.number)}),
		grpc: grpc.NewServer(p4rtserver.ServerOptions()...), served: make(chan struct{})}
	e.server.Register(e.grpc)
	go func() { defer close(e.served); _ = e.grpc.Serve(l) }() // until it is stopped
	return e, nil
}

func (e *embedded) close() error {
	e.server.Close()
	e.grpc.Stop()
	<-e.served
	return e.sw.Close()
}
