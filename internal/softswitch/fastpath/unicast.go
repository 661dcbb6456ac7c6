package fastpath

import (
	"fmt"
	"slices"
	"time"

	"github.com/mcrdma/mcrdma/bpf"
	"github.com/mcrdma/mcrdma/internal/softswitch/pipeline"
)

// entry returns the map items of a single entry.
func (l *plan) entry(u unit) (items, string) {
	e := u.e
	switch u.kind {
	case routerMAC:
		return items{{"router_macs", macOf(e.Key[0].Value.Uint())}: uint32(0)}, ""
	case route:
		return items{{"routes", bpf.Prefix{Bits: uint32(e.Key[0].PrefixLen), Dst: wire(e.Key[0].Value.Uint())}}: l.route(e)}, "" //nolint:gosec // 32 at most
	case bridged:
		if _, there := l.ports[uint16(arg(e, 0))]; !there { //nolint:gosec // ports have 9 bits
			return nil, ""
		}
		return items{{"bridge", macOf(e.Key[0].Value.Uint())}: uint32(arg(e, 0))}, "" //nolint:gosec // as above
	case ecmp:
		paths, why := l.paths(e)
		return items{{"ecmp_groups", key32(e, 0)}: paths}, why
	case host:
		return items{{"port_hosts", bpf.PortHost{Port: key32(e, 0), IP: wire(e.Key[1].Value.Uint())}}: macOf(arg(e, 0))}, ""
	case marking:
		if l.ports[uint16(key32(e, 0))] == 0 { //nolint:gosec // as above
			return nil, ""
		}
		l.cells.take(e, "ecn_seen", key32(e, 0))
		return items{{"ecn_ports", key32(e, 0)}: uint32(1)}, ""
	case member:
		return items{{"merge_members", bpf.MemberKey{Src: wire(e.Key[0].Value.Uint()), Dst: wire(e.Key[1].Value.Uint()), DestQP: wire(e.Key[2].Value.Uint())}}: l.member(e)}, ""
	default:
		return l.merging(e)
	}
}

func (l *plan) route(e *pipeline.Entry) bpf.Route {
	switch l.actions(e) {
	case "ingress.unicast.to_next_hop":
		return bpf.Route{NextHop: uint16(arg(e, 0))} //nolint:gosec // 16 bits
	case "ingress.unicast.to_ecmp":
		if n := uint16(arg(e, 0)); n != 0 { //nolint:gosec // 16 bits
			return bpf.Route{ECMP: n}
		}
	}
	return bpf.Route{Climbs: 1}
}

// paths returns the next hops of an ECMP group, in the order in which the pipeline's hash selects
// them.
func (l *plan) paths(e *pipeline.Entry) (p bpf.Paths, why string) {
	why = fmt.Sprintf("ECMP group %d has what the kernel cannot choose from: more than %d paths by weight, or ports that are watched", key32(e, 0), bpf.MaxPaths)
	list := e.Set // as the agent writes them
	switch e.Ref {
	case pipeline.RefMember:
		list = []pipeline.Weighted{{Member: e.Member, Weight: 1, WatchPort: -1}}
	case pipeline.RefGroup:
		list = l.selector.Group(e.Group).Members
	}
	for _, w := range list {
		if e.Ref != pipeline.RefSet {
			w.Call = l.selector.Member(w.Member).Call
		}
		if w.WatchPort >= 0 || int(p.N)+w.Weight > bpf.MaxPaths {
			return bpf.Paths{}, why
		}
		for range w.Weight {
			p.NextHops[p.N] = uint16(w.Call.Args[0].Uint()) //nolint:gosec // 16 bits
			p.N++
		}
	}
	return p, ""
}

// nextHop returns a next hop's port and the neighbor's MAC.
func (l *plan) nextHop(n uint32) items {
	e := l.nextHops.Exactly(uint64(n))
	if e == nil {
		return nil
	}
	h := bpf.NextHop{Port: uint32(arg(e, 0))}                                    //nolint:gosec // 9 bits
	if dst, src, known := l.neighbor(n); known && l.ports[uint16(h.Port)] != 0 { //nolint:gosec // 9 bits
		h.Known, h.Dst, h.Src = 1, dst, src
	}
	return items{{"next_hops", n}: h}
}

func (l *plan) neighbor(n uint32) (dst, src [6]byte, known bool) {
	e := l.neighbors.Exactly(uint64(n))
	if e == nil {
		return dst, src, false
	}
	return macOf(arg(e, 1)).At, macOf(arg(e, 0)).At, true
}

// port returns the map items of a port that has an interface.
func (l *plan) port(n uint16) items {
	index, there := l.ports[n]
	if !there {
		return nil
	}
	p := portIn{Port: bpf.Port{Number: uint32(n)}}
	if l.guarded.Exactly(uint64(n)) != nil {
		p.Guarded = 1
	}
	if e := l.bridging.Exactly(uint64(n)); e != nil {
		p.flood = l.interfacesOf(uint16(arg(e, 0))) //nolint:gosec // 16 bits
	}
	return items{{"ports_in", index}: p, {"ports_out", uint32(n)}: bpf.Out{Interface: index}}
}

// interfacesOf returns the interfaces to which a PRE group copies.
func (l *plan) interfacesOf(pre uint16) portSet {
	var list []uint32
	for _, r := range l.engine.Group(pre) {
		if index, there := l.ports[r.Port]; there {
			list = append(list, index)
		}
	}
	slices.Sort(list)
	return setOf(slices.Compact(list))
}

// merging returns the map items of an entry of merge_groups.
func (l *plan) merging(e *pipeline.Entry) (items, string) {
	n := key32(e, 0)
	if n >= bpf.Slots {
		return nil, "a group merges in a slot that there is not"
	}
	g := bpf.Group{Members: uint16(arg(e, 0)), Epoch: uint16(arg(e, 1)), InitialPSN: uint32(arg(e, 2)), Learn: uint8(arg(e, 3)), //nolint:gosec // the widths of the program
		Source: wire(arg(e, 4)), SenderQPN: wire(arg(e, 5)), CNPGap: arg(e, 6) * uint64(time.Microsecond)}
	return items{{"merge_groups", n}: g}, ""
}

func (l *plan) member(e *pipeline.Entry) bpf.Member {
	if l.actions(e) == "egress.ack_merge.bypass" {
		return bpf.Member{Bypass: 1}
	}
	return bpf.Member{Slot: uint32(arg(e, 0)), Index: uint16(arg(e, 1))} //nolint:gosec // the widths of the program
}
