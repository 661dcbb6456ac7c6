package unicast

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"

	"github.com/mcrdma/mcrdma/internal/switchspec"
	"github.com/mcrdma/mcrdma/pkg/bifurcation"
)

// ErrConfig is what errors of New wrap.
var ErrConfig = errors.New("unicast: configuration")

// What the tables of the data plane hold.
const (
	MaxNextHops    = 8191 // numbers 1 to 8191
	MaxECMPMembers = 8192 // of all ECMP groups together
	MaxECMPGroups  = 4096 // numbers 1 to 4096
	MaxRoutes      = 65536
	MaxHosts       = 4096
)

// FloodGroup is the PRE group of the host ports. No other group uses its number.
const FloodGroup = 1

// maxPort is the last port of the data plane: 510 is the CPU's.
const maxPort = 509

// A Port is one of the switch's ports.
type Port struct {
	Number  uint16
	Name    string         // as a routing source may call it; empty: by number only
	MAC     switchspec.MAC // zero: Config.MAC
	To      string         // the neighboring switch; empty: hosts
	Hello   bool           // usable only while Link says so; of links to switches
	PeerMAC switchspec.MAC // the neighbor's, if Link does not tell
	Router  netip.Addr     // the neighbor's, if it is a router: it gets packets of its own
}

// A Switch is another switch.
type Switch struct {
	Name         string
	Programmable bool
	Addrs        []netip.Addr   // what routing sources call it
	Prefixes     []netip.Prefix // whose receivers are behind it
}

// A Host is a host at one of the switch's ports.
type Host struct {
	Addr netip.Addr
	MAC  switchspec.MAC
	Port uint16
}

// Config says what does not change.
type Config struct {
	Name     string
	MAC      switchspec.MAC // the router's
	Addr     netip.Addr     // the router's own; invalid: none
	Prefixes []netip.Prefix // of the hosts at the ports
	Gateways []netip.Addr   // further addresses of the router
	Ports    []Port
	Switches []Switch
	Hosts    []Host // static
	Guard    bool   // only Hosts may send at ports with hosts

	// ECN, if not nil, is how packets are marked that leave by any of the ports; its
	// Port is ignored.
	ECN *switchspec.ECNPort

	// Next, if set, says which programmable switches come next on the ways to dst
	// through a neighbor that is not programmable, and whether one of them leads to
	// dst through none. Its answers are kept until a change of the table.
	Next func(neighbor string, dst netip.Addr) (next []bifurcation.Switch, direct bool)
}

func bad(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrConfig, fmt.Sprintf(format, args...))
}

// New returns a table without routes, in which all links with hellos are down.
// Errors wrap ErrConfig and name what is wrong.
func New(cfg Config) (*Table, error) {
	t := &Table{
		cfg: cfg, hops: newHopNumbers(),
		surroundings: surroundings{ports: map[uint16]*port{}, byName: map[string]*port{}, switches: map[string]*Switch{},
			byAddr: map[netip.Addr]string{}, own: map[netip.Addr]bool{}, ownMACs: map[switchspec.MAC]bool{}},
		sources: sources{routes: map[prefix]*set{}, sets: map[string]*set{}, hosts: map[netip.Addr]*host{}, refused: map[Host]refusal{}},
		compiled: compiled{all: true, changed: map[prefix]bool{}, version: 1, ways: 1, table: map[prefix]*way{}, led: map[string]*way{},
			bridged: map[switchspec.MAC]uint16{}, cache: map[netip.Addr]bifurcation.Route{}, lacking: map[switchspec.Key]*Change{}},
	}
	if !cfg.MAC.IsStation() {
		return nil, bad("the router's MAC is %v: want that of a station", cfg.MAC)
	}
	t.ownMACs[cfg.MAC] = true
	t.cfg.Prefixes, t.cfg.Switches = slices.Clone(cfg.Prefixes), slices.Clone(cfg.Switches)
	for _, a := range append([]netip.Addr{cfg.Addr}, cfg.Gateways...) {
		if a.IsValid() {
			if !a.Is4() {
				return nil, bad("the router's address %v is not IPv4", a)
			}
			t.own[a] = true
		}
	}
	for _, p := range cfg.Prefixes {
		if !p.IsValid() || !p.Addr().Is4() || p != p.Masked() {
			return nil, bad("prefix %v: want an IPv4 prefix without bits outside of its mask", p)
		}
	}
	if err := errors.Join(t.addSwitches(), t.addPorts()); err != nil {
		return nil, err
	}
	if e := cfg.ECN; e != nil && (e.KMin > e.KMax || e.KMax > switchspec.MaxDepth) {
		return nil, bad("ECN marking at depths from %d to %d: want two depths in order, up to %d", e.KMin, e.KMax, switchspec.MaxDepth)
	}
	err := t.addHosts()
	for _, e := range t.fixed() {
		t.lacks(e.Key(), e)
	}
	return t, err
}

func (t *Table) addSwitches() error {
	for i := range t.cfg.Switches {
		s := &t.cfg.Switches[i]
		if s.Name == "" || s.Name == t.cfg.Name || t.switches[s.Name] != nil {
			return bad("switch %q: another switch's name is unique, not empty, and not this one's", s.Name)
		}
		t.switches[s.Name] = s
		for _, a := range s.Addrs {
			if who := t.byAddr[a.Unmap()]; who != "" && who != s.Name || t.own[a.Unmap()] {
				return bad("address %v of switch %s is another's, too", a, s.Name)
			}
			t.byAddr[a.Unmap()] = s.Name
		}
	}
	return nil
}

func (t *Table) addPorts() error {
	t.portsTo = map[string][]*port{}
	for _, c := range t.cfg.Ports {
		p := &port{Port: c, label: strconv.Itoa(int(c.Number))}
		if p.MAC == (switchspec.MAC{}) {
			p.MAC = t.cfg.MAC
		}
		switch {
		case p.Number > maxPort:
			return bad("port %d: ports are numbered up to %d", p.Number, maxPort)
		case t.ports[p.Number] != nil:
			return bad("port %d is there twice", p.Number)
		case !p.MAC.IsStation():
			return bad("port %d has MAC %v: want that of a station", p.Number, p.MAC)
		case p.routed() && t.switches[p.To] == nil:
			return bad("port %d leads to %q, which is not among the switches", p.Number, p.To)
		}
		t.ports[p.Number] = p
		if p.Router.Is4() {
			t.routers = append(t.routers, p)
		}
		t.ownMACs[p.MAC] = true
		t.portsTo[p.To] = append(t.portsTo[p.To], p)
		for _, name := range []string{p.label, p.Name} {
			if o := t.byName[name]; o != nil && o != p {
				return bad("port %d and port %d are both called %q", o.Number, p.Number, name)
			}
			if name != "" {
				t.byName[name] = p
			}
		}
	}
	return nil
}

func (t *Table) addHosts() error {
	for _, h := range t.cfg.Hosts {
		if why, _ := t.unfit(h); why != "" {
			return bad("host %v: %s", h.Addr, why)
		}
		if t.hosts[h.Addr] != nil {
			return bad("host %v is there twice", h.Addr)
		}
		t.hosts[h.Addr] = &host{Host: h, static: true}
	}
	return nil
}
