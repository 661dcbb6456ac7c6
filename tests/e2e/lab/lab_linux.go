package lab

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/mcrdma/mcrdma/internal/softswitch/ports"
)

// A Lab is a running lab.
type Lab struct {
	Spec     Spec
	Dir      string
	CA       *CA
	Switches []*SwitchNode
	Hosts    []*HostNode

	programs Programs
	spaces   []*Space
	mgmt     *Space
	wireroom *Space
	wires    []*wire

	mu        sync.Mutex
	processes []*Process
}

// Start makes a lab with files in dir. When it returns, all hosts reach each other. On failure
// nothing is left behind.
func Start(ctx context.Context, p Programs, dir string, spec Spec) (*Lab, error) {
	l := &Lab{Spec: spec, Dir: dir, programs: p}
	if err := l.Spec.complete(); err != nil {
		return nil, err
	}
	if err := l.start(ctx); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

func (l *Lab) start(ctx context.Context) (err error) {
	if l.CA, err = NewCA(filepath.Join(l.Dir, "tls")); err != nil {
		return err
	}
	if err := l.makeSpaces(); err != nil {
		return err
	}
	if err := l.makeLinks(); err != nil {
		return err
	}
	if err := l.writeTopology(); err != nil {
		return err
	}
	if err := l.startSwitches(ctx); err != nil {
		return err
	}
	if err := l.startHosts(ctx); err != nil {
		return err
	}
	return l.reachable(ctx)
}

func (l *Lab) space(name string) (*Space, error) {
	s, err := NewSpace(name)
	if err == nil {
		l.spaces = append(l.spaces, s)
	}
	return s, err
}

func (l *Lab) makeSpaces() (err error) {
	if l.mgmt, err = l.space("mgmt"); err != nil {
		return err
	}
	bridge := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "bridge"}}
	if err := l.mgmt.nl.LinkAdd(bridge); err != nil {
		return fmt.Errorf("bridge: %w", err)
	}
	if err := l.mgmt.up("bridge", netip.Prefix{}); err != nil {
		return err
	}
	if l.wireroom, err = l.space("wires"); err != nil {
		return err
	}
	for i, name := range l.Spec.switchNames() {
		s, err := l.space(name)
		if err != nil {
			return err
		}
		l.Switches = append(l.Switches, &SwitchNode{Name: name, Space: s, Management: management(i), lab: l})
		if err := l.manage(s, i, bridge); err != nil {
			return err
		}
	}
	for i, at := range l.Spec.seats() {
		s, err := l.space(hostName(i))
		if err != nil {
			return err
		}
		l.Hosts = append(l.Hosts, &HostNode{Name: s.Name, Addr: at.addr, Space: s, lab: l, index: i})
		if err := l.manage(s, len(l.Switches)+i, bridge); err != nil {
			return err
		}
	}
	return nil
}

// manage connects a namespace to the management network.
func (l *Lab) manage(s *Space, i int, bridge netlink.Link) error {
	port := fmt.Sprintf("port%d", i)
	if err := join(s, "mgmt", l.mgmt, port, 1500); err != nil {
		return err
	}
	far, err := l.mgmt.nl.LinkByName(port)
	if err == nil {
		err = l.mgmt.nl.LinkSetMaster(far, bridge)
	}
	return errors.Join(err, l.mgmt.up(port, netip.Prefix{}), s.up("mgmt", netip.PrefixFrom(management(i), 24)))
}

