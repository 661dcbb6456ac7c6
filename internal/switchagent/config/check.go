package config

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/mcrdma/mcrdma/internal/strictyaml"
	"github.com/mcrdma/mcrdma/internal/switchspec"
)

// maxPort is the highest data-plane port of a v1model switch that is neither
// the drop port (511) nor, by convention here, that of the CPU (510).
const maxPort = 509

// Bounds of Restart.Hold. It takes neighbors up to 15 s to open a BGP session
// again; and a link that is cut meanwhile is not noticed.
const (
	minHold = 20 * time.Second
	maxHold = 2 * time.Minute
)

// Validate reports what does not fit together in a Config whose defaults are
// set. The error joins one [*Error] for each fault, up to 20 of them.
func (c *Config) Validate() error {
	f := &strictyaml.Faults{}
	(&checker{Faults: f, c: c}).check()
	return f.Err()
}

// A checker validates a Config. It ignores what could not be decoded.
type checker struct {
	*strictyaml.Faults
	c *Config
}

func (k *checker) check() {
	k.global()
	k.services()
	k.routing()
	k.switches()
	k.prefixes()
	k.ports()
	k.hosts()
}

func (k *checker) name(path, name string) { k.Name(path, name, "each switch has a name") }

func (k *checker) station(path string, m switchspec.MAC, what string) {
	switch {
	case m == switchspec.MAC{}:
		k.Add(path, "missing: %s", what)
	case !m.IsStation():
		k.Add(path, "%v is not the MAC address of one station", m)
	}
}

func (k *checker) global() {
	if all := []string{ICRCAuto, ICRCNeutral, ICRCRecompute, ICRCOff}; !slices.Contains(all, k.c.ICRC) {
		k.Add("icrc", "%q: want %s or %s", k.c.ICRC, strings.Join(all[:3], ", "), ICRCOff)
	}
	c := k.c
	k.name("name", c.Name)
	k.Unicast("address", c.Address, "the router's own address")
	k.station("mac", c.MAC, "the router's MAC address")
	seen := map[netip.Addr]string{}
	for i, g := range c.Gateways {
		at := fmt.Sprintf("gateways[%d]", i)
		switch first, taken := seen[g]; {
		case !k.Unicast(at, g, "the gateway's address"):
		case taken:
			k.Add(at, "%v is there already, in %s", g, k.Position(first))
		case !contains(c.Prefixes, g) && !k.Unread("prefixes"):
			k.Add(at, "%v is in none of the prefixes", g)
		default:
			k.InSubnet(at, g, c.Prefixes)
		}
		seen[g] = at
	}
	k.Between("hello.interval", c.Hello.Interval, time.Millisecond, time.Minute)
	if c.Hello.Multiplier == 0 {
		k.Add("hello.multiplier", "0: want at least 1")
	}
	if h := c.Restart.Hold; h != 0 && (h < minHold || h > maxHold || h%time.Second != 0) {
		k.Add("restart.hold", "%v: want 0s (the agent leaves when it ends), or whole seconds, %v to %v", h, minHold, maxHold)
	}
	c.ECN.check(k)
	k.Between("leases.group", c.Leases.Group, time.Second, 24*time.Hour)
	k.Between("leases.branch", c.Leases.Branch, time.Second, 24*time.Hour)
	l := c.Limits
	for _, limit := range []struct {
		path        string
		n, min, max int
	}{
		{"limits.groups", l.Groups, 0, 1 << 20}, {"limits.groups_per_source", l.GroupsPerSource, 1, 1 << 20},
		{"limits.steps", l.Steps, 0, 1 << 20}, {"limits.pre_groups", l.PREGroups, 1, 1 << 16},
		{"limits.receivers", l.Receivers, 1, switchspec.MaxMembers}, {"limits.packets", l.Packets, 16, switchspec.MaxPackets},
	} {
		k.Number(limit.path, limit.n, limit.min, limit.max)
	}
}

func contains(list []netip.Prefix, a netip.Addr) bool {
	return slices.ContainsFunc(list, func(p netip.Prefix) bool { return p.Contains(a) })
}

