package fastpath

import (
	"encoding/binary"
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

const (
	errBusy  = unix.EBUSY
	errRange = unix.ERANGE
)

// lookAt asks the kernel whether an interface is one end of a veth pair, and how many frames have left by it.
func lookAt(ifindex int) (veth bool, left uint64, err error) {
	rib, err := syscall.NetlinkRIB(unix.RTM_GETLINK, unix.AF_UNSPEC)
	if err != nil {
		return false, 0, os.NewSyscallError("netlink", err)
	}
	list, err := syscall.ParseNetlinkMessage(rib)
	if err != nil {
		return false, 0, os.NewSyscallError("netlink", err)
	}
	for _, m := range list {
		if m.Header.Type != unix.RTM_NEWLINK || len(m.Data) < unix.SizeofIfInfomsg || binary.NativeEndian.Uint32(m.Data[4:]) != uint32(ifindex) { //nolint:gosec // an interface's number
			continue
		}
		attrs, err := syscall.ParseNetlinkRouteAttr(&m)
		if err != nil {
			return false, 0, os.NewSyscallError("netlink", err)
		}
		for _, a := range attrs {
			switch {
			case a.Attr.Type == unix.IFLA_STATS64 && len(a.Value) >= 16:
				left = binary.NativeEndian.Uint64(a.Value[8:]) // tx_packets of struct rtnl_link_stats64
			case a.Attr.Type == unix.IFLA_LINKINFO && len(a.Value) >= 8: // the first of what is nested in it is the kind
				veth = binary.NativeEndian.Uint16(a.Value[2:]) == unix.IFLA_INFO_KIND && string(a.Value[4:8]) == "veth"
			}
		}
		return veth, left, nil
	}
	return false, 0, fmt.Errorf("interface %d: %w", ifindex, os.ErrNotExist)
}
