package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"

	"github.com/mcrdma/mcrdma/tests/bench/child"
)

// A path is the network between hosts. Without hosts, it is loopback.
type path struct {
	name   string
	prefix string // of the namespaces' names
	hosts  []host
}

type host struct {
	addr string // IPv4
	ns   string
}

func (p *path) namespace(host int) string {
	if p.hosts == nil {
		return ""
	}
	return p.hosts[host].ns
}

const (
	network = "10.99.0.0/24"
	bucket  = 256 << 10 // bytes that may leave at once
	backlog = 2 << 20   // bytes that may wait at a link

	halfNetwork = "10.99.0.0/25" // where all hosts are
	ccFile      = "/proc/sys/net/ipv4/tcp_congestion_control"
)

// limited makes hosts: network namespaces on one bridge, with links of rate Mb/s in each direction
// and the TCP congestion control cc.
func limited(n int, rate uint64, cc string) (p *path, remove func(), err error) {
	if os.Geteuid() != 0 {
		return nil, nil, errors.New("network namespaces take root")
	}
	p = &path{name: fmt.Sprintf("%d Mb/s", rate), prefix: fmt.Sprintf("rdmc%d-", os.Getpid())}
	var made []string
	clean := func() {
		for _, name := range made {
			_ = netns.DeleteNamed(name)
		}
	}
	defer func() {
		if err != nil {
			clean()
		}
	}()
	hub := p.prefix + "hub"
	if err := child.NewNamespace(hub); err != nil {
		return nil, nil, err
	}
	made = append(made, hub)
	h, hubFD, err := handle(hub)
	if err != nil {
		return nil, nil, err
	}
	defer h.Close()
	defer hubFD.Close()
	bridge := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "bridge"}}
	if err := h.LinkAdd(bridge); err != nil {
		return nil, nil, fmt.Errorf("bridge: %w", err)
	}
	if err := h.LinkSetUp(bridge); err != nil {
		return nil, nil, err
	}
	for i := range n {
		x := host{addr: fmt.Sprintf("10.99.0.%d", i+1), ns: fmt.Sprintf("%s%d", p.prefix, i+1)}
		if err := child.NewNamespace(x.ns); err != nil {
			return nil, nil, err
		}
		made = append(made, x.ns)
		if err := attach(h, hubFD, bridge, i, x, rate, cc); err != nil {
			return nil, nil, fmt.Errorf("host %d: %w", i, err)
		}
		p.hosts = append(p.hosts, x)
	}
	return p, clean, nil
}

// removeStale removes namespaces of a process that was killed.
func removeStale() {
	const dir = "/run/netns"
	entries, _ := os.ReadDir(dir) // none if it does not exist
	for _, e := range entries {
		var pid int
		var host string
		if n, _ := fmt.Sscanf(e.Name(), "rdmc%d-%s", &pid, &host); n == 2 && errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) {
			_ = netns.DeleteNamed(e.Name())
		}
	}
}

func handle(ns string) (*netlink.Handle, netns.NsHandle, error) {
	fd, err := netns.GetFromName(ns)
	if err != nil {
		return nil, fd, err
	}
	h, err := netlink.NewHandleAt(fd)
	return h, fd, err
}

// attach connects a host to the bridge and limits both ends of its link.
func attach(hub *netlink.Handle, hubFD netns.NsHandle, bridge netlink.Link, i int, x host, rate uint64, cc string) error {
	h, fd, err := handle(x.ns)
	if err != nil {
		return err
	}
	defer h.Close()
	defer fd.Close()
	port := fmt.Sprintf("port%d", i)
	veth := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "link", TxQLen: 1000}, PeerName: port, PeerNamespace: netlink.NsFd(hubFD)}
	if err := h.LinkAdd(veth); err != nil {
		return err
	}
	near, err := h.LinkByName("link")
	if err != nil {
		return err
	}
	far, err := hub.LinkByName(port)
	if err != nil {
		return err
	}
	lo, err := h.LinkByName("lo")
	if err != nil {
		return err
	}
	addr, err := netlink.ParseAddr(x.addr + "/24")
	if err != nil {
		return err
	}
	// The route sets the congestion control, because a namespace cannot set it. This route is more
	// specific than the one that comes with the address.
	_, half, err := net.ParseCIDR(halfNetwork)
	if err != nil {
		return err
	}
	return errors.Join(h.AddrAdd(near, addr), hub.LinkSetMaster(far, bridge), limit(h, near, rate), limit(hub, far, rate),
		h.LinkSetUp(lo), h.LinkSetUp(near), hub.LinkSetUp(far),
		h.RouteAdd(&netlink.Route{LinkIndex: near.Attrs().Index, Dst: half, Scope: netlink.SCOPE_LINK, Congctl: cc}))
}

// limit puts a token bucket in front of a link.
func limit(h *netlink.Handle, l netlink.Link, rate uint64) error {
	bytes := rate * 1e6 / 8
	return h.QdiscAdd(&netlink.Tbf{
		QdiscAttrs: netlink.QdiscAttrs{LinkIndex: l.Attrs().Index, Parent: netlink.HANDLE_ROOT, Handle: netlink.MakeHandle(1, 0)},
		Rate:       bytes, Limit: backlog, Buffer: uint32(float64(bucket) * 1e6 / float64(bytes) * netlink.TickInUsec()),
	})
}

// agent replaces ssh for mpirun: args are the prefix of the namespaces' names,
// the host's address, and a command for its shell.
func agent(args []string) error {
	if len(args) < 3 {
		return errors.New("the arguments are: PREFIX HOST COMMAND")
	}
	shell, err := exec.LookPath("sh")
	if err != nil {
		return err
	}
	last := args[1][strings.LastIndexByte(args[1], '.')+1:]
	return child.InNamespace(args[0]+last, func() error {
		// OpenMPI takes hosts of the same name for one.
		if err := errors.Join(syscall.Unshare(syscall.CLONE_NEWUTS), syscall.Sethostname([]byte(args[0]+last))); err != nil {
			return err
		}
		return syscall.Exec(shell, []string{"sh", "-c", strings.Join(args[2:], " ")}, os.Environ())
	})
}