// services checks what the agent listens at, dials and stores.
func (k *checker) services() {
	c := k.c
	k.Reaches("p4runtime.target", c.P4Runtime.Target)
	if c.P4Runtime.ElectionID == 0 {
		k.Add("p4runtime.election_id", "0: want at least 1")
	}
	k.TLS(c.TLS)
	k.Listens("listen", c.Listen, c.TLS == TLS{} && !c.Insecure, "")
	k.Metrics(c.Metrics, c.Listen)
	if c.State == "" {
		k.Add("state", "missing: the file that keeps what outlives the agent")
	}
}

// asn checks the number of an autonomous system.
func (k *checker) asn(path string, n uint32) {
	switch n {
	case 0:
		k.Add(path, "missing: the number of the autonomous system, such as 4200000001")
	case 23456, 65535, 1<<32 - 1:
		k.Add(path, "AS %d is reserved: use a private one, such as 4200000001", n)
	}
}

func (k *checker) routing() {
	r := k.c.Routing
	k.Between("routing.settle", r.Settle, 0, time.Hour)
	k.Between("routing.bgp.drain", r.BGP.Drain, 0, time.Hour)
	if r.Kernel.Table < 0 || r.Kernel.Table > 1<<31-1 {
		k.Add("routing.kernel.table", "%d: want 0 (the main one) to %d", r.Kernel.Table, 1<<31-1)
	}
	for i, a := range r.BGP.Listen {
		if a != netip.IPv4Unspecified() {
			k.Unicast(fmt.Sprintf("routing.bgp.listen[%d]", i), a, "an own address")
		}
	}
	switch r.Source {
	case "":
		k.Add("routing.source", "missing: where routes come from, one of static, bgp and kernel")
	case Static:
		if r.Topology == "" {
			k.Add("routing.topology", "missing: static routes come from a topology file")
		}
	case BGP:
		k.asn("routing.bgp.asn", r.BGP.ASN)
		if !slices.ContainsFunc(k.c.Switches, func(s Switch) bool { return s.BGP != nil }) && !k.Unread("switches") {
			k.Add("routing.source", "bgp, but with no neighbor: give one of the switches a bgp section")
		}
	case Kernel:
	default:
		k.Add("routing.source", "%q: want static, bgp or kernel", r.Source)
	}
}

func (k *checker) switches() {
	names := map[string]string{k.c.Name: "name"}
	addrs := map[netip.Addr]string{k.c.Address: "address"}
	for i, p := range k.c.Ports {
		addrs[p.Address.Addr()] = fmt.Sprintf("ports[%d].address", i)
	}
	peers := map[netip.Addr]string{}
	unique := func(seen map[netip.Addr]string, at string, a netip.Addr) {
		if first, taken := seen[a]; taken {
			k.Add(at, "%v is taken already, in %s", a, k.Position(first))
			return
		}
		seen[a] = at
	}
	for i, s := range k.c.Switches {
		at := fmt.Sprintf("switches[%d]", i)
		k.name(at+".name", s.Name)
		switch first, taken := names[s.Name]; {
		case taken && first == "name" && s.Name != "":
			k.Add(at+".name", "%q is this switch itself: list the others only", s.Name)
		case taken && s.Name != "":
			k.Add(at+".name", "%q is taken already, in %s", s.Name, k.Position(first))
		default:
			names[s.Name] = at + ".name"
		}
		switch {
		case s.Agent != "":
			k.Reaches(at+".agent", s.Agent)
		case k.c.Programmable && s.Programmable:
			k.Add(at+".agent", "missing: where the agent of %q listens (or is it programmable: false?)", s.Name)
		}
		for j, a := range s.Addresses {
			if p := fmt.Sprintf("%s.addresses[%d]", at, j); k.Unicast(p, a, "an address of the switch") {
				unique(addrs, p, a)
			}
		}
		if s.BGP != nil {
			k.peer(at+".bgp", *s.BGP)
			k.nextHop(at+".bgp.next_hop", s)
			if s.BGP.Address.IsValid() {
				unique(peers, at+".bgp.address", s.BGP.Address)
			}
		}
	}
}

func (k *checker) peer(at string, p Peer) {
	k.Unicast(at+".address", p.Address, "the neighbor's end of the session")
	k.asn(at+".asn", p.ASN)
	if p.ASN == k.c.Routing.BGP.ASN && p.ASN != 0 {
		k.Add(at+".asn", "AS %d is our own: give each switch one of its own", p.ASN)
	}
	if p.Local.IsValid() {
		k.Unicast(at+".local", p.Local, "")
	}
	if p.Hold < 3*time.Second || p.Hold%time.Second != 0 || p.Hold > 65535*time.Second {
		k.Add(at+".hold", "%v: want whole seconds, 3s to 65535s", p.Hold)
	}
}

