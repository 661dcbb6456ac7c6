// Command guest is the init of the interoperability tests' QEMU guests: it
// loads the kernel modules in /modules, gives eth0 the address and MTU that
// the kernel command line states (mcrdma.addr=10.0.0.1/24 mcrdma.mtu=4200),
// makes the soft-RoCE device rxe0 on it and then runs programs for the host
// (package guestexec). Run as "/init poweroff" it ends the guest.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/mcrdma/mcrdma/tests/interop/rxe/guestexec"
)

// port is where the command server listens; vm.Guest knows it too.
const port = "7"

func main() {
	log.SetFlags(0)
	log.SetPrefix("init: ")
	if slices.Equal(os.Args[1:], []string{"poweroff"}) {
		reboot()
	}
	if os.Getpid() != 1 {
		log.Fatal("this is the init of a test guest; it must be process 1")
	}
	err := boot()
	if err == nil {
		err = serve()
	}
	log.Print("failed: ", err)
	reboot()
}

// reboot ends the guest: QEMU is told to exit instead of rebooting.
func reboot() {
	unix.Sync()
	err := unix.Reboot(unix.LINUX_REBOOT_CMD_RESTART)
	log.Fatal("reboot: ", err)
}

func boot() error {
	for _, m := range []struct{ fstype, dir string }{
		{"devtmpfs", "/dev"}, {"proc", "/proc"}, {"sysfs", "/sys"}, {"tmpfs", "/tmp"},
	} {
		if err := os.MkdirAll(m.dir, 0o755); err != nil {
			return err
		}
		if err := unix.Mount(m.fstype, m.dir, m.fstype, 0, ""); err != nil && !errors.Is(err, unix.EBUSY) {
			return fmt.Errorf("mount %s: %w", m.dir, err)
		}
	}
	addr, mtu, err := parameters()
	if err != nil {
		return err
	}
	if err := loadModules(); err != nil {
		return err
	}
	for _, dev := range []string{"lo", "eth0"} {
		link, err := linkByName(dev)
		if err != nil {
			return err
		}
		if dev == "eth0" {
			if err := netlink.LinkSetMTU(link, mtu); err != nil {
				return fmt.Errorf("eth0: MTU %d: %w", mtu, err)
			}
			if err := netlink.AddrAdd(link, addr); err != nil {
				return fmt.Errorf("eth0: address %v: %w", addr, err)
			}
		}
		if err := netlink.LinkSetUp(link); err != nil {
			return fmt.Errorf("%s: up: %w", dev, err)
		}
	}
	if err := netlink.RdmaLinkAdd("rxe0", "rxe", "eth0"); err != nil {
		return fmt.Errorf("rdma link add rxe0: %w", err)
	}
	return nil
}

// linkByName waits for the device: the driver probes while modules load.
func linkByName(name string) (netlink.Link, error) {
	deadline := time.Now().Add(10 * time.Second)
	for {
		link, err := netlink.LinkByName(name)
		if err == nil {
			return link, nil
		}
		if time.Now().After(deadline) {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func parameters() (*netlink.Addr, int, error) {
	line, err := os.ReadFile("/proc/cmdline")
	if err != nil {
		return nil, 0, err
	}
	var addr *netlink.Addr
	mtu := 1500
	for _, f := range strings.Fields(string(line)) {
		key, val, _ := strings.Cut(f, "=")
		switch key {
		case "mcrdma.addr":
			addr, err = netlink.ParseAddr(val)
		case "mcrdma.mtu":
			mtu, err = strconv.Atoi(val)
		}
		if err != nil {
			return nil, 0, fmt.Errorf("%s: %w", f, err)
		}
	}
	if addr == nil {
		return nil, 0, errors.New("no mcrdma.addr on the kernel command line")
	}
	return addr, mtu, nil
}

// loadModules inserts /modules/NNN-name.ko in the order of their numbers.
func loadModules() error {
	files, err := filepath.Glob("/modules/*.ko")
	if err != nil {
		return err
	}
	slices.Sort(files)
	for _, name := range files {
		f, err := os.Open(name)
		if err != nil {
			return err
		}
		err = unix.FinitModule(int(f.Fd()), "", 0)
		f.Close()
		// ENODEV: a driver for CPU features that this guest has not got.
		if err != nil && !errors.Is(err, unix.EEXIST) && !errors.Is(err, unix.ENODEV) {
			return fmt.Errorf("module %s: %w", name, err)
		}
	}
	return nil
}

func serve() error {
	l, err := net.Listen("tcp4", ":"+port)
	if err != nil {
		return err
	}
	log.Print("ready")
	for {
		conn, err := l.Accept()
		if err != nil {
			return err
		}
		go func() {
			if err := guestexec.Serve(context.Background(), conn); err != nil {
				log.Print(err)
			}
		}()
	}
}
