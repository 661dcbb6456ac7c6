package unicast

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"

	"github.com/mcrdma/mcrdma/internal/switchspec"
)

// A Change is what the switch is to have under a key.
type Change struct {
	Key    switchspec.Key
	Entity switchspec.Entity // nil: nothing
}

// Changes are what the switch lacks, in no order: all that came to be wanted, or no longer
// is, except what Written was called with.
func (t *Table) Changes() []*Change {
	t.compile()
	return slices.Collect(maps.Values(t.lacking))
}

// Written says that the switch has some of the Changes.
func (t *Table) Written(list []*Change) {
	for _, c := range list {
		if t.lacking[c.Key] == c { // else it has changed since
			delete(t.lacking, c.Key)
		}
	}
}

func (t *Table) lacks(k switchspec.Key, e switchspec.Entity) { t.lacking[k] = &Change{k, e} }

// bridge follows the hosts' MACs.
func (t *Table) bridge() {
	now := make(map[switchspec.MAC]uint16, len(t.hosts))
	for _, h := range t.hosts {
		now[h.MAC] = h.Port
		if port, ok := t.bridged[h.MAC]; !ok || port != h.Port {
			e := switchspec.BridgeMAC{MAC: h.MAC, Port: h.Port}
			t.lacks(e.Key(), e)
		}
	}
	for m := range t.bridged {
		if _, ok := now[m]; !ok {
			t.lacks(switchspec.BridgeMAC{MAC: m}.Key(), nil)
		}
	}
	t.bridged = now
}

// fixed is what the switch has whatever the routes are.
func (t *Table) fixed() (list []switchspec.Entity) {
	for m := range t.ownMACs {
		list = append(list, switchspec.RouterMAC{MAC: m})
	}
	for a := range t.own {
		list = append(list, switchspec.ARPTarget{Addr: a})
	}
	if t.cfg.Guard {
		for _, h := range t.cfg.Hosts {
			list = append(list, switchspec.PortHost{Port: h.Port, Addr: h.Addr, MAC: h.MAC})
		}
	}
	if t.cfg.ECN != nil {
		for n := range t.ports {
			e := *t.cfg.ECN
			e.Port = n
			list = append(list, e)
		}
	}
	if len(t.portsTo[""]) > 0 {
		flood := switchspec.PREGroup{ID: FloodGroup}
		for _, p := range t.portsTo[""] {
			flood.Replicas = append(flood.Replicas, switchspec.PREReplica{Port: p.Number})
			list = append(list, switchspec.BridgePort{Port: p.Number, FloodGroup: FloodGroup})
			if t.cfg.Guard {
				list = append(list, switchspec.GuardedPort{Port: p.Number})
			}
		}
		slices.SortFunc(flood.Replicas, func(x, y switchspec.PREReplica) int { return cmp.Compare(x.Port, y.Port) })
		list = append(list, flood)
	}
	return list
}

// A Hop is a next hop with its number.
type Hop struct {
	Number   uint16
	Port     uint16
	To       string         // the neighboring switch; empty: a host
	Src, Dst switchspec.MAC // of frames
	Uses     int            // by groups
}

// HopList lists the next hops that the switch is to have, by number.
func (t *Table) HopList() []Hop {
	t.compile()
	list := make([]Hop, 0, len(t.hops.byKey))
	for k := range t.hops.byKey {
		list = append(list, t.hopOf(k))
	}
	slices.SortFunc(list, func(x, y Hop) int { return cmp.Compare(x.Number, y.Number) })
	return list
}

func (t *Table) hopOf(k hopKey) Hop {
	n := t.hops.byKey[k]
	h := Hop{Number: n, Port: k.port, Src: k.src, Dst: k.dst, Uses: t.hops.slots[n].uses}
	if p := t.ports[k.port]; p != nil {
		h.To = p.To
	}
	return h
}

// A Way is a route as it is on the switch.
type Way struct {
	Prefix netip.Prefix
	Hops   []Hop  // by port
	Note   string // if there are no next hops: one of the Notes
}

// RouteList lists the routes that the switch is to have, in the order of their prefixes.
func (t *Table) RouteList() []Way {
	t.compile()
	list := make([]Way, 0, len(t.table))
	for p, w := range t.table {
		r := Way{Prefix: p.netip(), Note: w.note}
		for _, k := range w.keys {
			r.Hops = append(r.Hops, t.hopOf(k))
		}
		list = append(list, r)
	}
	slices.SortFunc(list, func(x, y Way) int { return x.Prefix.Compare(y.Prefix) })
	return list
}

// HostList lists the hosts that are known, in the order of their addresses.
func (t *Table) HostList() []Host {
	list := make([]Host, 0, len(t.hosts))
	for _, h := range t.hosts {
		list = append(list, h.Host)
	}
	slices.SortFunc(list, func(x, y Host) int { return x.Addr.Compare(y.Addr) })
	return list
}
