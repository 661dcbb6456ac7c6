package config

import (
	"cmp"
	"fmt"
	"net"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/mcrdma/mcrdma/internal/switchspec"
)

// maxPort is the highest data-plane port of a v1model switch that is neither
// the drop port (511) nor, by convention here, that of the CPU (510).
const maxPort = 509

// Bounds of Restart.Hold. It takes neighbours up to 15 s to open a BGP session
// again; and a link that is cut meanwhile is not noticed.
const (
	minHold = 20 * time.Second
	maxHold = 2 * time.Minute
)

// Validate reports what does not fit together in a Config whose defaults are
// set. The error joins one [*Error] for each fault, up to 20 of them.
func (c *Config) Validate() error {
	f := &faults{}
	(&checker{faults: f, c: c}).check()
	return f.err()
}

// A checker judges a Config. Of what could not be decoded it says nothing more.
type checker struct {
	*faults
	c       *Config
	decoded []*Error // the faults of decoding
}

// unread reports whether something at path could not be decoded, so that what
// depends on it cannot be judged.
func (k *checker) unread(path string) bool {
	return slices.ContainsFunc(k.decoded, func(e *Error) bool {
		return e.Path != "" && (within(e.Path, path) || within(path, e.Path))
	})
}

func (k *checker) check() {
	k.decoded = slices.Clone(k.list)
	k.global()
	k.services()
	k.routing()
	k.switches()
	k.prefixes()
	k.ports()
	k.hosts()
	k.list = slices.DeleteFunc(k.list, func(e *Error) bool {
		return e.Path != "" && !slices.Contains(k.decoded, e) && k.unread(e.Path)
	})
}

