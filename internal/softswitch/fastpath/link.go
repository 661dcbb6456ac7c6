package fastpath

import (
	"encoding/binary"
	"fmt"
	"os"
	"runtime"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A state is the kernel's state of an interface.
type state struct {
	name string
	mtu  int
	peer int // ifindex of a veth's peer
	veth bool
	up   bool // up, with a link
	xdp  bool // an XDP program is attached
}

// lookAt returns the state of all interfaces from the kernel, by number.
func lookAt() (map[int]state, error) {
	rib, err := syscall.NetlinkRIB(unix.RTM_GETLINK, unix.AF_UNSPEC)
	if err != nil {
		return nil, os.NewSyscallError("netlink", err)
	}
	return statesIn(rib)
}

// statesIn parses netlink messages into states.
func statesIn(messages []byte) (map[int]state, error) {
	list, err := syscall.ParseNetlinkMessage(messages)
	if err != nil {
		return nil, os.NewSyscallError("netlink", err)
	}
	all := map[int]state{}
	for _, m := range list {
		if m.Header.Type != unix.RTM_NEWLINK && m.Header.Type != unix.RTM_DELLINK || len(m.Data) < unix.SizeofIfInfomsg {
			continue
		}
		attrs, err := syscall.ParseNetlinkRouteAttr(&m)
		if err != nil {
			return nil, os.NewSyscallError("netlink", err)
		}
		flags := binary.NativeEndian.Uint32(m.Data[8:])
		const up = unix.IFF_UP | unix.IFF_RUNNING | unix.IFF_LOWER_UP
		s := state{up: flags&up == up}
		for _, a := range attrs {
			switch {
			case a.Attr.Type == unix.IFLA_IFNAME:
				s.name = unix.ByteSliceToString(a.Value)
			case a.Attr.Type == unix.IFLA_MTU && len(a.Value) >= 4:
				s.mtu = int(binary.NativeEndian.Uint32(a.Value))
			case a.Attr.Type == unix.IFLA_LINK && len(a.Value) >= 4:
				s.peer = int(binary.NativeEndian.Uint32(a.Value))
			case a.Attr.Type == unix.IFLA_XDP:
				s.xdp = len(a.Value) > 8 // the mode of attachment, followed by the numbers of programs
			case a.Attr.Type == unix.IFLA_LINKINFO && len(a.Value) >= 8: // the first nested attribute is the kind
				s.veth = binary.NativeEndian.Uint16(a.Value[2:]) == unix.IFLA_INFO_KIND && string(a.Value[4:8]) == "veth"
			}
		}
		all[int(binary.NativeEndian.Uint32(m.Data[4:]))] = s
	}
	return all, nil
}

// statistics reads a driver's own counters of an interface, as ethtool -S does.
type statistics struct {
	socket        int
	names, values []byte
}

const (
	maxStatistics = 8192 // per interface; the driver determines how many it writes
	nameLen       = 32
	ethSSStats    = 1 // ETH_SS_STATS of <linux/ethtool.h>
)

func newStatistics() (*statistics, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	return &statistics{fd, make([]byte, 12+nameLen*maxStatistics), make([]byte, 8+8*maxStatistics)}, os.NewSyscallError("socket", err)
}

// redirected returns how many frames the kernel has redirected to a veth by XDP while its other end
// was ready for them.
func (s *statistics) redirected(name string) (sum uint64, err error) {
	info, err := unix.IoctlGetEthtoolDrvinfo(s.socket, name)
	if err != nil {
		return 0, os.NewSyscallError("ethtool", err)
	}
	n := info.N_stats
	if n > maxStatistics/2 { // the number may grow meanwhile
		return 0, fmt.Errorf("the driver of %s counts %d things", name, n)
	}
	binary.NativeEndian.PutUint32(s.names, unix.ETHTOOL_GSTRINGS)
	binary.NativeEndian.PutUint32(s.names[4:], ethSSStats)
	binary.NativeEndian.PutUint32(s.names[8:], n)
	binary.NativeEndian.PutUint32(s.values, unix.ETHTOOL_GSTATS)
	binary.NativeEndian.PutUint32(s.values[4:], n)
	for _, b := range [][]byte{s.names, s.values} {
		if err := s.ask(name, b); err != nil {
			return 0, err
		}
	}
	found := false
	for i := range int(n) {
		what := unix.ByteSliceToString(s.names[12+nameLen*i:][:nameLen])
		if strings.HasPrefix(what, "tx_queue_") && (strings.HasSuffix(what, "_xdp_xmit") || strings.HasSuffix(what, "_xdp_xmit_errors")) {
			found, sum = true, sum+binary.NativeEndian.Uint64(s.values[8+8*i:])
		}
	}
	if !found {
		return 0, fmt.Errorf("the driver of %s does not count what the kernel gives it by XDP", name)
	}
	return sum, nil
}

// ask makes an ethtool request; the driver writes the answer into b, which begins with the request.
func (s *statistics) ask(name string, b []byte) error {
	var req struct { // struct ifreq
		name [unix.IFNAMSIZ]byte
		data unsafe.Pointer
		_    [16]byte
	}
	if len(name) >= len(req.name) {
		return unix.ENAMETOOLONG
	}
	copy(req.name[:], name)
	var pin runtime.Pinner
	pin.Pin(&b[0])
	defer pin.Unpin()
	req.data = unsafe.Pointer(&b[0])
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(s.socket), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&req))); errno != 0 {
		return os.NewSyscallError("ethtool", errno)
	}
	return nil
}

func (s *statistics) close() error { return os.NewSyscallError("close", unix.Close(s.socket)) }