// nextHop makes sure that a neighbor can send packets to the next hop that it is told.
func (k *checker) nextHop(at string, s Switch) {
	c, own := k.c, s.BGP.NextHop
	atPort := slices.ContainsFunc(c.Ports, func(p Port) bool { return p.Address.IsValid() && p.Address.Addr() == own })
	agent := s.Agent != "" || slices.ContainsFunc(c.Ports, func(p Port) bool { return p.To == s.Name && p.Hello })
	switch {
	case own.IsValid() && own != c.Address && !slices.Contains(c.Gateways, own) && !atPort:
		k.Add(at, "%v is not an address of this switch: want that of a port, address, or one of gateways", own)
	case !own.IsValid() && len(c.ownAt(s.Name)) > 1:
		k.Add(at, "missing: the ports to %q have several addresses; which one is it to send to?", s.Name)
	case !own.IsValid() && !agent && !k.Unread("ports"):
		k.Add(at, "missing: %q would be told the session's own address, which is not on the data network: give the port to it an address, as 10.0.0.0/31", s.Name)
	}
}

// prefixes makes sure that each prefix belongs to one switch.
func (k *checker) prefixes() {
	var all []strictyaml.Claim
	add := func(at string, list []netip.Prefix) {
		for i, p := range list {
			switch path := fmt.Sprintf("%s[%d]", at, i); {
			case !p.IsValid():
				k.Add(path, "missing: a prefix, as 10.1.0.0/24")
			case !p.Addr().Is4():
				k.Add(path, "%v is not IPv4, which alone is supported", p)
			case p != p.Masked():
				k.Add(path, "%v has host bits set: did you mean %v?", p, p.Masked())
			default:
				all = append(all, strictyaml.Claim{Prefix: p, Path: path})
			}
		}
	}
	add("prefixes", k.c.Prefixes)
	for i, s := range k.c.Switches {
		add(fmt.Sprintf("switches[%d].prefixes", i), s.Prefixes)
	}
	k.Overlaps(all, func(first, second strictyaml.Claim) {
		k.Add(second.Path, "%v overlaps %v, in %s", second.Prefix, first.Prefix, k.Position(first.Path))
	})
}

func (k *checker) ports() {
	c := k.c
	if len(c.Ports) == 0 {
		k.Add("ports", "missing: a switch has ports")
	}
	numbers, names := map[uint16]string{}, map[string]string{}
	for i, p := range c.Ports {
		at := fmt.Sprintf("ports[%d]", i)
		switch first, taken := numbers[p.Port]; {
		case p.Port == 0 || p.Port > maxPort:
			k.Add(at+".port", "%d: want 1 to %d", p.Port, maxPort)
		case taken:
			k.Add(at+".port", "port %d is there already, in %s", p.Port, k.Position(first))
		default:
			numbers[p.Port] = at + ".port"
		}
		if first, taken := names[p.Name]; taken {
			k.Add(at+".name", "%q is taken already, in %s", p.Name, k.Position(first))
		} else if p.Name != "" {
			names[p.Name] = at + ".name"
		}
		if n, err := strconv.ParseUint(p.Name, 10, 16); err == nil && n != uint64(p.Port) {
			k.Add(at+".name", "%q is the name of port %d, not of port %d", p.Name, n, p.Port)
		}
		if p.MAC != c.MAC { // else it is judged there
			k.station(at+".mac", p.MAC, "the port's MAC address; the defaults are not set")
		}
		if p.To == "" {
			k.hostPortRules(at, p)
		} else {
			k.linkRules(at, p)
		}
	}
}

func (k *checker) hostPortRules(at string, p Port) {
	if p.Hello {
		k.Add(at+".hello", "hellos are for links between switches: set \"to\", or leave them out")
	}
	if p.PeerMAC != (switchspec.MAC{}) {
		k.Add(at+".peer_mac", "there are hosts at this port: set \"to\", or list them under hosts")
	}
	if p.Address.IsValid() {
		k.Add(at+".address", "there are hosts at this port: set \"to\", or list the address under gateways")
	}
}

