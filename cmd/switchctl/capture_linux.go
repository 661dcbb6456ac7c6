package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/mcrdma/mcrdma/cmd/switchctl/internal/journey"
	"github.com/mcrdma/mcrdma/internal/softswitch"
)

// openTaps captures on interfaces, in both directions. Packets have the kernel's timestamps. stop
// ends it.
func openTaps(taps []tapSpec) (packets <-chan journey.Packet, failed <-chan error, stop func(), err error) {
	var sockets []*os.File
	var running sync.WaitGroup
	done := make(chan struct{})
	stop = sync.OnceFunc(func() {
		close(done)
		for _, s := range sockets {
			_ = s.Close()
		}
		running.Wait()
	})
	out, bad := make(chan journey.Packet, 4096), make(chan error, len(taps))
	for _, t := range taps {
		s, err := tapSocket(t.name)
		if err != nil {
			stop()
			return nil, nil, nil, fmt.Errorf("port %d of switch %s: interface %s: %w", t.port, t.sw, t.name, err)
		}
		sockets = append(sockets, s)
		running.Go(func() {
			if err := follow(s, t, out, done); err != nil {
				bad <- fmt.Errorf("interface %s: %w", t.name, err)
			}
		})
	}
	return out, bad, stop, nil
}

// tapBuffer is the size of the buffer for captured packets, in bytes.
const tapBuffer = 8 << 20

func tapSocket(name string) (_ *os.File, err error) {
	ifi, err := net.InterfaceByName(name)
	if err != nil {
		return nil, fmt.Errorf("%w (\"ip link\" lists the interfaces of this network namespace)", err)
	}
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		err = os.NewSyscallError("socket", err)
		if errors.Is(err, os.ErrPermission) {
			err = fmt.Errorf("%w (run as root or with CAP_NET_RAW; the embedded switch's --pcap does without)", err)
		}
		return nil, err
	}
	f := os.NewFile(uintptr(fd), name) //nolint:gosec // a file descriptor
	defer func() {
		if err != nil {
			_ = f.Close()
		}
	}()
	if unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, tapBuffer) != nil {
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, tapBuffer) // as much as allowed
	}
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TIMESTAMPNS, 1); err != nil {
		return nil, os.NewSyscallError("setsockopt SO_TIMESTAMPNS", err)
	}
	all := uint16(unix.ETH_P_ALL)
	err = unix.Bind(fd, &unix.SockaddrLinklayer{Ifindex: ifi.Index, Protocol: all<<8 | all>>8})
	return f, os.NewSyscallError("bind", err)
}

// follow delivers the packets that a socket receives, until it is closed.
func follow(s *os.File, t tapSpec, out chan<- journey.Packet, done <-chan struct{}) error {
	raw, err := s.SyscallConn()
	if err != nil {
		return err
	}
	buf, control := make([]byte, softswitch.MaxFrame), make([]byte, 256)
	for {
		var n, oobn int
		var from unix.Sockaddr
		var failed error
		err := raw.Read(func(fd uintptr) bool {
			n, oobn, _, from, failed = unix.Recvmsg(int(fd), buf, control, 0)
			return !errors.Is(failed, syscall.EAGAIN)
		})
		switch {
		case errors.Is(err, os.ErrClosed):
			return nil
		case err != nil:
			return err
		case failed != nil:
			return os.NewSyscallError("recvmsg", failed)
		}
		ll, ok := from.(*unix.SockaddrLinklayer)
		if !ok {
			continue
		}
		p := journey.Packet{Switch: t.sw, Port: t.port, Out: ll.Pkttype == unix.PACKET_OUTGOING, Time: stamp(control[:oobn]), Data: append([]byte(nil), buf[:n]...)}
		select {
		case out <- p:
		case <-done:
			return nil
		}
	}
}

// stamp returns the kernel's timestamp of a packet.
func stamp(control []byte) time.Time {
	messages, err := unix.ParseSocketControlMessage(control)
	if err != nil {
		return time.Now()
	}
	for _, m := range messages {
		if m.Header.Level == unix.SOL_SOCKET && m.Header.Type == unix.SO_TIMESTAMPNS && len(m.Data) >= 16 {
			return time.Unix(int64(binary.NativeEndian.Uint64(m.Data)), int64(binary.NativeEndian.Uint64(m.Data[8:]))) //nolint:gosec // a timespec
		}
	}
	return time.Now()
}
