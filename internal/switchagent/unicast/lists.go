package unicast

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/mcrdma/mcrdma/internal/switchspec"
)

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

// maxProblems is how many Problems lists.
const maxProblems = 50

// Problems describes what keeps routes from being as the source has them, except
// for links that are down. It is empty if all is well.
func (t *Table) Problems() []string {
	t.compile()
	all := problems{}
	maps.Copy(all, t.limits)
	for p, s := range t.routes {
		t.resolveSet(s)
		for _, cause := range s.problems {
			all.add(cause, p)
		}
		if s.local && !t.inOwn(p.netip()) {
			all.add("the MAC of a next hop at a host port is not known", p)
		}
	}
	for k, mac := range t.neighbors {
		p, h := t.byName[k.Port], t.hosts[k.Addr]
		if h != nil && !h.static && (h.MAC != mac || p != nil && p.Number != h.Port) {
			all.add(fmt.Sprintf("host %v was heard at port %d with MAC %v, and the topology file, or the kernel, has it at port %s with MAC %v, "+
				"which is used until it is heard: correct that", h.Addr, h.Port, h.MAC, k.Port, mac), none)
		}
	}
	for _, r := range t.refused {
		all.add(r.why, none)
	}
	var list []string
	for cause, p := range all {
		switch {
		case p.first == none:
			list = append(list, cause)
		case p.routes == 1:
			list = append(list, fmt.Sprintf("%s (route %v)", cause, p.first.netip()))
		default:
			list = append(list, fmt.Sprintf("%s (%d routes, %v for one)", cause, p.routes, p.first.netip()))
		}
	}
	slices.Sort(list)
	if more := len(list) - maxProblems; more > 0 {
		list = append(list[:maxProblems], fmt.Sprintf("and %d more", more))
	}
	return list
}
