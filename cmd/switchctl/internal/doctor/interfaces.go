package doctor

import (
	"fmt"
	"slices"
	"strings"

	"github.com/mcrdma/mcrdma/cmd/internal/findings"
)

// An Interface is a network interface of this host.
type Interface struct {
	Name    string
	Err     error // of examining it: then nothing else is known
	Up      bool
	Carrier bool
	MTU     int
	Driver  string // such as "veth"
	// Host: it has an IPv4 address, so the host itself uses it. Otherwise it counts as a switch's
	// port.
	Host bool
	// Offloads that are on, by the names that ethtool -K takes: rx, tx, sg, tso, gso,
	// gro, lro.
	Offloads   []string
	OffloadErr error // of reading them
	IPv6       bool  // the kernel uses IPv6 on it
}

const (
	// roceMTU is the size of packets with the smallest useful path MTU, 1024 bytes, with IPv4, UDP,
	// BTH, RETH, immediate data and ICRC, and some extra space.
	roceMTU = 1100
	// vethPeer are offloads that a host's end of a veth pair must not have, because of the switch
	// at the other end.
	vethPeer = "tx sg tso gso"
	// port are offloads that a switch's port must not have, because of the frames that it receives.
	port = "gro lro"
)

func (d *diagnosis) iface(i *Interface) {
	subject := "interface " + i.Name
	if i.Err != nil {
		d.Add(findings.Error, subject, "it cannot be looked at", i.Err.Error(), "correct --interface; an interface in another network namespace is looked at from there (ip netns exec)")
		return
	}
	if !i.Up {
		d.Add(findings.Error, subject, "it is down", "", "ip link set "+i.Name+" up")
	} else if !i.Carrier {
		d.Add(findings.Error, subject, "it has no carrier", "the other end is down, or nothing is plugged in", "set the other end up")
	}
	if i.MTU < roceMTU {
		d.Add(findings.Error, subject, fmt.Sprintf("its MTU of %d bytes is too small for RoCE", i.MTU),
			fmt.Sprintf("packets of a path MTU of 1024 need %d with their headers", roceMTU),
			fmt.Sprintf("ip link set %s mtu 1500, or 4200 for a path MTU of 4096; then restart what uses it", i.Name))
	}
	d.offloads(i, subject)
	if i.IPv6 && !i.Host {
		d.Add(findings.Note, subject, "the kernel speaks IPv6 by it", "its neighbor discovery and multicast arrive at the switch, which drops and counts them",
			fmt.Sprintf("sysctl -w net.ipv6.conf.%s.disable_ipv6=1", strings.ReplaceAll(i.Name, ".", "/")))
	}
}

// offloads: work that a virtual interface leaves to nonexistent hardware is missing at the switch,
// and frames that a port has merged cannot be forwarded.
func (d *diagnosis) offloads(i *Interface, subject string) {
	if i.OffloadErr != nil {
		d.Add(findings.Note, subject, "its offloads cannot be read", i.OffloadErr.Error(), "ethtool -k "+i.Name)
		return
	}
	on := func(names string) (list []string) {
		for _, n := range strings.Fields(names) {
			if slices.Contains(i.Offloads, n) {
				list = append(list, n)
			}
		}
		return list
	}
	off := func(list []string) string {
		return "ethtool -K " + i.Name + " " + strings.Join(list, " off ") + " off"
	}
	if list := on(vethPeer); i.Driver == "veth" && i.Host && len(list) > 0 { // a switch sends whole frames itself
		d.Add(findings.Error, subject, "offloads are on: "+strings.Join(list, ", "),
			"a veth pair hands frames over as they are: uncut, of up to 64 KB, and without checksums; a switch at the other end drops them", off(list))
	}
	if list := on(port); !i.Host && len(list) > 0 {
		d.Add(findings.Error, subject, "offloads are on: "+strings.Join(list, ", "),
			"several frames arrive joined to one that no switch may forward; it is dropped", off(list))
	}
}

// mtus: a switch's ports must have equal MTUs, because a frame that arrives on one leaves on
// another.
func (d *diagnosis) mtus() {
	largest, of := 0, ""
	for _, i := range d.Interfaces {
		if i.Err == nil && !i.Host && i.MTU > largest {
			largest, of = i.MTU, i.Name
		}
	}
	for _, i := range d.Interfaces {
		if i.Err == nil && !i.Host && i.MTU < largest && i.MTU >= roceMTU {
			d.Add(findings.Warning, "interface "+i.Name, fmt.Sprintf("its MTU is %d bytes, and that of %s %d", i.MTU, of, largest),
				"frames that are longer than that are dropped if they are to leave by it", fmt.Sprintf("ip link set %s mtu %d; then restart the switch", i.Name, largest))
		}
	}
}
