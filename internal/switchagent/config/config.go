// Package config is the configuration of a switch agent: the YAML file that
// people write, and the typed [Config] that it becomes.
//
// [Load] and [Parse] are strict: they refuse an unknown field, a value of the wrong type and
// inconsistent values, each with file and line. Go code may build a Config itself;
// [Config.SetDefaults] and [Config.Validate] do for it what Parse does for a file. [Reference]
// describes every field.
//
// It opens only the file passed to Load.
package config

import (
	_ "embed"
	"fmt"
	"hash/fnv"
	"net/netip"
	"path/filepath"
	"slices"
	"time"

	"github.com/mcrdma/mcrdma/internal/strictyaml"
	"github.com/mcrdma/mcrdma/internal/switchspec"
)

// Reference is a complete configuration, in which comments explain every field and say which
// values are defaults.
//
//go:embed reference.yaml
var Reference string

// Where routes come from.
const (
	Static = "static" // a topology file
	BGP    = "bgp"    // the neighbors, by BGP
	Kernel = "kernel" // the tables of a network namespace
)

// What becomes of the ICRC of copies.
const (
	ICRCAuto      = "auto"          // kept right where that can be, else recomputed
	ICRCNeutral   = "neutral"       // kept right; groups where that cannot be are refused
	ICRCRecompute = "recompute"     // always recomputed
	ICRCOff       = "nic-check-off" // left alone
)

// A Config describes an agent's switch and the fabric. All addresses are IPv4.
// Tags give a field's name in the file; "absent" is a bool's value if it is not
// there.
type Config struct {
	Name         string         `yaml:"name"`
	Address      netip.Addr     `yaml:"address"`  // the router's own; BGP router ID
	MAC          switchspec.MAC `yaml:"mac"`      // the router's; default of the ports'
	Prefixes     []netip.Prefix `yaml:"prefixes"` // of the hosts at this switch
	Gateways     []netip.Addr   `yaml:"gateways"` // ARP is answered for them
	Programmable bool           `yaml:"programmable" absent:"true"`
	ICRC         string         `yaml:"icrc"` // see the constants
	HashSeed     uint32         `yaml:"hash_seed"`
	ECN          ECN            `yaml:"ecn"`
	P4Runtime    P4Runtime      `yaml:"p4runtime"`
	Listen       string         `yaml:"listen"`   // the agent's gRPC, "address:port"
	Metrics      string         `yaml:"metrics"`  // Prometheus; empty: none
	TLS          TLS            `yaml:"tls"`      // empty: plain text
	Insecure     bool           `yaml:"insecure"` // plain text at any address
	State        string         `yaml:"state"`    // the file of what outlives the agent
	Routing      Routing        `yaml:"routing"`
	Hello        Hello          `yaml:"hello"`
	Restart      Restart        `yaml:"restart"`
	Leases       Leases         `yaml:"leases"`
	Limits       Limits         `yaml:"limits"`
	Ports        []Port         `yaml:"ports"`
	Hosts        []Host         `yaml:"hosts"`
	// Guard lets only Hosts send at ports with hosts, each from its port.
	Guard    bool     `yaml:"guard"`
	Switches []Switch `yaml:"switches"`
}

// P4Runtime says which switch is programmed.
type P4Runtime struct {
	Target     string `yaml:"target"` // "host:port"
	DeviceID   uint64 `yaml:"device_id"`
	ElectionID uint64 `yaml:"election_id"`
}

// TLS holds the names of PEM files.
type TLS = strictyaml.TLS

// Routing says where unicast routes come from.
type Routing struct {
	Source   string        `yaml:"source"`   // Static, BGP or Kernel
	Topology string        `yaml:"topology"` // Static: the file
	BGP      Speaker       `yaml:"bgp"`
	Kernel   KernelRouting `yaml:"kernel"`
	// Settle is how long after the start missing routes are not taken for
	// withdrawn ones.
	Settle time.Duration `yaml:"settle"`
}