// makeLinks makes the links of the fabric. Port 1 of a switch is interface swp1.
func (l *Lab) makeLinks() error {
	for i, h := range l.Hosts {
		at := l.Spec.seats()[i]
		mtu := l.Spec.MTU
		if m := l.Spec.Hosts[h.Name].MTU; m != 0 {
			mtu = m
		}
		if err := l.link(h.Space, "eth0", l.Switch(torOf(at.rack)).Space, swp(at.port), mtu, uint64(i)); err != nil {
			return err
		}
		nic, err := h.Space.nl.LinkByName("eth0")
		if err != nil {
			return err
		}
		mac, err := net.ParseMAC(hostMAC(i))
		if err != nil {
			return err
		}
		if err := errors.Join(h.Space.nl.LinkSetDown(nic), h.Space.nl.LinkSetHardwareAddr(nic, mac),
			h.Space.up("eth0", netip.PrefixFrom(at.addr, 24)), h.Space.gateway("eth0", gatewayOf(at.rack))); err != nil {
			return fmt.Errorf("%s: %w", h.Name, err)
		}
		if l.Spec.FastPath {
			if err := h.Space.SetGRO("eth0", true); err != nil {
				return err
			}
		}
		if l.Spec.BMv2 && !l.Spec.FullRate {
			if err := h.Space.limit("eth0", bmv2Rate, bmv2Burst); err != nil {
				return fmt.Errorf("%s: rate of eth0: %w", h.Name, err)
			}
		}
	}
	for _, rack := range l.Spec.uplinks() {
		if err := l.link(l.Switch(torOf(rack)).Space, swp(uplink), l.Switch("spine").Space, swp(rack), l.Spec.MTU, uint64(100+rack)); err != nil {
			return err
		}
	}
	return nil
}

// link makes a link that is up, through a wire if it will be impaired.
func (l *Lab) link(a *Space, aName string, b *Space, bName string, mtu int, number uint64) error {
	if l.Spec.Links.none() && !l.Spec.Wired {
		return errors.Join(join(a, aName, b, bName, mtu), a.up(aName, netip.Prefix{}), b.up(bName, netip.Prefix{}))
	}
	var ends [2]ports.Port
	for i, x := range []struct {
		s    *Space
		name string
	}{{a, aName}, {b, bName}} {
		inner := fmt.Sprintf("w%d-%d", number, i)
		if err := errors.Join(join(x.s, x.name, l.wireroom, inner, mtu), x.s.up(x.name, netip.Prefix{}), l.wireroom.up(inner, netip.Prefix{})); err != nil {
			return err
		}
		if l.Spec.FastPath {
			if err := l.wireroom.TakeXDP(inner); err != nil {
				return err
			}
		}
		err := l.wireroom.Do(func() (err error) {
			ends[i], err = ports.OpenInterface(inner, ports.Options{})
			return err
		})
		if err != nil {
			if i > 0 {
				_ = ends[0].Close()
			}
			return err
		}
	}
	imp := l.Spec.Links
	imp.Seed += number
	l.wires = append(l.wires, newWire([2]string{a.Name, b.Name}, ends, imp))
	return nil
}

