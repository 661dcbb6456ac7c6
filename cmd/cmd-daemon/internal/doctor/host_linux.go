package doctor

import (
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/mcrdma/mcrdma/internal/unixsock"
)

// lookAtHost collects facts about this machine, this process's privileges, and the daemon at that
// socket.
func lookAtHost(socket string) (h Host) {
	h.Addresses = []Address{}
	interfaces, _ := net.Interfaces() // without any, the address is on none
	for _, ifi := range interfaces {
		addrs, _ := ifi.Addrs() // an interface that has been removed meanwhile has none
		for _, a := range addrs {
			n, ok := a.(*net.IPNet)
			if !ok {
				continue
			}
			ip, _ := netip.AddrFromSlice(n.IP)
			bits, _ := n.Mask.Size()
			h.Addresses = append(h.Addresses, Address{Prefix: netip.PrefixFrom(ip.Unmap(), bits), Interface: ifi.Name, MTU: ifi.MTU, Up: ifi.Flags&net.FlagUp != 0})
		}
	}
	var limit unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_MEMLOCK, &limit) == nil {
		h.MemLock, h.Unlimited = limit.Cur, limit.Cur == unix.RLIM_INFINITY
	}
	h.RawNet = effective()>>unix.CAP_NET_RAW&1 != 0
	h.Busy, h.Ordinary = busy(), ordinary(socket)
	return h
}

// lookAtDisk returns the file system of a file, or else of its directory; nil: it is not known.
func lookAtDisk(file string) *Disk {
	var s unix.Statfs_t
	if unix.Statfs(file, &s) != nil && unix.Statfs(filepath.Dir(file), &s) != nil || s.Blocks == 0 {
		return nil
	}
	return &Disk{ReadOnly: s.Flags&unix.ST_RDONLY != 0, Free: s.Bavail * uint64(s.Bsize)} //nolint:gosec // a block's size is not negative
}

// busy reports whether more than twice as many tasks are running as there are processors.
func busy() bool {
	text, _ := os.ReadFile("/proc/loadavg") // without it, not known
	first, _, _ := strings.Cut(string(text), " ")
	load, err := strconv.ParseFloat(first, 64)
	return err == nil && load > 2*float64(runtime.NumCPU())
}

// ordinary reports whether the process that listens at a socket has no higher priority than others.
func ordinary(socket string) bool {
	c, err := net.Dial("unix", socket)
	if err != nil {
		return false // reported elsewhere
	}
	defer c.Close()
	daemon, err := unixsock.Peer(c)
	if err != nil {
		return false
	}
	const normal = 20 // of the system call, whose result is 20 less the nice value
	p, err := unix.Getpriority(unix.PRIO_PROCESS, int(daemon.PID))
	return err == nil && p <= normal
}

// effective returns the capabilities of this process.
func effective() uint64 {
	status, _ := os.ReadFile("/proc/self/status") // without it none are known
	for line := range strings.Lines(string(status)) {
		if hex, ok := strings.CutPrefix(line, "CapEff:"); ok {
			n, _ := strconv.ParseUint(strings.TrimSpace(hex), 16, 64) // written by the kernel
			return n
		}
	}
	return 0
}
