// Command guest is the init of the interoperability tests' QEMU guests: it
// loads the kernel modules in /modules, gives eth0 the address and MTU that
// the kernel command line states (mcrdma.addr=10.0.0.1/24 mcrdma.mtu=4200; a
// second address is that of eth1, and so on; mcrdma.gw=10.0.0.254 is the default
// route), makes the soft-RoCE device rxe0 on eth0 and then runs programs for the
// host (package guestexec). Run as "/init poweroff" it ends the guest, as
// "/init put FILE" it writes its input to a file.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
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
	switch {
	case slices.Equal(os.Args[1:], []string{"poweroff"}):
		reboot()
	case len(os.Args) == 3 && os.Args[1] == "put":
		if err := put(os.Args[2], os.Stdin); err != nil {
			log.Fatal(err)
		}
		return
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

// put writes a file, and makes its directory.
func put(name string, from io.Reader) error {
	data, err := io.ReadAll(from)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
		return err
	}
	return os.WriteFile(name, data, 0o600)
}

// reboot ends the guest: QEMU exits instead of rebooting.
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
	p, err := parameters()
	if err != nil {
		return err
	}
	if err := loadModules(); err != nil {
		return err
	}
	if err := p.network(); err != nil {
		return err
	}
	if err := netlink.RdmaLinkAdd("rxe0", "rxe", "eth0"); err != nil {
		return fmt.Errorf("rdma link add rxe0: %w", err)
	}
	return nil
}

// network sets the interfaces up.
func (p *params) network() error {
	names := []string{"lo"}
	for i := range p.addrs {
		names = append(names, fmt.Sprint("eth", i))
	}
	for i, dev := range names {
		link, err := linkByName(dev)
		if err != nil {
			return err
		}
		if i > 0 {
			if err := netlink.LinkSetMTU(link, p.mtu); err != nil {
				return fmt.Errorf("%s: MTU %d: %w", dev, p.mtu, err)
			}
			if err := netlink.AddrAdd(link, p.addrs[i-1]); err != nil {
				return fmt.Errorf("%s: address %v: %w", dev, p.addrs[i-1], err)
			}
		}
		if err := netlink.LinkSetUp(link); err != nil {
			return fmt.Errorf("%s: up: %w", dev, err)
		}
	}
	if p.gateway == nil {
		return nil
	}
	if err := netlink.RouteAdd(&netlink.Route{Gw: p.gateway}); err != nil {
		return fmt.Errorf("gateway %v: %w", p.gateway, err)
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

// params are what the kernel command line says.
type params struct {
	addrs   []*netlink.Addr // of eth0, eth1, …
	mtu     int
	gateway net.IP
}

func parameters() (*params, error) {
	line, err := os.ReadFile("/proc/cmdline")
	if err != nil {
		return nil, err
	}
	p := &params{mtu: 1500}
	for _, f := range strings.Fields(string(line)) {
		key, val, _ := strings.Cut(f, "=")
		switch key {
		case "mcrdma.addr":
			var addr *netlink.Addr
			addr, err = netlink.ParseAddr(val)
			p.addrs = append(p.addrs, addr)
		case "mcrdma.mtu":
			p.mtu, err = strconv.Atoi(val)
		case "mcrdma.gw":
			err = p.gateway.UnmarshalText([]byte(val))
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", f, err)
		}
	}
	if len(p.addrs) == 0 {
		return nil, errors.New("no mcrdma.addr on the kernel command line")
	}
	return p, nil
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
