package bifurcation

import (
	"fmt"
	"net/netip"
	"slices"
)

// Topology is a Fabric in memory: switches, links between them, hosts, and shortest paths,
// by the number of switches, unless SetRoute says otherwise. The zero value is empty and
// ready. Ports count from 1 on each switch, in the order in which its links and hosts were
// added, and the number of a next hop is its port's. It caches routes as they are asked
// for, so not even concurrent reads are safe.
type Topology struct {
	// SinglePath: of equal-cost next hops, only that with the lowest port is used. Set it
	// before the first query.
	SinglePath bool

	switches map[Switch]*topologySwitch
	hosts    map[netip.Addr][]Switch
	distance map[netip.Addr]map[Switch]int // to the host, in switches
}

type topologySwitch struct {
	programmable bool
	ports        []topologyPort // [port-1]
	routes       map[netip.Addr][]Link
	fixed        map[netip.Addr][]Link
}

type topologyPort struct {
	to   Switch     // "" is the host
	host netip.Addr // invalid is the switch
}

// AddSwitch adds a switch. Its name must be new and not empty.
func (t *Topology) AddSwitch(name Switch, programmable bool) error {
	if name == "" || t.switches[name] != nil {
		return fmt.Errorf("switch %q: the name is empty or there is one already", name)
	}
	if t.switches == nil {
		t.switches, t.hosts = map[Switch]*topologySwitch{}, map[netip.Addr][]Switch{}
	}
	t.switches[name] = &topologySwitch{programmable: programmable, fixed: map[netip.Addr][]Link{}}
	t.forget()
	return nil
}

// Connect adds a link between two switches; there may be several.
func (t *Topology) Connect(a, b Switch) error {
	if t.switches[a] == nil || t.switches[b] == nil || a == b {
		return fmt.Errorf("link %q to %q: one of the switches does not exist, or they are the same", a, b)
	}
	t.switches[a].ports = append(t.switches[a].ports, topologyPort{to: b})
	t.switches[b].ports = append(t.switches[b].ports, topologyPort{to: a})
	t.forget()
	return nil
}

// AddHost attaches a host to one or more switches. It forwards nothing.
func (t *Topology) AddHost(host netip.Addr, switches ...Switch) error {
	if !host.IsValid() || t.hosts[host] != nil || len(switches) == 0 {
		return fmt.Errorf("host %v: the address is bad or there is one already, or it has no switch", host)
	}
	for i, s := range switches {
		if t.switches[s] == nil || slices.Contains(switches[:i], s) {
			return fmt.Errorf("host %v: switch %q does not exist or is there twice", host, s)
		}
	}
	for _, s := range switches {
		t.switches[s].ports = append(t.switches[s].ports, topologyPort{host: host})
	}
	t.hosts[host] = slices.Clone(switches)
	t.forget()
	return nil
}

// SetRoute replaces a switch's next hops to a host by all its links to these neighbors; ""
// is the host itself, none at all is no route.
func (t *Topology) SetRoute(at Switch, dst netip.Addr, to ...Switch) error {
	s := t.switches[at]
	if s == nil || t.hosts[dst] == nil {
		return fmt.Errorf("route of %q to %v: the switch or the host does not exist", at, dst)
	}
	links := make([]Link, 0, len(to))
	for _, next := range to {
		n := len(links)
		for i, p := range s.ports {
			if p.to == next && (next != "" || p.host == dst) {
				links = append(links, link(i, next))
			}
		}
		if len(links) == n {
			return fmt.Errorf("route of %q to %v: %q is not its neighbor", at, dst, next)
		}
	}
	s.fixed[dst] = links
	return nil
}

// forget drops all routes that were worked out.
func (t *Topology) forget() {
	t.distance = map[netip.Addr]map[Switch]int{}
	for _, s := range t.switches {
		s.routes = nil
	}
}

func link(index int, to Switch) Link {
	return Link{Hop: Hop{NextHop: uint16(index + 1), Port: uint32(index + 1)}, To: to}
}

// Uplinks implements Fabric.
func (t *Topology) Uplinks(host netip.Addr) []Switch { return t.hosts[host] }

// Programmable implements Fabric.
func (t *Topology) Programmable(at Switch) bool {
	s := t.switches[at]
	return s != nil && s.programmable
}

// NextHops implements Fabric.
func (t *Topology) NextHops(at Switch, dst netip.Addr) []Link {
	s := t.switches[at]
	if s == nil {
		return nil
	}
	if links, ok := s.fixed[dst]; ok {
		return links
	}
	links, ok := s.routes[dst]
	if !ok {
		links = t.shortest(at, dst)
		if t.SinglePath && len(links) > 1 {
			links = links[:1]
		}
		if s.routes == nil {
			s.routes = map[netip.Addr][]Link{}
		}
		s.routes[dst] = links
	}
	return links
}

func (t *Topology) shortest(at Switch, dst netip.Addr) []Link {
	distance := t.distanceTo(dst)
	here, reachable := distance[at]
	if !reachable {
		return nil
	}
	var links []Link
	for i, p := range t.switches[at].ports {
		there, ok := distance[p.to]
		if p.host == dst || here > 1 && p.to != "" && ok && there == here-1 {
			links = append(links, link(i, p.to))
		}
	}
	return links
}

// distanceTo counts the switches on the shortest paths from each switch, itself
// included.
func (t *Topology) distanceTo(dst netip.Addr) map[Switch]int {
	if d := t.distance[dst]; d != nil {
		return d
	}
	d := map[Switch]int{}
	queue := slices.Clone(t.hosts[dst])
	for _, s := range queue {
		d[s] = 1
	}
	for ; len(queue) > 0; queue = queue[1:] {
		for _, p := range t.switches[queue[0]].ports {
			if _, seen := d[p.to]; p.to != "" && !seen {
				d[p.to] = d[queue[0]] + 1
				queue = append(queue, p.to)
			}
		}
	}
	t.distance[dst] = d
	return d
}
