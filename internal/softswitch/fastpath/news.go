package fastpath

import (
	"errors"
	"os"
	"slices"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// news reports possible changes at ports: the kernel notifies of changes of links and their
// features, including GRO, also at those ends of veths that are in other namespaces.
type news struct {
	socket *os.File
	dirty  chan struct{}
	heard  atomic.Bool // a notification since the last look
	done   chan struct{}
}

// follow starts to listen. Without CAP_NET_BROADCAST, it gets no notifications of other namespaces.
func follow(ports []Port) (*news, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	x := &news{socket: os.NewFile(uintptr(fd), "netlink"), dirty: make(chan struct{}, 1), done: make(chan struct{})}
	if err := unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_LISTEN_ALL_NSID, 1); err != nil && !errors.Is(err, unix.EPERM) {
		return nil, errors.Join(os.NewSyscallError("setsockopt", err), x.socket.Close())
	}
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: unix.RTMGRP_LINK}); err != nil {
		return nil, errors.Join(os.NewSyscallError("bind", err), x.socket.Close())
	}
	go x.listen(ports)
	return x, nil
}

// listen passes on notifications about the ports. An interface number may be of another namespace,
// which only causes an unneeded look.
func (x *news) listen(ports []Port) {
	defer close(x.done)
	b := make([]byte, 1<<16)
	for {
		n, err := x.socket.Read(b)
		if err != nil && !errors.Is(err, unix.ENOBUFS) { // closed; ENOBUFS: notifications may have been lost
			return
		}
		states, broken := statesIn(b[:max(n, 0)])
		if err == nil && broken == nil && !slices.ContainsFunc(ports, func(p Port) bool {
			for index, s := range states {
				if index == p.Index || s.peer == p.Index {
					return true
				}
			}
			return false
		}) {
			continue
		}
		x.heard.Store(true)
		select {
		case x.dirty <- struct{}{}:
		default:
		}
	}
}

func (x *news) close() error {
	err := x.socket.Close()
	<-x.done
	return err
}
