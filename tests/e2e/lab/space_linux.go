package lab

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// ErrUnable says that network namespaces are not available on this machine or to this user.
var ErrUnable = errors.New("network namespaces cannot be made here")

// A Space is a network namespace. It has no name: the kernel removes it when no process uses it or
// holds it open.
type Space struct {
	Name string // to be shown
	ns   netns.NsHandle
	nl   *netlink.Handle
}

// NewSpace makes a namespace with a loopback interface that is up.
func NewSpace(name string) (*Space, error) {
	if os.Geteuid() != 0 {
		return nil, fmt.Errorf("%w: it takes root", ErrUnable)
	}
	s := &Space{Name: name}
	err := onThread(func() (err error) {
		s.ns, err = netns.New()
		if err != nil {
			return err
		}
		// Neighbor discovery would send unexpected packets to the switches.
		err = os.WriteFile("/proc/sys/net/ipv6/conf/default/disable_ipv6", []byte("1"), 0)
		if err != nil && !errors.Is(err, os.ErrNotExist) { // a kernel without IPv6
			return err
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrUnable, name, err)
	}
	if s.nl, err = netlink.NewHandleAt(s.ns); err != nil {
		_ = s.ns.Close()
		return nil, err
	}
	lo, err := s.nl.LinkByName("lo")
	if err == nil {
		err = s.nl.LinkSetUp(lo)
	}
	if err != nil {
		s.Close()
		return nil, fmt.Errorf("%s: lo: %w", name, err)
	}
	return s, nil
}

// Close closes the namespace.
func (s *Space) Close() {
	s.nl.Close()
	_ = s.ns.Close()
}

// Do calls f on a thread in the namespace. Sockets and processes that f creates stay there.
func (s *Space) Do(f func() error) error {
	return onThread(func() error {
		if err := netns.Set(s.ns); err != nil {
			return fmt.Errorf("enter %s: %w", s.Name, err)
		}
		return f()
	})
}

// Run runs a command in the namespace and returns what it printed.
func (s *Space) Run(name string, args ...string) (string, error) {
	var out []byte
	err := s.Do(func() (err error) {
		out, err = exec.Command(name, args...).CombinedOutput()
		return err
	})
	return string(out), err
}

// onThread calls f on a thread that ends afterward.
func onThread(f func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked
		done <- f()
	}()
	return <-done
}

type startRequest struct {
	space *Space
	cmd   *exec.Cmd
	done  chan error
}

// starts is served by a thread that lives as long as this process: a child with Pdeathsig is killed
// when the thread that started it ends.
var starts = make(chan startRequest)

func init() {
	runtime.LockOSThread() // the main thread cannot end, and would stay in a namespace
	go func() {
		runtime.LockOSThread()
		for r := range starts {
			r.done <- r.start()
		}
	}()
}

func (r startRequest) start() error {
	if err := netns.Set(r.space.ns); err != nil {
		return fmt.Errorf("enter %s: %w", r.space.Name, err)
	}
	return r.cmd.Start()
}

// start starts a process in the namespace that ends with this one.
func (s *Space) start(cmd *exec.Cmd) error {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL, Setpgid: true} // Ctrl-C is for this process, which ends the others in order
	r := startRequest{s, cmd, make(chan error)}
	starts <- r
	return <-r.done
}
