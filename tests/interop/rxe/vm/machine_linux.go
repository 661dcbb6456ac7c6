package vm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"

	"github.com/mcrdma/mcrdma/tests/interop/rxe/guestexec"
)

// A Machine says what a guest is like that is not on a Lab's network, but at the
// ends of cables that others have laid.
type Machine struct {
	// Cables lead to the guest's eth0, on which its rxe0 is, eth1, and so on.
	Cables  []Cable
	MTU     int        // of all
	Gateway netip.Addr // the guest's default route; none if not valid
	Memory  int        // MiB
	// Dial connects to a TCP port of the guest.
	Dial func(ctx context.Context, port uint16) (net.Conn, error)
}

// A Cable is one of a Machine's.
type Cable struct {
	Far  io.ReadWriteCloser // the far end: each call is one Ethernet frame
	Addr netip.Prefix       // of the guest's interface
	MAC  net.HardwareAddr
}

// machine is what a guest has instead of a Lab.
type machine struct {
	ns     *netns
	cables []*ethSwitch
	once   sync.Once
}

func (m *machine) close() {
	m.once.Do(func() {
		for _, s := range m.cables {
			s.close()
		}
		if m.ns != nil {
			m.ns.close()
		}
	})
}

// Boot boots a guest and returns when it takes commands. Close ends it, and the
// cables with it, also if Boot has failed.
func Boot(ctx context.Context, img *Image, m Machine) (*Guest, error) {
	g := &Guest{addr: m.Cables[0].Addr.Addr(), exited: make(chan struct{}), machine: &machine{}}
	g.connect = func(ctx context.Context) (net.Conn, error) { return m.Dial(ctx, guestPort) }
	err := g.boot(img, m)
	if err == nil {
		err = g.waitReady(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, g.Kill())
	}
	return g, nil
}

func (g *Guest) boot(img *Image, m Machine) (err error) {
	for _, c := range m.Cables {
		s := &ethSwitch{}
		s.impair.set(Impairment{})
		s.attach(c.Far)
		g.machine.cables = append(g.machine.cables, s)
	}
	if g.machine.ns, err = newNetns(); err != nil {
		return err
	}
	params := []string{fmt.Sprint("mcrdma.mtu=", m.MTU)}
	if m.Gateway.IsValid() {
		params = append(params, fmt.Sprint("mcrdma.gw=", m.Gateway))
	}
	var nics []nic
	for i, c := range m.Cables {
		ours, theirs, err := g.machine.ns.framePair()
		if err != nil {
			return err
		}
		defer theirs.Close()
		g.machine.cables[i].attach(ours)
		nics = append(nics, nic{theirs, c.MAC})
		params = append(params, fmt.Sprint("mcrdma.addr=", c.Addr))
	}
	return g.start(g.machine.ns, img, m.Memory, strings.Join(params, " "), nics...)
}

// Impair changes what the cable to eth0 does to RoCEv2 frames, in both directions,
// and returns what it did to them since the last call.
func (g *Guest) Impair(i Impairment) Stats { return g.machine.cables[0].change(i) }

// Cables says what has come through the guest's cables: port 0 is the far end, port 1 the
// guest.
func (g *Guest) Cables() string {
	var cables []string
	for i, s := range g.machine.cables {
		cables = append(cables, fmt.Sprintf("eth%d: %v", i, s))
	}
	return strings.Join(cables, "\n")
}

// Put writes a file in the guest.
func (g *Guest) Put(ctx context.Context, name string, data []byte) error {
	p, err := g.Start(ctx, guestexec.Request{Argv: []string{"/init", "put", name}})
	if err != nil {
		return err
	}
	defer p.Close()
	stop := context.AfterFunc(ctx, func() { p.Close() })
	defer stop()
	var out bytes.Buffer
	if _, err := p.Write(data); err != nil {
		return fmt.Errorf("vm: guest %v: %s: %w", g.addr, name, err)
	}
	if err := errors.Join(p.CloseWrite(), p.Copy(&out, &out)); err != nil {
		return fmt.Errorf("vm: guest %v: %s: %w: %s", g.addr, name, err, out.String())
	}
	return nil
}

// Kill pulls the plug of a guest that Boot has booted, and its cables.
func (g *Guest) Kill() error {
	var err error
	if g.cmd != nil && g.cmd.Process != nil {
		if err = g.cmd.Process.Kill(); errors.Is(err, os.ErrProcessDone) {
			err = nil
		}
		<-g.exited
	}
	g.machine.close()
	return err
}

// Close ends a guest that Boot has booted, by force if it does not react, and its
// cables.
func (g *Guest) Close() error {
	err := g.close()
	g.machine.close()
	return err
}
