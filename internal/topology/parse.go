package topology

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/mcrdma/mcrdma/internal/routing"
	"github.com/mcrdma/mcrdma/internal/strictyaml"
)

// maxPort is the highest data-plane port of a v1model switch that is neither
// the drop port (511) nor, by convention here, that of the CPU (510).
const maxPort = 509

// An Error is a fault in a topology file.
type Error = strictyaml.Error

var format = strictyaml.Format{MaxBytes: 16 << 20, Example: "switches: [{name: tor, address: 10.255.0.1}]", Types: []strictyaml.Type{
	strictyaml.Leaf("a MAC address, as 02:00:00:00:00:01", routing.ParseMAC),
}}

// Load reads the topology file called name. Errors are those of [Parse], or of reading.
func Load(name string) (*Topology, error) {
	data, err := strictyaml.ReadFile(name, format)
	if err != nil {
		return nil, fmt.Errorf("reading the topology: %w", err)
	}
	return Parse(data, name)
}

// Parse parses a topology; error messages use name for the file. The error joins one [*Error] for
// each fault, in the order of the file, up to 20 of them.
func Parse(data []byte, name string) (*Topology, error) {
	return strictyaml.Parse(data, name, format, func(f *strictyaml.Faults, t *Topology) {
		t.nodes = map[string]*Node{}
		k := checker{f, t, map[string]string{}, map[netip.Addr]string{}, map[routing.MAC]use{}}
		k.nodes()
		for i := range t.Links {
			k.link(i)
		}
		k.prefixes()
		k.attachments()
		if len(t.Switches) == 0 {
			k.Add("switches", "none: list at least one, as %s", format.Example)
		}
	})
}

type checker struct {
	*strictyaml.Faults
	t     *Topology
	paths map[string]string     // first use of each name or port
	owner map[netip.Addr]string // address → its owner
	macs  map[routing.MAC]use
}

// A use is the first one of something by a node.
type use struct{ node, path string }

// nodes checks and indexes switches and hosts.
func (k *checker) nodes() {
	for i := range k.t.Switches {
		s, at := &k.t.Switches[i], fmt.Sprintf("switches[%d]", i)
		k.node(at, &Node{Name: s.Name, Switch: s}, &s.Address, s.MAC)
	}
	for i := range k.t.Hosts {
		h, at := &k.t.Hosts[i], fmt.Sprintf("hosts[%d]", i)
		k.node(at, &Node{Name: h.Name}, &h.Address, h.MAC)
		if !h.Address.IsValid() {
			k.Add(at+".address", "missing: the host's address, as 10.1.0.11")
		}
	}
}

func (k *checker) node(at string, n *Node, address *netip.Addr, mac routing.MAC) {
	k.address(at+".address", address, n.Name)
	k.mac(at+".mac", mac, n.Name)
	n.Address, n.MAC, n.id = *address, mac, len(k.t.order)
	k.t.order = append(k.t.order, n)
	if !k.Host(at+".name", n.Name, "each switch and host has a name", n.Address) {
		return
	}
	if first, taken := k.paths[n.Name]; taken {
		k.Add(at+".name", "%q is taken already, in %s", n.Name, k.Position(first))
		return
	}
	k.paths[n.Name], k.t.nodes[n.Name] = at+".name", n
}

// address checks that an address has no other owner.
func (k *checker) address(path string, a *netip.Addr, owner string) {
	*a = a.Unmap()
	switch other, taken := k.owner[*a]; {
	case !a.IsValid():
	case !a.IsGlobalUnicast() || a.Zone() != "":
		k.Add(path, "%v cannot be routed to", a)
	case taken:
		k.Add(path, "%v is that of %s already", a, other)
	default:
		k.owner[*a] = owner
	}
}

// mac checks that a MAC address has no other owner.
func (k *checker) mac(path string, m routing.MAC, owner string) {
	switch first, taken := k.macs[m]; {
	case !k.Has(path):
	case !m.IsStation():
		k.Add(path, "%v is not the MAC address of one station", m)
	case !taken:
		k.macs[m] = use{owner, path}
	case first.node != owner:
		k.Add(path, "%v is that of %q already, in %s: want its own, or none, and agents learn it", m, first.node, k.Position(first.path))
	}
}

func (k *checker) link(i int) {
	l, at := &k.t.Links[i], fmt.Sprintf("links[%d]", i)
	a, b := k.end(at+".a", &l.A), k.end(at+".b", &l.B)
	switch {
	case a == nil || b == nil:
	case a == b:
		k.Add(at, "it joins %q to itself", a.Name)
	case a.Switch == nil && b.Switch == nil:
		k.Add(at, "it joins the hosts %q and %q: one end must be a switch", a.Name, b.Name)
	default:
		a.Ports = append(a.Ports, Port{i, l.A, l.B, b})
		b.Ports = append(b.Ports, Port{i, l.B, l.A, a})
	}
}

