package lab

import (
	"fmt"
	"net/netip"
)

// A Spec describes a lab. The zero Spec is two racks of two hosts and a spine, with static routes,
// agents on all switches and daemons on all hosts.
type Spec struct {
	// Racks has the number of hosts of each rack, at most 8, for one rack or two. With one rack
	// there is neither a spine nor torB.
	Racks   []int
	MTU     int        // of links; 0: 4200, enough for a path MTU of 4096
	BGP     bool       // between the agents, over the management network; otherwise static routes
	Links   Impairment // of every link of the fabric
	Wired   bool       // every link can be impaired later, by Lab.Impair
	NoHosts bool       // no daemons
	// Switches has the differences from the default, by name: torA, spine, torB.
	Switches map[string]Switch
	// Hosts has the same for hosts: h1 and h2 in the rack of torA, h3 and h4 in that of torB,
	// unless Racks says otherwise.
	Hosts map[string]Host
	// FastPath: the switches forward most packets in the kernel.
	FastPath bool
	// BMv2: the switches are bmv2, and hosts send at a rate that it can process. Rate, which only
	// the embedded switch has, is refused.
	BMv2     bool
	FullRate bool // hosts send as fast as they can
	// Daemon has lines of YAML for the configuration of all daemons.
	Daemon string
	// Prepare, if not nil, is called with each process before its first start, and may change how
	// to start it.
	Prepare func(*Process)
}

// A Switch is a switch of the lab.
type Switch struct {
	Rate            string // of each port, as in "switchctl softswitch --queue-rate"; depths are then in units of 64 bytes
	Agent           string // lines of YAML for the agent's configuration
	NotProgrammable bool   // for groups
}

// A Host is a host of the lab.
type Host struct {
	// NoSwitch: the daemon's configuration names no agent.
	NoSwitch bool
	// MTU of its link, if it differs.
	MTU int
	// Daemon has lines of YAML for its daemon's configuration.
	Daemon string
}

const (
	defaultMTU = 4200
	p4rtPort   = 9559
	agentPort  = 9560
	bgpPort    = 1179
	daemonPort = 9550
)

// Where everything is. Ports from 1 on of a ToR lead to its hosts, 9 to the spine; ports 1 and 2 of
// the spine lead to torA and torB.

const (
	uplink    = 9 // of a ToR
	mostHosts = 8 // of a rack
)

// switchNames are the names of the switches, in order.
func (s *Spec) switchNames() []string {
	if len(s.Racks) == 1 {
		return []string{"torA"}
	}
	return []string{"torA", "spine", "torB"}
}

// A seat is the place of a host.
type seat struct {
	rack, port int
	addr       netip.Addr
}

// seats are the places of h1, h2 and so on.
func (s *Spec) seats() (list []seat) {
	for rack, hosts := range s.Racks {
		for i := range hosts {
			list = append(list, seat{1 + rack, 1 + i, netip.AddrFrom4([4]byte{10, byte(1 + rack), 0, byte(11 + i)})})
		}
	}
	return list
}

// complete fills in defaults, and checks the rest.
func (s *Spec) complete() error {
	if s.MTU == 0 {
		s.MTU = defaultMTU
	}
	if len(s.Racks) == 0 {
		s.Racks = []int{2, 2}
	}
	for _, hosts := range s.Racks {
		if hosts < 1 || hosts > mostHosts || len(s.Racks) > 2 {
			return fmt.Errorf("racks of %v hosts: one or two, of 1 to %d", s.Racks, mostHosts)
		}
	}
	for name, sw := range s.Switches {
		if s.BMv2 && sw.Rate != "" {
			return fmt.Errorf("%s: bmv2 has no option for the rate of queues", name)
		}
	}
	return nil
}

// portsOf returns the ports of a switch.
func (s *Spec) portsOf(sw string) (list []int) {
	if sw == "spine" {
		return []int{1, 2}
	}
	for i := range s.Racks[rackOf(sw)-1] {
		list = append(list, 1+i)
	}
	if len(s.Racks) > 1 {
		list = append(list, uplink)
	}
	return list
}

// uplinks returns the racks that the spine connects.
func (s *Spec) uplinks() []int {
	if len(s.Racks) == 1 {
		return nil
	}
	return []int{1, 2}
}

func hostName(i int) string { return fmt.Sprint("h", i+1) }

// rack returns 1 or 2 for ToRs, 0 for the spine.
func rackOf(sw string) int { return map[string]int{"torA": 1, "torB": 2}[sw] }

func prefixOf(rack int) netip.Prefix {
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(rack), 0, 0}), 24)
}

func gatewayOf(rack int) netip.Addr { return netip.AddrFrom4([4]byte{10, byte(rack), 0, 1}) }

func hostMAC(i int) string { return fmt.Sprintf("02:00:00:00:aa:%02x", i+1) }

// management returns the address of the i-th member of the management network: switches, then
// hosts.
func management(i int) netip.Addr { return netip.AddrFrom4([4]byte{172, 30, 0, byte(1 + i)}) }
