package unicast

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"github.com/mcrdma/mcrdma/internal/switchspec"
)

// Wanted returns the unicast part of the switch's state. It is the caller's.
func (t *Table) Wanted() *switchspec.State {
	t.compile()
	if t.state == nil {
		t.state = &switchspec.State{}
		if err := t.state.Put(t.entities()...); err != nil { // New refuses what could lead here
			t.problems.add(fmt.Sprintf("the switch cannot be told: %v", err), none)
		}
	}
	return t.state.Clone()
}

func (t *Table) entities() []switchspec.Entity {
	list := make([]switchspec.Entity, 0, len(t.table)+2*len(t.hops.byKey)+len(t.ecmp.sets)+len(t.hosts)+len(t.own)+3*len(t.ports)+8)
	for m := range t.ownMACs {
		list = append(list, switchspec.RouterMAC{MAC: m})
	}
	for a := range t.own {
		list = append(list, switchspec.ARPTarget{Addr: a})
	}
	for k, n := range t.hops.byKey {
		list = append(list, switchspec.NextHop{ID: n, Port: k.port}, switchspec.Neighbor{NextHop: n, Src: k.src, Dst: k.dst})
	}
	for id, key := range t.ecmp.sets {
		list = append(list, switchspec.ECMPGroup{ID: id, Hops: ecmpHops(key)})
	}
	for p, w := range t.table {
		list = append(list, switchspec.Route{Dst: p.netip(), To: w.to, Number: w.number})
	}
	for _, h := range t.hosts {
		list = append(list, switchspec.BridgeMAC{MAC: h.MAC, Port: h.Port})
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

// HopList lists the next hops that Wanted has, by number.
func (t *Table) HopList() []Hop {
	t.compile()
	list := make([]Hop, 0, len(t.hops.byKey))
	for k := range t.hops.byKey {
		list = append(list, t.hop(k))
	}
	slices.SortFunc(list, func(x, y Hop) int { return cmp.Compare(x.Number, y.Number) })
	return list
}

func (t *Table) hop(k hopKey) Hop {
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

// RouteList lists the routes that Wanted has, in the order of their prefixes.
func (t *Table) RouteList() []Way {
	t.compile()
	list := make([]Way, 0, len(t.table))
	for p, w := range t.table {
		r := Way{Prefix: p.netip(), Note: w.note}
		for _, k := range w.keys {
			r.Hops = append(r.Hops, t.hop(k))
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
