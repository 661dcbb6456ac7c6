package udplink

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// The layouts below are those of 64-bit Linux.
const _ = uint(unsafe.Sizeof(uintptr(0)) - 8)

// mmsghdr is the kernel's struct mmsghdr.
type mmsghdr struct {
	hdr unix.Msghdr
	len uint32
	_   uint32
}

// txControl is the ancillary data of a message that is sent: the ToS byte
// always, the segment size if the message is a GSO one.
type txControl struct {
	tosHdr unix.Cmsghdr
	tos    int32
	_      int32
	segHdr unix.Cmsghdr
	seg    uint16
	_      [6]byte
}

const (
	txControlTOS = int(unsafe.Offsetof(txControl{}.segHdr))
	txControlAll = int(unsafe.Sizeof(txControl{}))
)

func (c *txControl) init() {
	c.tosHdr = unix.Cmsghdr{Len: uint64(unix.CmsgLen(4)), Level: unix.IPPROTO_IP, Type: unix.IP_TOS}
	c.segHdr = unix.Cmsghdr{Len: uint64(unix.CmsgLen(2)), Level: unix.IPPROTO_UDP, Type: unix.UDP_SEGMENT}
}

// rxControl is room for the ancillary data of a received message.
type rxControl [8]uint64 // aligned as struct cmsghdr is

// parse returns the ToS byte and the segment size, 0 if there are none.
func (c *rxControl) parse(n int) (tos uint8, seg int) {
	b := unsafe.Slice((*byte)(unsafe.Pointer(c)), min(n, int(unsafe.Sizeof(*c))))
	for len(b) >= unix.SizeofCmsghdr {
		h := (*unix.Cmsghdr)(unsafe.Pointer(&b[0]))
		if h.Len < unix.SizeofCmsghdr || h.Len > uint64(len(b)) {
			break
		}
		data := b[unix.SizeofCmsghdr:h.Len]
		switch {
		case h.Level == unix.IPPROTO_IP && h.Type == unix.IP_TOS && len(data) >= 1:
			tos = data[0]
		case h.Level == unix.IPPROTO_UDP && h.Type == unix.UDP_GRO && len(data) >= 4:
			seg = int(*(*int32)(unsafe.Pointer(&data[0])))
		}
		b = b[min(unix.CmsgSpace(len(data)), len(b)):]
	}
	return tos, seg
}

// mmsg calls sendmmsg or recvmmsg, and returns how many messages were sent or received.
func mmsg(trap, fd uintptr, msgs []mmsghdr, flags uintptr) (int, unix.Errno) {
	for {
		n, _, errno := unix.Syscall6(trap, fd, uintptr(unsafe.Pointer(&msgs[0])), uintptr(len(msgs)), flags, 0, 0)
		if errno != unix.EINTR {
			return int(n), errno
		}
	}
}

func getMemInfo(fd int, info *[unix.SK_MEMINFO_VARS]uint32) error {
	n := uint32(unsafe.Sizeof(*info))
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.SOL_SOCKET, unix.SO_MEMINFO,
		uintptr(unsafe.Pointer(info)), uintptr(unsafe.Pointer(&n)), 0)
	if errno != 0 {
		return errno
	}
	return nil
}
