package lab

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// join makes a veth pair between two namespaces, down, with offloads off: otherwise, work that one
// end leaves to hardware, which does not exist, would be missing at the other end.
func join(a *Space, aName string, b *Space, bName string, mtu int) error {
	la := netlink.NewLinkAttrs()
	la.Name, la.MTU = aName, mtu
	veth := &netlink.Veth{LinkAttrs: la, PeerName: bName, PeerNamespace: netlink.NsFd(b.ns), PeerMTU: uint32(mtu)}
	if err := a.nl.LinkAdd(veth); err != nil {
		return fmt.Errorf("veth %s.%s–%s.%s: %w", a.Name, aName, b.Name, bName, err)
	}
	return errors.Join(a.offloadsOff(aName), b.offloadsOff(bName))
}

// offloadsOff is "ethtool -K NAME tx off sg off tso off gso off gro off".
func (s *Space) offloadsOff(name string) error {
	return s.offloads(name, 0, unix.ETHTOOL_STSO, unix.ETHTOOL_SGSO, unix.ETHTOOL_SGRO, unix.ETHTOOL_STXCSUM, unix.ETHTOOL_SSG)
}

// SetGRO is "ethtool -K NAME gro on" or off. Without GRO, a veth accepts no frames of XDP.
func (s *Space) SetGRO(name string, on bool) error {
	value := uint32(0)
	if on {
		value = 1
	}
	return s.offloads(name, value, unix.ETHTOOL_SGRO)
}

// TakeXDP makes a veth accept frames of XDP for a packet socket: each by itself, where GRO would
// coalesce them.
func (s *Space) TakeXDP(name string) error {
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.XDP, License: "Apache-2.0", Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, xdpPass), asm.Return()}})
	if err != nil {
		return fmt.Errorf("%w: the kernel takes no XDP program: %w", ErrUnable, err)
	}
	defer p.Close()
	err = s.Do(func() error {
		l, err := netlink.LinkByName(name)
		if err != nil {
			return err
		}
		return netlink.LinkSetXdpFdWithFlags(l, p.FD(), nl.XDP_FLAGS_DRV_MODE)
	})
	if err != nil {
		return fmt.Errorf("XDP at %s in %s: %w", name, s.Name, err)
	}
	return s.offloads(name, 0, unix.ETHTOOL_SGRO) // the kernel has turned it on
}

const xdpPass = 2

func (s *Space) offloads(name string, value uint32, commands ...uint32) error {
	err := s.Do(func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return os.NewSyscallError("socket", err)
		}
		defer unix.Close(fd)
		for _, command := range commands {
			value := struct{ command, data uint32 }{command, value}
			req := struct {
				name [unix.IFNAMSIZ]byte
				data unsafe.Pointer
				_    [16]byte
			}{data: unsafe.Pointer(&value)}
			copy(req.name[:unix.IFNAMSIZ-1], name)
			if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&req))); errno != 0 {
				return os.NewSyscallError("ioctl SIOCETHTOOL", errno)
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("offloads of %s in %s: %w", name, s.Name, err)
	}
	return nil
}

// HasXDP reports whether an interface has an XDP program.
func (s *Space) HasXDP(name string) (bool, error) {
	l, err := s.nl.LinkByName(name)
	if err != nil {
		return false, fmt.Errorf("%s in %s: %w", name, s.Name, err)
	}
	x := l.Attrs().Xdp
	return x != nil && x.Attached, nil
}

// up sets an interface up, with an address unless addr is zero.
func (s *Space) up(name string, addr netip.Prefix) error {
	l, err := s.nl.LinkByName(name)
	if err != nil {
		return fmt.Errorf("%s in %s: %w", name, s.Name, err)
	}
	if addr.IsValid() {
		a, err := netlink.ParseAddr(addr.String())
		if err == nil {
			err = s.nl.AddrAdd(l, a)
		}
		if err != nil {
			return fmt.Errorf("address %v of %s in %s: %w", addr, name, s.Name, err)
		}
	}
	if err := s.nl.LinkSetUp(l); err != nil {
		return fmt.Errorf("%s in %s: %w", name, s.Name, err)
	}
	return nil
}

// SetUp sets an interface up or down, like pulling its cable.
func (s *Space) SetUp(name string, up bool) error {
	l, err := s.nl.LinkByName(name)
	if err != nil {
		return err
	}
	if up {
		return s.nl.LinkSetUp(l)
	}
	return s.nl.LinkSetDown(l)
}

// gateway adds the default route.
func (s *Space) gateway(by string, via netip.Addr) error {
	l, err := s.nl.LinkByName(by)
	if err != nil {
		return err
	}
	return s.nl.RouteAdd(&netlink.Route{LinkIndex: l.Attrs().Index, Gw: via.AsSlice()})
}

const (
	bucket  = 64 << 10 // bytes that may leave at once
	backlog = 4 << 20  // bytes that may wait at a limited interface
)

// Limit limits the rate at which an interface sends, in bits per second including headers, by a
// token bucket.
func (s *Space) Limit(name string, bits uint64) error { return s.limit(name, bits, bucket) }

func (s *Space) limit(name string, bits, bucket uint64) error {
	l, err := s.nl.LinkByName(name)
	if err != nil {
		return err
	}
	bytes := bits / 8
	return s.nl.QdiscReplace(&netlink.Tbf{
		QdiscAttrs: netlink.QdiscAttrs{LinkIndex: l.Attrs().Index, Parent: netlink.HANDLE_ROOT, Handle: netlink.MakeHandle(1, 0)},
		Rate:       bytes, Limit: backlog, Buffer: uint32(float64(bucket) * 1e6 / float64(bytes) * netlink.TickInUsec()),
	})
}