// A Speaker is the agent's own end of BGP.
type Speaker struct {
	ASN    uint32        `yaml:"asn"`
	Listen []netip.Addr  `yaml:"listen"` // none: sessions are only opened
	Port   uint16        `yaml:"port"`
	Drain  time.Duration `yaml:"drain"` // between asking neighbors to turn away and leaving
}

// KernelRouting says which of the kernel's tables to follow.
type KernelRouting struct {
	Namespace string `yaml:"namespace"` // a path; empty: the agent's own
	Table     int    `yaml:"table"`     // 0: main
}

// Hello is how quickly a dead link is noticed: after Multiplier intervals.
type Hello struct {
	Interval   time.Duration `yaml:"interval"`
	Multiplier uint8         `yaml:"multiplier"`
}

// Restart is what the agent asks of the neighbors when it ends.
type Restart struct {
	// Hold is how long they keep using this switch without its agent: links stay
	// up, and routes in use. 0: the agent leaves, and they turn to other paths.
	Hold time.Duration `yaml:"hold"`
}

// Leases are how long groups and branches live without being renewed, if the
// request does not say.
type Leases struct {
	Group  time.Duration `yaml:"group"`
	Branch time.Duration `yaml:"branch"`
}

// DefaultPerSource is a daemon's own default limit of groups.
const DefaultPerSource = 256

// Limits bound what is installed; 0 in Groups and Steps is what the switch's tables
// hold.
type Limits struct {
	Groups          int `yaml:"groups"`
	GroupsPerSource int `yaml:"groups_per_source"`
	Steps           int `yaml:"steps"`
	PREGroups       int `yaml:"pre_groups"` // of one step, for equal-cost paths
	Receivers       int `yaml:"receivers"`  // of one group
	Packets         int `yaml:"packets"`    // of one group, that are not acknowledged
}

// A Port is a data-plane port.
type Port struct {
	Port uint16         `yaml:"port"`
	To   string         `yaml:"to"`   // the neighboring switch; empty: hosts
	Name string         `yaml:"name"` // as the kernel calls it
	MAC  switchspec.MAC `yaml:"mac"`
	// PeerMAC is the neighbor's, if hellos do not tell it.
	PeerMAC switchspec.MAC `yaml:"peer_mac"`
	// Hello watches the link by hellos. In a file it defaults to true for
	// ports with To, in Go code it is what it is.
	Hello bool `yaml:"hello"`
	// Address is this switch's own at the link, with the link's prefix. ARP is answered for
	// it. A neighbor without hellos and PeerMAC is watched by ARP: see Config.Router.
	Address netip.Prefix `yaml:"address"`
}

// A Host is one that is not learned by ARP.
type Host struct {
	Address netip.Addr     `yaml:"address"`
	MAC     switchspec.MAC `yaml:"mac"`
	Port    uint16         `yaml:"port"`
}

// A Switch is another switch.
type Switch struct {
	Name         string         `yaml:"name"`
	Programmable bool           `yaml:"programmable" absent:"true"`
	Agent        string         `yaml:"agent"`     // its agent's gRPC, "host:port"
	Addresses    []netip.Addr   `yaml:"addresses"` // what routing calls it
	Prefixes     []netip.Prefix `yaml:"prefixes"`  // of the hosts behind it
	BGP          *Peer          `yaml:"bgp"`       // nil: no session with it
}

// A Peer is the other end of a BGP session.
type Peer struct {
	Address netip.Addr    `yaml:"address"`
	ASN     uint32        `yaml:"asn"`
	Port    uint16        `yaml:"port"`
	Local   netip.Addr    `yaml:"local"`   // own address; invalid: the system chooses
	Passive bool          `yaml:"passive"` // wait for the peer to connect
	Hold    time.Duration `yaml:"hold"`
	// NextHop is the own address that the neighbor is to send packets to. Invalid: that of
	// the port to it; if that has none, the session's own, which only agents understand.
	NextHop netip.Addr `yaml:"next_hop"`
}

// Router returns the address at which the neighbor of a port is asked by ARP whether it is
// there; invalid: it is not.
func (c *Config) Router(p Port) netip.Addr {
	if p.To != "" && !p.Hello && p.PeerMAC == (switchspec.MAC{}) {
		for _, s := range c.Switches {
			i := slices.IndexFunc(s.Addresses, func(a netip.Addr) bool { return s.Name == p.To && p.Address.Contains(a) })
			if i >= 0 {
				return s.Addresses[i]
			}
		}
	}
	return netip.Addr{}
}