// A name goes into frames, certificates and the names of files.
var nameForm = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$`)

func (k *checker) name(path, name string) {
	switch {
	case name == "":
		k.add(path, "missing: each switch has a name")
	case !nameForm.MatchString(name):
		k.add(path, "%q: want up to 63 letters, digits, dots, dashes and underscores, a letter or digit first", name)
	}
}

// unicast checks an address that must be there.
func (k *checker) unicast(path string, a netip.Addr, what string) bool {
	switch {
	case !a.IsValid():
		k.add(path, "missing: %s", what)
	case !a.Is4():
		k.add(path, "%v is not IPv4, which alone is supported", a)
	case a.IsUnspecified() || a.IsMulticast() || a == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
		k.add(path, "%v is not the address of one station", a)
	default:
		return true
	}
	return false
}

func (k *checker) station(path string, m switchspec.MAC, what string) {
	switch {
	case m == switchspec.MAC{}:
		k.add(path, "missing: %s", what)
	case m[0]&1 != 0:
		k.add(path, "%v is not the MAC address of one station", m)
	}
}

// between checks a time.
func (k *checker) between(path string, d, least, most time.Duration) {
	if d < least || d > most {
		k.add(path, "%v: want %v to %v", d, least, most)
	}
}

func (k *checker) global() {
	c := k.c
	k.name("name", c.Name)
	k.unicast("address", c.Address, "the router's own address")
	k.station("mac", c.MAC, "the router's MAC address")
	seen := map[netip.Addr]string{}
	for i, g := range c.Gateways {
		at := fmt.Sprintf("gateways[%d]", i)
		switch first, taken := seen[g]; {
		case !k.unicast(at, g, "the gateway's address"):
		case taken:
			k.add(at, "%v is there already, in %s", g, k.place(first))
		case !contains(c.Prefixes, g) && !k.unread("prefixes"):
			k.add(at, "%v is in none of the prefixes", g)
		}
		seen[g] = at
	}
	k.between("hello.interval", c.Hello.Interval, time.Millisecond, time.Minute)
	if c.Hello.Multiplier == 0 {
		k.add("hello.multiplier", "0: want at least 1")
	}
	if h := c.Restart.Hold; h != 0 && (h < minHold || h > maxHold || h%time.Second != 0) {
		k.add("restart.hold", "%v: want 0s (the agent leaves when it ends), or whole seconds, %v to %v", h, minHold, maxHold)
	}
	k.ecn(c.ECN)
	k.between("leases.group", c.Leases.Group, time.Second, 24*time.Hour)
	k.between("leases.branch", c.Leases.Branch, time.Second, 24*time.Hour)
	l := c.Limits
	for _, limit := range []struct {
		path        string
		n, min, max int
	}{
		{"limits.groups", l.Groups, 0, 1 << 20}, {"limits.groups_per_source", l.GroupsPerSource, 0, 1 << 20},
		{"limits.steps", l.Steps, 0, 1 << 20}, {"limits.pre_groups", l.PREGroups, 1, 1 << 16},
		{"limits.receivers", l.Receivers, 1, switchspec.MaxMembers},
	} {
		if limit.n < limit.min || limit.n > limit.max {
			k.add(limit.path, "%d: want %d to %d", limit.n, limit.min, limit.max)
		}
	}
}

func (k *checker) ecn(e ECN) {
	if e == (ECN{}) {
		return
	}
	if e.KMin > e.KMax {
		k.add("ecn.kmin", "%d packets is more than kmax, %d", e.KMin, e.KMax)
	}
	if e.KMax > switchspec.MaxDepth {
		k.add("ecn.kmax", "%d packets: want at most %d", e.KMax, switchspec.MaxDepth)
	}
	if !(e.PMax > 0 && e.PMax <= 1) { // nor NaN
		k.add("ecn.pmax", "%v: want a probability, more than 0 and at most 1", e.PMax)
	}
}

func contains(list []netip.Prefix, a netip.Addr) bool {
	return slices.ContainsFunc(list, func(p netip.Prefix) bool { return p.Contains(a) })
}

// services checks what the agent listens at, dials and stores.
func (k *checker) services() {
	c := k.c
	k.hostPort("p4runtime.target", c.P4Runtime.Target)
	if c.P4Runtime.ElectionID == 0 {
		k.add("p4runtime.election_id", "0: want at least 1")
	}
	host, ok := k.hostPort("listen", c.Listen)
	files, none := []string{c.TLS.Cert, c.TLS.Key, c.TLS.CA}, TLS{}
	switch {
	case c.TLS != none && slices.Contains(files, ""):
		k.add("tls", "incomplete: want cert, key and ca, or none of them")
	case c.TLS == none && ok && !loopback(host) && !c.Insecure:
		k.add("listen", "%s can be reached from elsewhere, and nothing protects it: set tls, or insecure: true to take everybody at their word", c.Listen)
	}
	if c.Metrics != "" {
		k.hostPort("metrics", c.Metrics)
	}
	if c.State == "" {
		k.add("state", "missing: the file that keeps what outlives the agent")
	}
}

// hostPort checks "host:port" and returns the host.
func (k *checker) hostPort(path, s string) (host string, ok bool) {
	host, port, err := net.SplitHostPort(s)
	if err == nil {
		_, err = strconv.ParseUint(port, 10, 16)
	}
	if err != nil {
		k.add(path, "%q is not an address with a port, as 192.0.2.1:9560", s)
	}
	return host, err == nil
}

func loopback(host string) bool {
	a, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && a.IsLoopback()
}

// asn checks the number of an autonomous system.
func (k *checker) asn(path string, n uint32) {
	switch n {
	case 0:
		k.add(path, "missing: the number of the autonomous system, such as 4200000001")
	case 23456, 65535, 1<<32 - 1:
		k.add(path, "AS %d is reserved: use a private one, such as 4200000001", n)
	}
}

func (k *checker) routing() {
	r := k.c.Routing
	k.between("routing.settle", r.Settle, 0, time.Hour)
	k.between("routing.bgp.drain", r.BGP.Drain, 0, time.Hour)
	if r.Kernel.Table < 0 || r.Kernel.Table > 1<<31-1 {
		k.add("routing.kernel.table", "%d: want 0 (the main one) to %d", r.Kernel.Table, 1<<31-1)
	}
	for i, a := range r.BGP.Listen {
		if a != netip.IPv4Unspecified() {
			k.unicast(fmt.Sprintf("routing.bgp.listen[%d]", i), a, "an own address")
		}
	}
	switch r.Source {
	case "":
		k.add("routing.source", "missing: where routes come from, one of static, bgp and kernel")
	case Static:
		if r.Topology == "" {
			k.add("routing.topology", "missing: static routes come from a topology file")
		}
	case BGP:
		k.asn("routing.bgp.asn", r.BGP.ASN)
		if !slices.ContainsFunc(k.c.Switches, func(s Switch) bool { return s.BGP != nil }) && !k.unread("switches") {
			k.add("routing.source", "bgp, but with no neighbour: give one of the switches a bgp section")
		}
	case Kernel:
	default:
		k.add("routing.source", "%q: want static, bgp or kernel", r.Source)
	}
}

func (k *checker) switches() {
	names := map[string]string{k.c.Name: "name"}
	addrs := map[netip.Addr]string{k.c.Address: "address"}
	peers := map[netip.Addr]string{}
	unique := func(seen map[netip.Addr]string, at string, a netip.Addr) {
		if first, taken := seen[a]; taken {
			k.add(at, "%v is taken already, in %s", a, k.place(first))
			return
		}
		seen[a] = at
	}
	for i, s := range k.c.Switches {
		at := fmt.Sprintf("switches[%d]", i)
		k.name(at+".name", s.Name)
		switch first, taken := names[s.Name]; {
		case taken && first == "name" && s.Name != "":
			k.add(at+".name", "%q is this switch itself: list the others only", s.Name)
		case taken && s.Name != "":
			k.add(at+".name", "%q is taken already, in %s", s.Name, k.place(first))
		default:
			names[s.Name] = at + ".name"
		}
		switch {
		case s.Agent != "":
			k.hostPort(at+".agent", s.Agent)
		case k.c.Programmable && s.Programmable:
			k.add(at+".agent", "missing: where the agent of %q listens (or is it programmable: false?)", s.Name)
		}
		for j, a := range s.Addresses {
			if p := fmt.Sprintf("%s.addresses[%d]", at, j); k.unicast(p, a, "an address of the switch") {
				unique(addrs, p, a)
			}
		}
		if s.BGP != nil {
			k.peer(at+".bgp", *s.BGP)
			if s.BGP.Address.IsValid() {
				unique(peers, at+".bgp.address", s.BGP.Address)
			}
		}
	}
}

func (k *checker) peer(at string, p Peer) {
	k.unicast(at+".address", p.Address, "the neighbour's end of the session")
	k.asn(at+".asn", p.ASN)
	if p.ASN == k.c.Routing.BGP.ASN && p.ASN != 0 {
		k.add(at+".asn", "AS %d is our own: give each switch one of its own", p.ASN)
	}
	if p.Local.IsValid() {
		k.unicast(at+".local", p.Local, "")
	}
	if p.Hold < 3*time.Second || p.Hold%time.Second != 0 || p.Hold > 65535*time.Second {
		k.add(at+".hold", "%v: want whole seconds, 3s to 65535s", p.Hold)
	}
}

// prefixes makes sure that each prefix belongs to one switch.
func (k *checker) prefixes() {
	type owned struct {
		netip.Prefix
		path string
	}
	var all []owned
	add := func(at string, list []netip.Prefix) {
		for i, p := range list {
			switch path := fmt.Sprintf("%s[%d]", at, i); {
			case !p.IsValid():
				k.add(path, "missing: a prefix, as 10.1.0.0/24")
			case !p.Addr().Is4():
				k.add(path, "%v is not IPv4, which alone is supported", p)
			case p != p.Masked():
				k.add(path, "%v has host bits set: did you mean %v?", p, p.Masked())
			default:
				all = append(all, owned{p, path})
			}
		}
	}
	add("prefixes", k.c.Prefixes)
	for i, s := range k.c.Switches {
		add(fmt.Sprintf("switches[%d].prefixes", i), s.Prefixes)
	}
	slices.SortStableFunc(all, func(a, b owned) int {
		return cmp.Or(a.Addr().Compare(b.Addr()), cmp.Compare(a.Bits(), b.Bits()))
	})
	for i := 1; i < len(all); i++ { // sorted: whoever overlaps follows its container
		if a, b := all[i-1], all[i]; a.Overlaps(b.Prefix) {
			first, second := a, b
			if k.line(first.path) > k.line(second.path) {
				first, second = b, a
			}
			k.add(second.path, "%v overlaps %v, in %s", second.Prefix, first.Prefix, k.place(first.path))
			all[i] = a // it may contain the next as well
		}
	}
}

func (k *checker) ports() {
	c := k.c
	if len(c.Ports) == 0 {
		k.add("ports", "missing: a switch has ports")
	}
	numbers, names := map[uint16]string{}, map[string]string{}
	for i, p := range c.Ports {
		at := fmt.Sprintf("ports[%d]", i)
		switch first, taken := numbers[p.Port]; {
		case p.Port == 0 || p.Port > maxPort:
			k.add(at+".port", "%d: want 1 to %d", p.Port, maxPort)
		case taken:
			k.add(at+".port", "port %d is there already, in %s", p.Port, k.place(first))
		default:
			numbers[p.Port] = at + ".port"
		}
		if first, taken := names[p.Name]; taken {
			k.add(at+".name", "%q is taken already, in %s", p.Name, k.place(first))
		} else if p.Name != "" {
			names[p.Name] = at + ".name"
		}
		if n, err := strconv.ParseUint(p.Name, 10, 16); err == nil && n != uint64(p.Port) {
			k.add(at+".name", "%q is the name of port %d, not of port %d", p.Name, n, p.Port)
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
		k.add(at+".hello", "hellos are for links between switches: set \"to\", or leave them out")
	}
	if p.PeerMAC != (switchspec.MAC{}) {
		k.add(at+".peer_mac", "there are hosts at this port: set \"to\", or list them under hosts")
	}
}

func (k *checker) linkRules(at string, p Port) {
	c := k.c
	if !slices.ContainsFunc(c.Switches, func(s Switch) bool { return s.Name == p.To }) && !k.unread("switches") {
		var known []string
		for _, s := range c.Switches {
			known = append(known, s.Name)
		}
		k.add(at+".to", "unknown neighbour %q: under switches are %s", p.To, cmp.Or(strings.Join(known, ", "), "none"))
	}
	if p.PeerMAC != (switchspec.MAC{}) {
		k.station(at+".peer_mac", p.PeerMAC, "")
	} else if !p.Hello && c.Routing.Source == BGP {
		k.add(at+".peer_mac", "missing: without hellos nobody tells the neighbour's MAC address")
	}
	if p.Name == "" && c.Routing.Source == Kernel {
		k.add(at+".name", "missing: the kernel's routes name the interface of the link")
	}
}

func (k *checker) hosts() {
	c := k.c
	seen := map[netip.Addr]string{}
	for i, g := range c.Gateways {
		seen[g] = fmt.Sprintf("gateways[%d]", i)
	}
	seen[c.Address] = "address"
	for i, h := range c.Hosts {
		at := fmt.Sprintf("hosts[%d]", i)
		if k.unicast(at+".address", h.Address, "the host's address") {
			switch first, taken := seen[h.Address]; {
			case taken && k.line(first) == 0 && strings.HasPrefix(first, "gateways"):
				k.add(at+".address", "%v is the gateway of its prefix: give the host another, or set gateways", h.Address)
			case taken:
				k.add(at+".address", "%v is taken already, in %s", h.Address, k.place(first))
			case !contains(c.Prefixes, h.Address) && !k.unread("prefixes"):
				k.add(at+".address", "%v is in none of this switch's prefixes", h.Address)
			}
			seen[h.Address] = at + ".address"
		}
		k.station(at+".mac", h.MAC, "the host's MAC address")
		p := slices.IndexFunc(c.Ports, func(p Port) bool { return p.Port == h.Port })
		switch {
		case p < 0 && !k.unread("ports"):
			k.add(at+".port", "there is no port %d", h.Port)
		case p >= 0 && c.Ports[p].To != "":
			k.add(at+".port", "port %d leads to switch %q, not to hosts", h.Port, c.Ports[p].To)
		}
	}
}