func (k *checker) linkRules(at string, p Port) {
	c := k.c
	if !slices.ContainsFunc(c.Switches, func(s Switch) bool { return s.Name == p.To }) && !k.Unread("switches") {
		var known []string
		for _, s := range c.Switches {
			known = append(known, s.Name)
		}
		k.Add(at+".to", "unknown neighbor %q: under switches are %s", p.To, cmp.Or(strings.Join(known, ", "), "none"))
	}
	if p.Address.IsValid() {
		k.linkAddress(at+".address", p)
	}
	switch {
	case p.PeerMAC != (switchspec.MAC{}):
		k.station(at+".peer_mac", p.PeerMAC, "")
	case p.Hello || c.Router(p).IsValid():
	case p.Address.IsValid():
		k.Add(at+".address", "none of the addresses of %q, under switches, is in %v: which one is asked by ARP?", p.To, p.Address.Masked())
	case c.Routing.Source == BGP:
		k.Add(at+".address", "missing: without hellos the neighbor is asked by ARP, from an own address as 10.0.0.0/31 (or set peer_mac)")
	}
	if p.Name == "" && c.Routing.Source == Kernel {
		k.Add(at+".name", "missing: the kernel's routes name the interface of the link")
	}
}

func (k *checker) linkAddress(at string, p Port) {
	own := p.Address.Addr()
	k.Unicast(at, own, "")
	if own == p.Address.Masked().Addr() && p.Address.Bits() < 31 {
		k.Add(at, "%v is the network itself: want an own address in it", p.Address)
	}
	if i := slices.IndexFunc(k.c.Prefixes, p.Address.Overlaps); i >= 0 {
		k.Add(at, "%v overlaps %v, where hosts are", p.Address, k.c.Prefixes[i])
	}
	for i, o := range k.c.Ports {
		if o.Port != p.Port && o.Address.IsValid() && o.Address.Overlaps(p.Address) {
			k.Add(at, "%v overlaps that of port %d, in %s", p.Address, o.Port, k.Position(fmt.Sprintf("ports[%d].address", i)))
			return
		}
	}
}

func (k *checker) hosts() {
	c := k.c
	if c.Guard && len(c.Hosts) == 0 {
		k.Add("guard", "no host could send anything: list them under hosts")
	}
	seen := map[netip.Addr]string{}
	for i, g := range c.Gateways {
		seen[g] = fmt.Sprintf("gateways[%d]", i)
	}
	seen[c.Address] = "address"
	for i, h := range c.Hosts {
		at := fmt.Sprintf("hosts[%d]", i)
		if k.Unicast(at+".address", h.Address, "the host's address") {
			switch first, taken := seen[h.Address]; {
			case taken && k.Line(first) == 0 && strings.HasPrefix(first, "gateways"):
				k.Add(at+".address", "%v is the gateway of its prefix: give the host another, or set gateways", h.Address)
			case taken:
				k.Add(at+".address", "%v is taken already, in %s", h.Address, k.Position(first))
			case !contains(c.Prefixes, h.Address) && !k.Unread("prefixes"):
				k.Add(at+".address", "%v is in none of this switch's prefixes", h.Address)
			}
			k.InSubnet(at+".address", h.Address, c.Prefixes)
			seen[h.Address] = at + ".address"
		}
		first := slices.IndexFunc(c.Hosts, func(o Host) bool { return o.MAC == h.MAC })
		switch own := slices.IndexFunc(c.Ports, func(p Port) bool { return p.MAC == h.MAC }); {
		case !h.MAC.IsStation():
			k.station(at+".mac", h.MAC, "the host's MAC address")
		case own >= 0:
			k.Add(at+".mac", "%v is that of this switch's port %d: want the host's own", h.MAC, c.Ports[own].Port)
		case c.Hosts[first].Port != h.Port:
			k.Add(at+".mac", "%v is at port %d already, in %s: want that of the host at port %d", h.MAC, c.Hosts[first].Port, k.Position(fmt.Sprintf("hosts[%d]", first)), h.Port)
		}
		p := slices.IndexFunc(c.Ports, func(p Port) bool { return p.Port == h.Port })
		switch {
		case p < 0 && !k.Unread("ports"):
			k.Add(at+".port", "there is no port %d", h.Port)
		case p >= 0 && c.Ports[p].To != "":
			k.Add(at+".port", "port %d leads to switch %q, not to hosts", h.Port, c.Ports[p].To)
		}
	}
}
