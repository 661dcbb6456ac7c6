package doctor

import (
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// lookAtHost collects what is known of this machine and of this process's rights.
func lookAtHost() (h Host) {
	h.Addresses = []Address{}
	interfaces, _ := net.Interfaces() // without any, the address is on none
	for _, ifi := range interfaces {
		addrs, _ := ifi.Addrs() // an interface that has gone meanwhile has none
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
	return h
}

// effective are the capabilities that this process has.
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
