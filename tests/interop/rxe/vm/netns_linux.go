package vm

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// A netns is a nameless network namespace: it exists as long as this process
// holds it. One thread stays in it for starting processes, because the kernel
// kills those (pdeathsig) when the thread that started them ends.
type netns struct {
	fd   int
	jobs chan func()
}

// The main thread would not end with its goroutine: no goroutine but main's is on it.
func init() { runtime.LockOSThread() }

func newNetns() (*netns, error) {
	n := &netns{jobs: make(chan func())}
	ready := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		err := unix.Unshare(unix.CLONE_NEWNET)
		if err == nil {
			n.fd, err = unix.Open(fmt.Sprintf("/proc/self/task/%d/ns/net", unix.Gettid()), unix.O_RDONLY|unix.O_CLOEXEC, 0)
		}
		ready <- err
		if err != nil {
			return
		}
		for job := range n.jobs {
			job()
		}
	}()
	if err := <-ready; err != nil {
		return nil, fmt.Errorf("%w: network namespace: %w", ErrUnavailable, err)
	}
	return n, nil
}

// do calls f on the thread that stays in the namespace.
func (n *netns) do(f func() error) error {
	result := make(chan error)
	n.jobs <- func() { result <- f() }
	return <-result
}

// visit calls f on another thread in the namespace; f may take its time, but
// must start no processes.
func (n *netns) visit(f func() error) error {
	result := make(chan error)
	go func() {
		runtime.LockOSThread()
		err := unix.Setns(n.fd, unix.CLONE_NEWNET)
		if err == nil {
			err = f()
		}
		result <- err
	}()
	return <-result
}

func (n *netns) close() {
	close(n.jobs)
	unix.Close(n.fd)
}

// start starts a process in the namespace that is killed if this one dies.
func (n *netns) start(cmd *exec.Cmd) error {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	return n.do(cmd.Start)
}

// dial connects to a TCP server from inside the namespace.
func (n *netns) dial(ctx context.Context, to netip.AddrPort) (net.Conn, error) {
	var conn net.Conn
	err := n.visit(func() error {
		var d net.Dialer
		var err error
		conn, err = d.DialContext(ctx, "tcp4", to.String())
		return err
	})
	return conn, err
}

// addTap makes a tap device with the address and MTU in the namespace and
// returns its other end. No offloads are negotiated, so the kernel hands over
// packets as they would be on a wire.
func (n *netns) addTap(name string, addr netip.Prefix, mtu int) (tap *os.File, err error) {
	err = n.visit(func() error {
		tap, err = openTap(name)
		if err != nil {
			return fmt.Errorf("tap %s: %w", name, err)
		}
		for _, dev := range []string{"lo", name} {
			link, err := netlink.LinkByName(dev)
			if err != nil {
				return fmt.Errorf("%s: %w", dev, err)
			}
			if dev == name {
				if err := netlink.LinkSetMTU(link, mtu); err != nil {
					return fmt.Errorf("%s: MTU %d: %w", dev, mtu, err)
				}
				a, err := netlink.ParseAddr(addr.String())
				if err != nil {
					return err
				}
				if err := netlink.AddrAdd(link, a); err != nil {
					return fmt.Errorf("%s: address %v: %w", dev, addr, err)
				}
			}
			if err := netlink.LinkSetUp(link); err != nil {
				return fmt.Errorf("%s: up: %w", dev, err)
			}
		}
		return nil
	})
	if err != nil && tap != nil {
		tap.Close()
	}
	return tap, err
}

func openTap(name string) (*os.File, error) {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	ifr, err := unix.NewIfreq(name)
	if err == nil {
		ifr.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI)
		err = unix.IoctlIfreq(fd, unix.TUNSETIFF, ifr)
	}
	if err != nil {
		unix.Close(fd)
		return nil, err
	}
	return os.NewFile(uintptr(fd), "tap "+strings.TrimSpace(name)), nil
}

// framePair returns two ends of a channel of Ethernet frames: ours, and the
// one for QEMU.
func (n *netns) framePair() (ours net.Conn, theirs *os.File, err error) {
	var fds [2]int
	err = n.visit(func() error {
		// How many frames fit is taken from the namespace's setting when the
		// sockets are made; the default of 10 would throttle the guests.
		const qlen = "/proc/sys/net/unix/max_dgram_qlen"
		if err := os.WriteFile(qlen, []byte("512"), 0); err != nil {
			return err
		}
		fds, err = unix.Socketpair(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		return err
	})
	if err != nil {
		return nil, nil, fmt.Errorf("socketpair: %w", err)
	}
	f := os.NewFile(uintptr(fds[0]), "frames")
	defer f.Close()
	theirs = os.NewFile(uintptr(fds[1]), "frames for QEMU")
	ours, err = net.FileConn(f)
	if err != nil {
		theirs.Close()
		return nil, nil, err
	}
	return ours, theirs, nil
}
