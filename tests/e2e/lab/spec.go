package lab

import (
	"fmt"
	"net/netip"
)

// A Spec says what a lab is like. The zero Spec is two racks of two hosts and a
// spine, with static routes, agents at all switches and daemons at all hosts.
type Spec struct {
	MTU     int        // of links; 0: 4200, which a path MTU of 4096 takes
	BGP     bool       // between the agents, over the management network; otherwise static routes
	Links   Impairment // of every link of the fabric
	NoHosts bool       // no daemons
	// Switches have what differs from the usual, by name: torA, spine, torB.
	Switches map[string]Switch
	// Hosts likewise: h1 and h2 in the rack of torA, h3 and h4 in that of torB.
	Hosts map[string]Host
	// Configuration for all daemons: lines of YAML.
	Daemon string
}

// A Switch is one of the lab.
type Switch struct {
	Rate            string // of each port, as "switchctl softswitch --queue-rate" takes it
	Depth           int    // of each port's queue, packets
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

// What is where. Ports 1 and 2 of a ToR are its hosts', 9 leads to the spine, whose
// ports 1 and 2 lead to torA and torB.
var (
	switchNames = []string{"torA", "spine", "torB"}
	hostNames   = []string{"h1", "h2", "h3", "h4"}
)

const uplink = 9 // of a ToR

// rack is 1 or 2 for ToRs, 0 for the spine.
func rackOf(sw string) int { return map[string]int{"torA": 1, "torB": 2}[sw] }

func prefixOf(rack int) netip.Prefix {
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(rack), 0, 0}), 24)
}

func gatewayOf(rack int) netip.Addr { return netip.AddrFrom4([4]byte{10, byte(rack), 0, 1}) }

// hostAt is where the i-th host is: its rack, its port, its address.
func hostAt(i int) (rack, port int, addr netip.Addr) {
	rack, port = 1+i/2, 1+i%2
	return rack, port, netip.AddrFrom4([4]byte{10, byte(rack), 0, byte(10 + port)})
}

func hostMAC(i int) string { return fmt.Sprintf("02:00:00:00:aa:%02x", i+1) }

// management is the address of the i-th member of the management network: switches,
// then hosts.
func management(i int) netip.Addr { return netip.AddrFrom4([4]byte{172, 30, 0, byte(1 + i)}) }