// SetDefaults fills in what is not set. Bools stay as they are.
func (c *Config) SetDefaults() { c.setDefaults(nil) }

// setDefaults also refuses each 0 in a file that a default would replace. f is nil if there is no file.
func (c *Config) setDefaults(f *strictyaml.Faults) {
	const remedy = "without the field, the default counts"
	if c.Gateways == nil {
		for _, p := range c.Prefixes {
			if g := firstHost(p); g.Is4() && !slices.Contains(c.Gateways, g) { // else the prefix is refused
				c.Gateways = append(c.Gateways, g)
			}
		}
	}
	if c.HashSeed == 0 {
		c.HashSeed = seed(c.Name)
	}
	strictyaml.Default(&c.ICRC, ICRCAuto)
	c.ECN.setDefaults(f)
	strictyaml.Default(&c.P4Runtime.Target, "127.0.0.1:9559")
	strictyaml.DefaultAbove0(f, "p4runtime.election_id", &c.P4Runtime.ElectionID, 1, remedy)
	strictyaml.Default(&c.Listen, "127.0.0.1:9560")
	strictyaml.Default(&c.State, filepath.Join("/var/lib/mcrdma", c.Name+".db"))
	strictyaml.DefaultAbove0(f, "routing.bgp.port", &c.Routing.BGP.Port, 179, remedy)
	if c.Routing.Source == BGP {
		strictyaml.Default(&c.Routing.Settle, 5*time.Second)
	}
	strictyaml.DefaultAbove0(f, "hello.interval", &c.Hello.Interval, 50*time.Millisecond, remedy)
	strictyaml.DefaultAbove0(f, "hello.multiplier", &c.Hello.Multiplier, 3, remedy)
	strictyaml.DefaultAbove0(f, "leases.group", &c.Leases.Group, 30*time.Second, remedy)
	strictyaml.DefaultAbove0(f, "leases.branch", &c.Leases.Branch, 10*time.Minute, remedy)
	strictyaml.DefaultAbove0(f, "limits.groups_per_source", &c.Limits.GroupsPerSource, DefaultPerSource, remedy)
	strictyaml.DefaultAbove0(f, "limits.pre_groups", &c.Limits.PREGroups, 16, remedy)
	strictyaml.DefaultAbove0(f, "limits.receivers", &c.Limits.Receivers, switchspec.MaxMembers, remedy)
	strictyaml.DefaultAbove0(f, "limits.packets", &c.Limits.Packets, switchspec.MaxPackets, remedy)
	for i := range c.Ports {
		strictyaml.Default(&c.Ports[i].MAC, c.MAC)
	}
	for i := range c.Switches {
		if p := c.Switches[i].BGP; p != nil {
			at := fmt.Sprintf("switches[%d].bgp", i)
			strictyaml.DefaultAbove0(f, at+".port", &p.Port, 179, remedy)
			strictyaml.DefaultAbove0(f, at+".hold", &p.Hold, 9*time.Second, remedy)
			if own := c.ownAt(c.Switches[i].Name); len(own) == 1 {
				strictyaml.Default(&p.NextHop, own[0])
			}
		}
	}
}

// ownAt lists the own addresses at the links to a switch.
func (c *Config) ownAt(name string) (list []netip.Addr) {
	for _, p := range c.Ports {
		if p.To == name && p.Address.IsValid() {
			list = append(list, p.Address.Addr())
		}
	}
	return list
}

// firstHost is the first address that a host could have.
func firstHost(p netip.Prefix) netip.Addr {
	if p.Bits() > 30 || !p.IsValid() {
		return p.Addr()
	}
	return p.Masked().Addr().Next()
}

// seed differs between switches, so that they don't all send a flow the same way.
func seed(name string) uint32 {
	h := fnv.New32a()
	_, _ = h.Write([]byte(name)) // cannot fail
	return max(h.Sum32(), 1)
}
