package doctor

import (
	"errors"
	"fmt"
	"net"
	"os"
	"regexp"
	"runtime"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Interfaces examines interfaces of this network namespace: the named ones and, if ports is set,
// all that look like switch ports or virtual links to one. An error means that nothing could be
// examined.
func Interfaces(names []string, ports bool) ([]Interface, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("interfaces: %w", os.NewSyscallError("socket", err))
	}
	defer unix.Close(fd)
	var out []Interface
	seen := map[string]bool{}
	for _, n := range names {
		if seen[n] {
			continue
		}
		seen[n] = true
		ifi, err := net.InterfaceByName(n)
		if err != nil {
			out = append(out, Interface{Name: n, Err: plain(err)})
			continue
		}
		out = append(out, look(fd, ifi))
	}
	if !ports {
		return out, nil
	}
	all, err := net.Interfaces()
	if err != nil {
		return nil, fmt.Errorf("interfaces: %w", err)
	}
	for i := range all {
		if seen[all[i].Name] {
			continue
		}
		if x := look(fd, &all[i]); x.Driver == "veth" || switchPort.MatchString(x.Name) {
			out = append(out, x)
		}
	}
	return out, nil
}

// switchPort matches the names of front-panel ports in switch operating systems.
var switchPort = regexp.MustCompile(`^(swp[0-9]+(s[0-9]+)?|Ethernet[0-9]+)$`)

// plain unwraps package net's errors.
func plain(err error) error {
	if op, ok := errors.AsType[*net.OpError](err); ok {
		return op.Err
	}
	return err
}

// look collects facts about an interface.
func look(fd int, ifi *net.Interface) Interface {
	out := Interface{
		Name: ifi.Name, MTU: ifi.MTU,
		Up: ifi.Flags&net.FlagUp != 0, Carrier: ifi.Flags&net.FlagRunning != 0,
	}
	addrs, _ := ifi.Addrs() // an interface that has been removed meanwhile has none
	for _, a := range addrs {
		if n, ok := a.(*net.IPNet); ok && n.IP.To4() != nil {
			out.Host = true
		}
	}
	if info, err := unix.IoctlGetEthtoolDrvinfo(fd, ifi.Name); err == nil {
		out.Driver = unix.ByteSliceToString(info.Driver[:])
	}
	out.Offloads, out.OffloadErr = offloads(fd, ifi.Name)
	// Without IPv6 in the kernel this file does not exist.
	off, err := os.ReadFile("/proc/sys/net/ipv6/conf/" + ifi.Name + "/disable_ipv6")
	out.IPv6 = err == nil && strings.TrimSpace(string(off)) == "0"
	return out
}

// lroFlag is ETH_FLAG_LRO of <linux/ethtool.h>.
const lroFlag = 1 << 15

// offloads reads the offloads that ethtool -K sets by the same names.
func offloads(fd int, name string) (on []string, err error) {
	for _, o := range []struct {
		name    string
		command uint32
		mask    uint32
	}{
		{"rx", unix.ETHTOOL_GRXCSUM, ^uint32(0)},
		{"tx", unix.ETHTOOL_GTXCSUM, ^uint32(0)},
		{"sg", unix.ETHTOOL_GSG, ^uint32(0)},
		{"tso", unix.ETHTOOL_GTSO, ^uint32(0)},
		{"gso", unix.ETHTOOL_GGSO, ^uint32(0)},
		{"gro", unix.ETHTOOL_GGRO, ^uint32(0)},
		{"lro", unix.ETHTOOL_GFLAGS, lroFlag},
	} {
		v, err := ethtoolValue(fd, name, o.command)
		if errors.Is(err, unix.EOPNOTSUPP) {
			continue // this kind of interface does not have it
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", o.name, os.NewSyscallError("ioctl SIOCETHTOOL", err))
		}
		if v&o.mask != 0 {
			on = append(on, o.name)
		}
	}
	return on, nil
}

// ethtoolValue reads a value of <linux/ethtool.h>'s struct ethtool_value.
func ethtoolValue(fd int, name string, command uint32) (uint32, error) {
	value := struct{ command, data uint32 }{command: command}
	// struct ifreq: a name, and a union of 24 bytes (16 with 32-bit pointers), of which only the
	// pointer is used.
	var req struct {
		name [unix.IFNAMSIZ]byte
		data unsafe.Pointer
		_    [16]byte
	}
	if len(name) >= len(req.name) {
		return 0, unix.ENAMETOOLONG
	}
	copy(req.name[:], name)
	var pin runtime.Pinner
	pin.Pin(&value)
	defer pin.Unpin()
	req.data = unsafe.Pointer(&value)
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&req))); errno != 0 {
		return 0, errno
	}
	return value.data, nil
}