// process adds a process that ends with the lab.
func (l *Lab) process(p *Process) *Process {
	if l.Spec.Prepare != nil {
		l.Spec.Prepare(p)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.processes = append(l.processes, p)
	return p
}

func (l *Lab) startSwitches(ctx context.Context) error {
	for _, n := range l.Switches {
		n.Switch = l.process(&Process{Name: n.Name, Space: n.Space})
		n.Switch.Args, n.Switch.Ready = l.switchCommand(n)
		config, err := l.writeAgent(n)
		if err != nil {
			return err
		}
		n.Agent = l.process(&Process{Name: "agent of " + n.Name, Space: n.Space, Args: []string{l.programs.Switchctl, "agent", "--config", config}})
	}
	if err := Each(l.Switches, func(n *SwitchNode) error { return n.Switch.Start(ctx) }); err != nil {
		return err
	}
	return Each(l.Switches, func(n *SwitchNode) error { return n.Agent.Start(ctx) })
}

// switchCommand returns the command of a switch, and its ready message.
func (l *Lab) switchCommand(n *SwitchNode) (args []string, ready string) {
	if l.Spec.BMv2 {
		args, ready = l.bmv2Command(n)
	} else {
		spec := l.Spec.Switches[n.Name]
		args = []string{l.programs.Switchctl, "softswitch", "--no-p4", "--cpu-port", "510", "--log-level", "info"}
		if l.Spec.FastPath {
			args = append(args, "--fastpath", "auto")
		}
		if spec.Rate != "" {
			args = append(args, "--queue-rate", spec.Rate, "--queue-unit", "64")
		}
	}
	args = append(args, "--grpc-server-addr", fmt.Sprintf("127.0.0.1:%d", p4rtPort))
	for _, port := range l.Spec.portsOf(n.Name) {
		args = append(args, "-i", fmt.Sprintf("%d@%s", port, swp(port)))
	}
	return args, ready
}

func (l *Lab) startHosts(ctx context.Context) error {
	for _, h := range l.Hosts {
		h.Socket = filepath.Join(l.Dir, h.Name+".sock")
		if !l.Spec.NoHosts {
			if err := l.writeDaemon(h); err != nil {
				return err
			}
			h.Daemon = l.process(&Process{Name: "daemon of " + h.Name, Space: h.Space, Args: []string{l.programs.Daemon, "run", "--config", h.Config}})
		}
		h.Member = newMember(l.process(&Process{Name: "application of " + h.Name, Space: h.Space, Args: []string{l.programs.Member}, Talks: true}))
	}
	return Each(l.Hosts, func(h *HostNode) error {
		if h.Daemon != nil {
			if err := h.Daemon.Start(ctx); err != nil {
				return err
			}
		}
		return h.Member.Start(ctx)
	})
}

// Each calls f for all in parallel.
func Each[T any](all []T, f func(T) error) error {
	errs := make([]error, len(all))
	var wg sync.WaitGroup
	for i, x := range all {
		wg.Go(func() { errs[i] = f(x) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// reachable waits until all hosts reach each other: TCP gets an answer, which may be a refusal.
func (l *Lab) reachable(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return Each(l.Hosts, func(h *HostNode) error {
		for _, to := range l.Hosts {
			if to == h {
				continue
			}
			if err := h.Reach(ctx, to.Addr); err != nil {
				return err
			}
		}
		return nil
	})
}

// Reach waits until the host reaches an address.
func (h *HostNode) Reach(ctx context.Context, to netip.Addr) error {
	addr := net.JoinHostPort(to.String(), fmt.Sprint(daemonPort))
	for {
		err := h.Space.Do(func() error {
			d := net.Dialer{Timeout: 300 * time.Millisecond}
			c, err := d.DialContext(ctx, "tcp4", addr)
			if err == nil {
				_ = c.Close()
			}
			return err
		})
		if err == nil || strings.Contains(err.Error(), "refused") {
			return nil
		}
		if ctx.Err() != nil {
			return fmt.Errorf("%s does not reach %v: %w", h.Name, to, err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// Close ends everything. The error says what did not end in order; it is ended anyway.
// ended even so.
func (l *Lab) Close() error {
	var errs []error
	stop := func(list []*Process) { errs = append(errs, Each(list, (*Process).Stop)) }
	var apps, daemons, agents, rest []*Process
	for _, p := range l.processes {
		switch {
		case p.Talks:
			apps = append(apps, p)
		case strings.HasPrefix(p.Name, "daemon"):
			daemons = append(daemons, p)
		case strings.HasPrefix(p.Name, "agent"):
			agents = append(agents, p)
		default:
			rest = append(rest, p)
		}
	}
	for _, list := range [][]*Process{apps, daemons, agents, rest} {
		stop(list)
	}
	for _, w := range l.wires {
		w.close()
	}
	for _, s := range l.spaces {
		s.Close()
	}
	return errors.Join(errs...)
}

// Logs returns the output of all processes.
func (l *Lab) Logs() string { return Logs(l.processes...) }

// Logs returns the output of processes.
func Logs(list ...*Process) string {
	var b strings.Builder
	for _, p := range list {
		fmt.Fprintf(&b, "══ %s\n%s\n", p.Name, p.Log())
	}
	return b.String()
}

// PIDs returns the process IDs of all running processes.
func (l *Lab) PIDs() (list []int) {
	for _, p := range l.processes {
		if p.Running() {
			list = append(list, p.PID())
		}
	}
	return list
}

// NewMember starts another application on the host, in place of the previous one, which has ended.
func (h *HostNode) NewMember(ctx context.Context) error {
	h.Member = newMember(h.lab.process(&Process{Name: "application of " + h.Name, Space: h.Space, Args: []string{h.lab.programs.Member}, Talks: true}))
	return h.Member.Start(ctx)
}
