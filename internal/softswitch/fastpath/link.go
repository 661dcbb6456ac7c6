package fastpath

import (
	"encoding/binary"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

const (
	errBusy  = unix.EBUSY
	errRange = unix.ERANGE
)

// A state is what the kernel says of an interface.
type state struct {
	veth bool
	up   bool   // with a link
	left uint64 // frames
}

// lookAt asks the kernel for the state of all interfaces, by number.
func lookAt() (map[int]state, error) {
	rib, err := syscall.NetlinkRIB(unix.RTM_GETLINK, unix.AF_UNSPEC)
	if err != nil {
		return nil, os.NewSyscallError("netlink", err)
	}
	list, err := syscall.ParseNetlinkMessage(rib)
	if err != nil {
		return nil, os.NewSyscallError("netlink", err)
	}
	all := map[int]state{}
	for _, m := range list {
		if m.Header.Type != unix.RTM_NEWLINK || len(m.Data) < unix.SizeofIfInfomsg {
			continue
		}
		attrs, err := syscall.ParseNetlinkRouteAttr(&m)
		if err != nil {
			return nil, os.NewSyscallError("netlink", err)
		}
		flags := binary.NativeEndian.Uint32(m.Data[8:])
		s := state{up: flags&unix.IFF_UP != 0 && flags&unix.IFF_RUNNING != 0}
		for _, a := range attrs {
			switch {
			case a.Attr.Type == unix.IFLA_STATS64 && len(a.Value) >= 16:
				s.left = binary.NativeEndian.Uint64(a.Value[8:]) // tx_packets of struct rtnl_link_stats64
			case a.Attr.Type == unix.IFLA_LINKINFO && len(a.Value) >= 8: // the first of what is nested in it is the kind
				s.veth = binary.NativeEndian.Uint16(a.Value[2:]) == unix.IFLA_INFO_KIND && string(a.Value[4:8]) == "veth"
			}
		}
		all[int(binary.NativeEndian.Uint32(m.Data[4:]))] = s
	}
	return all, nil
}
