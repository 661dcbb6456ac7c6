package udplink

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/mcrdma/mcrdma/pkg/rocev2"
)

// A guard tells other processes which process holds an address: it listens on
// an abstract unix socket, which is scoped to the network namespace like the
// UDP port is, and whose peer credentials name the process. It protects
// nothing; the UDP port does that.
type guard struct {
	l    *net.UnixListener
	done chan struct{}
}

func guardName(addr netip.Addr) *net.UnixAddr {
	return &net.UnixAddr{Name: "@mcrdma-softroce-" + addr.String(), Net: "unix"}
}

// openGuard returns nil if the name is taken: the port was free, so an
// unrelated process uses the name, and only an error message suffers.
func openGuard(addr netip.Addr) *guard {
	l, err := net.ListenUnix("unix", guardName(addr))
	if err != nil {
		return nil
	}
	g := &guard{l, make(chan struct{})}
	go func() {
		defer close(g.done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			c.Close()
		}
	}()
	return g
}

func (g *guard) close() {
	if g != nil {
		g.l.Close()
		<-g.done
	}
}

// whoHolds says, for an error message, which process holds port 4791 of addr.
func whoHolds(addr netip.Addr) string {
	if pid := guardPID(addr); pid > 0 {
		return "held by a softroce device of process " + describe(pid)
	}
	inode, listed, err := findHolder(addr)
	switch {
	case err != nil:
		return "its holder cannot be found: " + err.Error()
	case !listed:
		return "its holder is not listed in /proc/net/udp any more"
	case inode == 0:
		return "held by a socket that no process owns (the kernel's rdma_rxe?)"
	}
	if pid := inodePID(inode); pid > 0 {
		return "held by process " + describe(pid)
	}
	return "held by a socket whose process is not visible from here"
}

// findHolder looks for the process that holds port 4791 of addr in the network
// namespace of this thread. The kernel writes the list piece by piece, and
// misses sockets when others come and go meanwhile, so it may try again.
func findHolder(addr netip.Addr) (inode uint64, listed bool, err error) {
	for range 10 {
		// Of this thread: others may be in other network namespaces.
		b, err := os.ReadFile("/proc/thread-self/net/udp")
		if err != nil {
			return 0, false, err
		}
		if inode, listed = holderInode(bytes.NewReader(b), addr.As4(), rocev2.UDPPort); listed {
			break
		}
	}
	return inode, listed, nil
}

// guardPID returns the process that guards addr, 0 if there is none or it is
// in another PID namespace.
func guardPID(addr netip.Addr) int {
	c, err := net.DialUnix("unix", nil, guardName(addr))
	if err != nil {
		return 0
	}
	defer c.Close()
	raw, err := c.SyscallConn()
	if err != nil {
		return 0
	}
	pid := 0
	_ = raw.Control(func(fd uintptr) {
		if cred, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
			pid = int(cred.Pid)
		}
	})
	return pid
}

func describe(pid int) string {
	comm, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
	if err != nil {
		return strconv.Itoa(pid)
	}
	return fmt.Sprintf("%d (%s)", pid, bytes.TrimSpace(comm))
}

// holderInode finds in the format of /proc/net/udp the inode of the socket
// that is bound to addr or to all addresses, 0 if it has none (a socket of the
// kernel), and whether it is listed.
func holderInode(r io.Reader, addr [4]byte, port int) (inode uint64, listed bool) {
	// The address is printed as a number in the machine's byte order.
	want := []string{
		fmt.Sprintf("%08X:%04X", binary.NativeEndian.Uint32(addr[:]), port),
		fmt.Sprintf("%08X:%04X", 0, port),
	}
	for s := bufio.NewScanner(r); s.Scan(); {
		f := strings.Fields(s.Text())
		if len(f) < 10 || f[1] != want[0] && f[1] != want[1] {
			continue
		}
		if inode, err := strconv.ParseUint(f[9], 10, 64); err == nil {
			return inode, true
		}
	}
	return 0, false
}

// inodePID returns a process that has the socket open, 0 if none is visible.
func inodePID(inode uint64) int {
	fds, _ := filepath.Glob("/proc/[0-9]*/fd/*")
	want := fmt.Sprintf("socket:[%d]", inode)
	for _, fd := range fds {
		if to, err := os.Readlink(fd); err == nil && to == want {
			pid, _ := strconv.Atoi(strings.Split(fd, "/")[2])
			return pid
		}
	}
	return 0
}
