package vm

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
)

// HostAddr is the host's own address in every Lab; guests get others of the
// same network.
var HostAddr = netip.MustParsePrefix("10.77.0.1/24")

// A Lab is a private network with the host and guests on it.
type Lab struct {
	img *Image
	mtu int
	ns  *netns
	sw  ethSwitch

	closeOnce sync.Once

	mu     sync.Mutex
	guests []*Guest
	procs  []*exec.Cmd
}

// NewLab makes a network of the given MTU with HostAddr on it. If the
// environment variable MCRDMA_INTEROP_PCAP names a directory, every frame goes
// into a capture file there.
func NewLab(img *Image, mtu int) (*Lab, error) {
	ns, err := newNetns()
	if err != nil {
		return nil, err
	}
	l := &Lab{img: img, mtu: mtu, ns: ns}
	if dir := os.Getenv("MCRDMA_INTEROP_PCAP"); dir != "" {
		l.sw.tap, err = pcapWriter(filepath.Join(dir, fmt.Sprintf("mtu%d.pcap", mtu)))
		if err != nil {
			ns.close()
			return nil, err
		}
	}
	tap, err := ns.addTap("mc0", HostAddr, mtu)
	if err != nil {
		ns.close()
		return nil, err
	}
	l.sw.impair.set(Impairment{})
	l.sw.attach(tap)
	return l, nil
}

// Impair changes what the network does to RoCEv2 frames and returns what it
// did to them since the last call.
func (l *Lab) Impair(i Impairment) Stats { return l.sw.change(i) }

// Stats returns what Impair would, and changes nothing.
func (l *Lab) Stats() Stats { return l.sw.impair.count() }

// Dial connects from the host to a TCP server on the lab's network.
func (l *Lab) Dial(ctx context.Context, to netip.AddrPort) (net.Conn, error) {
	return l.ns.dial(ctx, to)
}

// Listen opens a TCP port of the host on the lab's network.
func (l *Lab) Listen(at netip.AddrPort) (net.Listener, error) {
	var port net.Listener
	err := l.ns.visit(func() (err error) {
		port, err = net.Listen("tcp4", at.String())
		return err
	})
	return port, err
}

// Tunnel opens a UDP port on the loopback address of the lab's namespace, by
// which one program of the host joins the network with its own frames: one
// datagram, one Ethernet frame.
func (l *Lab) Tunnel() (netip.AddrPort, error) {
	p := &tunnelPort{}
	err := l.ns.visit(func() (err error) {
		p.conn, err = net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
		return err
	})
	if err != nil {
		return netip.AddrPort{}, err
	}
	l.sw.attach(p)
	return p.conn.LocalAddr().(*net.UDPAddr).AddrPort(), nil
}

// Start starts a program of the host on the lab's network. It is killed when
// the lab closes.
func (l *Lab) Start(cmd *exec.Cmd) error {
	if err := l.ns.start(cmd); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.procs = append(l.procs, cmd)
	return nil
}

// Close ends guests and programs, in that order, and removes the network.
// Closing again does nothing.
func (l *Lab) Close() (err error) {
	l.closeOnce.Do(func() { err = l.close() })
	return err
}

func (l *Lab) close() error {
	l.mu.Lock()
	guests, procs := l.guests, l.procs
	l.guests, l.procs = nil, nil
	l.mu.Unlock()
	var wg sync.WaitGroup
	errs := make([]error, len(guests))
	for i, g := range guests {
		wg.Go(func() { errs[i] = g.close() })
	}
	wg.Wait()
	for _, p := range procs {
		_ = p.Process.Kill() // an error means that it has ended already
	}
	l.sw.close()
	l.ns.close()
	return errors.Join(errs...)
}

// guestMemory is that of a guest, in MiB, of which its programs take 100.
const guestMemory = 384

// StartGuest boots a guest with the given address, which must be in the
// network of HostAddr, and returns when it takes commands.
func (l *Lab) StartGuest(ctx context.Context, addr netip.Addr) (*Guest, error) {
	ours, theirs, err := l.ns.framePair()
	if err != nil {
		return nil, err
	}
	defer theirs.Close()
	g := &Guest{addr: addr, exited: make(chan struct{})}
	g.connect = func(ctx context.Context) (net.Conn, error) { return l.Dial(ctx, netip.AddrPortFrom(addr, guestPort)) }
	params := fmt.Sprintf("mcrdma.addr=%v/%d mcrdma.mtu=%d", addr, HostAddr.Bits(), l.mtu)
	nic := nic{theirs, net.HardwareAddr{0x52, 0x54, 0, 0x77, 0, addr.As4()[3]}}
	if err := g.start(l.ns, l.img, guestMemory, params, nic); err != nil {
		ours.Close()
		return nil, err
	}
	l.sw.attach(ours)
	l.mu.Lock()
	l.guests = append(l.guests, g)
	l.mu.Unlock()
	return g, g.waitReady(ctx)
}
