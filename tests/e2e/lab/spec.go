package lab

import (
	"fmt"
	"net/netip"
)

// A Spec says what a lab is like. The zero Spec is two racks of two hosts and a
// spine, with static routes, agents at all switches and daemons at all hosts.
type Spec struct {
	// Racks is how many hosts each rack has, at most 8: one rack or two. Without a
	// second one there are neither spine nor torB.
	Racks   []int
	MTU     int        // of links; 0: 4200, which a path MTU of 4096 takes
	BGP     bool       // between the agents, over the management network; otherwise static routes
	Links   Impairment // of every link of the fabric
	Wired   bool       // every link can be impaired later, by Lab.Impair
	NoHosts bool       // no daemons
	// Switches have what differs from the usual, by name: torA, spine, torB.
	Switches map[string]Switch
	// Hosts likewise: h1 and h2 in the rack of torA, h3 and h4 in that of torB, unless
	// Racks says otherwise.
	Hosts map[string]Host
	// FastPath: the kernel processes what is hot of the switches' packets.
	FastPath bool
	// BMv2: the switches are bmv2's, and hosts send as slowly as they take it. What is
	// the embedded switch's only, Rate, is refused.
	BMv2     bool
	FullRate bool // they send as fast as they can
	// Configuration for all daemons: lines of YAML.
	Daemon string
	// Prepare, if it isn't nil, is called with each process before its first start, and
	// may change how it is started.
	Prepare func(*Process)
}

// A Switch is one of the lab.
type Switch struct {
	Rate            string // of each port, as "switchctl softswitch --queue-rate" takes it; depths are then in units of 64 bytes
	Agent           string // lines of YAML for the agent's configuration
	NotProgrammable bool   // for groups
}

// A Host is one of the lab.
type Host struct {
	// NoSwitch: the daemon's configuration names no agent.
	NoSwitch bool
	// MTU of its link, if it differs.
	MTU int
	// Daemon: lines of YAML for its configuration.
	Daemon string
}

const (
	defaultMTU = 4200
	p4rtPort   = 9559
	agentPort  = 9560
	bgpPort    = 1179
	daemonPort = 9550
)

// What is where. A ToR's ports from 1 on are its hosts', 9 leads to the spine, whose
// ports 1 and 2 lead to torA and torB.

const (
	uplink    = 9 // of a ToR
	mostHosts = 8 // of a rack
)

// switchNames are those of the switches, in order.
func (s *Spec) switchNames() []string {
	if len(s.Racks) == 1 {
		return []string{"torA"}
	}
	return []string{"torA", "spine", "torB"}
}

// A seat is where a host is.
type seat struct {
	rack, port int
	addr       netip.Addr
}

// seats are those of h1, h2 and so on.
func (s *Spec) seats() (list []seat) {
	for rack, hosts := range s.Racks {
		for i := range hosts {
			list = append(list, seat{1 + rack, 1 + i, netip.AddrFrom4([4]byte{10, byte(1 + rack), 0, byte(11 + i)})})
		}
	}
	return list
}

// complete fills in what is not said, and checks the rest.
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

// portsOf are the ports of a switch.
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

// uplinks are the racks that the spine joins.
func (s *Spec) uplinks() []int {
	if len(s.Racks) == 1 {
		return nil
	}
	return []int{1, 2}
}

func hostName(i int) string { return fmt.Sprint("h", i+1) }

// rack is 1 or 2 for ToRs, 0 for the spine.
func rackOf(sw string) int { return map[string]int{"torA": 1, "torB": 2}[sw] }

func prefixOf(rack int) netip.Prefix {
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(rack), 0, 0}), 24)
}

func gatewayOf(rack int) netip.Addr { return netip.AddrFrom4([4]byte{10, byte(rack), 0, 1}) }

func hostMAC(i int) string { return fmt.Sprintf("02:00:00:00:aa:%02x", i+1) }

// management is the address of the i-th member of the management network: switches,
// then hosts.
func management(i int) netip.Addr { return netip.AddrFrom4([4]byte{172, 30, 0, byte(1 + i)}) }