// end checks one end of a link and fills in the defaults from its node.
func (k *checker) end(at string, e *End) *Node {
	n := k.t.nodes[e.Node]
	if n == nil {
		k.Add(at+".node", "%q is neither under switches nor under hosts", e.Node)
		return nil
	}
	port := fmt.Sprintf("port %d of %s", e.Port, e.Node)
	switch first, taken := k.paths[port]; {
	case n.Switch == nil && e.Port != 0:
		k.Add(at+".port", "%d: %q is a host, and only ends at switches have ports", e.Port, e.Node)
	case n.Switch == nil:
	case !k.Has(at + ".port"):
		k.Add(at+".port", "missing: the port of switch %q, a number from 1 to %d", e.Node, maxPort)
	case e.Port == 0 || e.Port > maxPort:
		k.Add(at+".port", "%d: a port of switch %q is a number from 1 to %d", e.Port, e.Node, maxPort)
	case taken:
		k.Add(at+".port", "%s is in use already, by the link in %s", port, k.Position(first))
	default:
		k.paths[port] = at
	}
	k.address(at+".address", &e.Address, port)
	k.mac(at+".mac", e.MAC, e.Node)
	e.Address, e.MAC = cmp.Or(e.Address, n.Address), cmp.Or(e.MAC, n.MAC)
	if !e.Address.IsValid() && n.Switch != nil {
		k.Add(at, "no address: give one to this end or to switch %q", e.Node)
	}
	return n
}

// prefixes checks that each prefix belongs to one switch, to which all others route it.
func (k *checker) prefixes() {
	var all []strictyaml.Claim
	for i, s := range k.t.Switches {
		for j, p := range s.Prefixes {
			path := fmt.Sprintf("switches[%d].prefixes[%d]", i, j)
			if p != p.Masked() {
				k.Add(path, "%v has host bits set: did you mean %v?", p, p.Masked())
			}
			if p.IsValid() {
				all = append(all, strictyaml.Claim{Prefix: p.Masked(), Of: s.Name, Path: path})
			}
		}
	}
	k.Overlaps(all, func(a, b strictyaml.Claim) {
		k.Add(b.Path, "%v of switch %q overlaps %v of %q, in %s", b.Prefix, b.Of, a.Prefix, a.Of, k.Position(a.Path))
	})
}

// attachments checks that each host is connected to one switch, in a prefix of that switch: routes
// to the host lead there, and that switch's agent answers for the prefix.
func (k *checker) attachments() {
	at := map[string]*Node{} // switches, by the host's name
	for i, l := range k.t.Links {
		path, host, sw := fmt.Sprintf("links[%d].a.node", i), k.t.nodes[l.A.Node], k.t.nodes[l.B.Node]
		if sw != nil && sw.Switch == nil {
			path, host, sw = fmt.Sprintf("links[%d].b.node", i), sw, host
		}
		if host == nil || sw == nil || host.Switch != nil || sw.Switch == nil {
			continue // between switches, or its fault has been reported
		}
		if at[host.Name] == nil {
			at[host.Name], k.paths["link of "+host.Name] = sw, path
			continue
		}
		k.Add(path, "host %q has a link to %q already, in %s: want one link for each host, as its device has one",
			host.Name, at[host.Name].Name, k.Position(k.paths["link of "+host.Name]))
	}
	lacking := map[string]bool{}
	for i, h := range k.t.Hosts {
		sw := at[h.Name]
		switch {
		case sw == nil || !h.Address.IsValid():
		case contains(sw.Switch, h.Address):
			k.InSubnet(fmt.Sprintf("hosts[%d].address", i), h.Address, sw.Switch.Prefixes)
		case len(sw.Switch.Prefixes) > 0:
			k.outside(fmt.Sprintf("hosts[%d].address", i), h, sw)
		case !lacking[sw.Name]:
			lacking[sw.Name] = true
			subnet, _ := h.Address.Prefix(min(24, h.Address.BitLen()))
			k.Add(strings.TrimSuffix(k.paths[sw.Name], "name")+"prefixes", "missing: host %q is at this switch, by the link in %s: want the subnets of its hosts, as [%v]",
				h.Name, k.Position(k.paths["link of "+h.Name]), subnet)
		}
	}
}

// outside reports a host whose address is in no prefix of its switch.
func (k *checker) outside(path string, h Host, sw *Node) {
	other := "no prefix of a switch"
	for i, s := range k.t.Switches {
		if contains(&s, h.Address) {
			other = fmt.Sprintf("a prefix of switch %q, in %s", s.Name, k.Position(fmt.Sprintf("switches[%d].prefixes", i)))
		}
	}
	k.Add(path, "%v is in %s, and the link in %s joins %q to %q: want an address in %v",
		h.Address, other, k.Position(k.paths["link of "+h.Name]), h.Name, sw.Name, sw.Switch.Prefixes)
}

// contains reports whether an address is in a prefix of a switch.
func contains(s *Switch, a netip.Addr) bool {
	return slices.ContainsFunc(s.Prefixes, func(p netip.Prefix) bool { return p.Contains(a) })
}
