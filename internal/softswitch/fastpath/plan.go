package fastpath

import (
	"fmt"

	"github.com/mcrdma/mcrdma/bpf"
	"github.com/mcrdma/mcrdma/internal/softswitch/pipeline"
	"github.com/mcrdma/mcrdma/internal/softswitch/pre"
)

// A plan is the wanted content of the kernel's maps for a pipeline's tables. It is computed by
// units, which changes of the control plane make dirty.
type plan struct {
	tables
	single map[*pipeline.Table]kind // of entries that are units of their own
	engine *pre.Engine
	ports  map[uint16]uint32 // interfaces, by port
	cells  *cells
	groups index
	room   room

	dirty  map[unit]struct{}
	due    change
	have   map[unit]items
	cannot map[unit]string // units that no map can hold, and why

	merges map[uint32]map[*pipeline.Entry]uint32 // members of a slot: their cells of generation

	copied, climbing map[uint16]struct{} // groups, by where their requests are replicated
}

// tables are the tables of p4src.
type tables struct {
	settings, faultIn, faultOut            *pipeline.Table
	routerMACs, routes, bridge, ecmpGroups *pipeline.Table
	nextHops, neighbors, guarded, hosts    *pipeline.Table
	bridging                               *pipeline.Table
	ecn, matches, replicas, regions        *pipeline.Table
	members, mergeGroups                   *pipeline.Table
	selector                               *pipeline.Profile
	acked, passed, cnpAt                   *pipeline.Register
	dropsIn, dropsOut                      *pipeline.Counter
	kinds                                  [bpf.Kinds]*pipeline.Counter
	actions                                func(*pipeline.Entry) string
}

// tablesOf finds the tables in a pipeline with the program of p4src.
func tablesOf(p *pipeline.Pipeline) tables {
	return tables{
		settings: p.Table("ingress.settings"), faultIn: p.Table("ingress.fault_in.rules"), faultOut: p.Table("egress.fault_out.rules"),
		routerMACs: p.Table("ingress.unicast.router_macs"), routes: p.Table("ingress.unicast.routes"), bridge: p.Table("ingress.unicast.bridge"),
		ecmpGroups: p.Table("ingress.unicast.ecmp_groups"), nextHops: p.Table("ingress.unicast.next_hops"), neighbors: p.Table("egress.neighbour.neighbours"),
		guarded: p.Table("ingress.guard.guarded_ports"), hosts: p.Table("ingress.guard.port_hosts"), bridging: p.Table("ingress.bridge_ports"), ecn: p.Table("egress.ecn.ports"),
		matches: p.Table("ingress.replication.groups"), replicas: p.Table("egress.rewrite.replicas"), regions: p.Table("egress.rewrite.regions"),
		members: p.Table("egress.ack_merge.merge_members"), mergeGroups: p.Table("egress.ack_merge.merge_groups"),
		selector: p.Profile("ingress.unicast.ecmp_selector"),
		acked:    p.Register("egress.ack_merge.acked"), passed: p.Register("egress.ack_merge.passed"), cnpAt: p.Register("egress.ack_merge.cnp_at"),
		dropsIn: p.Counter("ingress.drops"), dropsOut: p.Counter("egress.drops"),
		kinds: [...]*pipeline.Counter{bpf.Acks: p.Counter("egress.ack_merge.acks"), bpf.SequenceNAKs: p.Counter("egress.ack_merge.sequence_naks"),
			bpf.RNRNAKs: p.Counter("egress.ack_merge.rnr_naks"), bpf.FatalNAKs: p.Counter("egress.ack_merge.fatal_naks"), bpf.CNPs: p.Counter("egress.ack_merge.cnps")},
		actions: func(e *pipeline.Entry) string { return p.Program().Actions[e.Call.Action].Name },
	}
}

// A unit is what is computed at once: an entry, or related entries that share a number.
type unit struct {
	kind kind
	n    uint32          // of a port, next hop or group
	e    *pipeline.Entry // of other units
}

type kind uint8

const (
	routerMAC kind = iota
	route
	bridged
	ecmp
	host
	marking
	member
	merging
	nextHop
	port
	multicast
)

// items are a unit's content of the maps.
type items map[place]any

type place struct {
	table string
	key   any
}

func newPlan(p *pipeline.Pipeline, e *pre.Engine, ports map[uint16]uint32, read func(string, uint32) bpf.Count) *plan {
	l := &plan{tables: tablesOf(p), engine: e, ports: ports, cells: newCells(read), groups: newIndex(), room: newRoom(bpf.CopyCells),
		dirty: map[unit]struct{}{}, have: map[unit]items{}, cannot: map[unit]string{},
		merges: map[uint32]map[*pipeline.Entry]uint32{}, copied: map[uint16]struct{}{}, climbing: map[uint16]struct{}{}}
	l.single = map[*pipeline.Table]kind{l.routerMACs: routerMAC, l.routes: route, l.bridge: bridged, l.ecmpGroups: ecmp, l.hosts: host,
		l.ecn: marking, l.members: member, l.mergeGroups: merging}
	l.due.reset()
	for n := range ports {
		l.touch(unit{kind: port, n: uint32(n)})
	}
	for _, t := range []*pipeline.Table{l.routerMACs, l.routes, l.bridge, l.ecmpGroups, l.nextHops, l.neighbors, l.guarded, l.hosts, l.ecn,
		l.matches, l.replicas, l.regions, l.members, l.mergeGroups} {
		for x := range t.All() {
			l.changed(t, x, false)
		}
	}
	return l
}

func (l *plan) touch(u unit) { l.dirty[u] = struct{}{} }

// changed marks the units dirty that depend on a changed entry.
func (l *plan) changed(t *pipeline.Table, e *pipeline.Entry, gone bool) {
	l.cells.changed(e, gone)
	u := unit{e: e}
	switch t {
	case l.nextHops:
		u = unit{kind: nextHop, n: key32(e, 0)}
	case l.neighbors:
		u = unit{kind: nextHop, n: key32(e, 0)}
		l.touchAll(l.groups.byHop[uint16(u.n)])
	case l.guarded, l.bridging:
		u = unit{kind: port, n: key32(e, 0)}
	case l.matches, l.replicas, l.regions:
		l.touchAll(l.groups.changed(l, t, e, gone))
		return
	default:
		k, known := l.single[t]
		if !known {
			return
		}
		u.kind = k
	}
	l.touch(u)
}

// preGroupChanged marks the units dirty that depend on a changed PRE group.
func (l *plan) preGroupChanged(pre uint16) {
	l.touchAll(l.groups.byPRE[pre])
	for e := range l.bridging.All() {
		if arg(e, 0) == uint64(pre) {
			l.touch(unit{kind: port, n: key32(e, 0)})
		}
	}
}

func (l *plan) touchAll(groups map[uint16]struct{}) {
	for g := range groups {
		l.touch(unit{kind: multicast, n: uint32(g)})
	}
}

// A change is the difference between the present and the wanted content of the maps.
type change struct {
	put    map[place]value
	remove map[place]struct{}
	turns  map[uint32]struct{} // cells of generation whose packets may see half of it
}

// everything is the cell of generation of all packets.
const everything = 0

type value struct {
	of unit
	is any
}

// changes recomputes dirty units, and returns all changes since reset.
func (l *plan) changes() *change {
	now := map[unit]items{}
	for len(l.dirty) > 0 { // computing a group may make another one dirty
		for u := range l.dirty {
			delete(l.dirty, u)
			next, why := l.compute(u)
			delete(l.cannot, u)
			if now[u] = next; why != "" {
				l.cannot[u] = why
			}
		}
	}
	var slots []uint32
	for u, next := range now {
		had := l.have[u]
		if u.kind == member {
			l.mergesIn(u.e, had, next)
		}
		if altered := l.due.step(u, had, next); altered && u.kind == merging {
			slots = append(slots, key32(u.e, 0))
		} else if altered {
			l.turn(u, had, next)
		}
		if l.have[u] = next; len(next) == 0 {
			delete(l.have, u)
		}
	}
	for _, n := range slots { // when all of their members are known
		l.turnSlot(n)
	}
	return &l.due
}

// turn records which packets may see half of a unit's change.
func (l *plan) turn(u unit, had, next items) {
	if u.kind != multicast && u.kind != member {
		l.due.turns[everything] = struct{}{}
	}
	for _, has := range []items{had, next} {
		for at := range has {
			switch k := at.key.(type) {
			case bpf.GroupKey:
				l.due.turns[bpf.CellOf(k.Src, k.MCID)] = struct{}{}
			case bpf.MemberKey:
				l.due.turns[bpf.CellOf(k.Dst, k.DestQP)] = struct{}{}
			}
		}
	}
}

// turnSlot does the same for all answers merged in a slot.
func (l *plan) turnSlot(n uint32) {
	for _, cell := range l.merges[n] {
		l.due.turns[cell] = struct{}{}
	}
}

// mergesIn records in which slot a member's answers are merged.
func (l *plan) mergesIn(e *pipeline.Entry, had, next items) {
	for _, v := range had {
		delete(l.merges[v.(bpf.Member).Slot], e)
	}
	for at, v := range next {
		n, k := v.(bpf.Member).Slot, at.key.(bpf.MemberKey)
		if l.merges[n] == nil {
			l.merges[n] = map[*pipeline.Entry]uint32{}
		}
		l.merges[n][e] = bpf.CellOf(k.Dst, k.DestQP)
	}
}

// reset forgets the changes, which have been written to the maps.
func (c *change) reset() {
	*c = change{put: map[place]value{}, remove: map[place]struct{}{}, turns: map[uint32]struct{}{}}
}

func (c *change) none() bool { return len(c.put) == 0 && len(c.remove) == 0 }

// step adds a unit's changes, and reports whether packets may see half of them. New items alone are
// seen as a whole or not at all.
func (c *change) step(u unit, old, next items) (altered bool) {
	for at, v := range next {
		if was, there := old[at]; !there || was != v {
			c.put[at] = value{u, v}
			altered = altered || len(old) > 0
			delete(c.remove, at)
		}
	}
	for at := range old {
		if _, stays := next[at]; stays {
			continue
		}
		altered = true
		if p, taken := c.put[at]; taken && p.of != u {
			continue // it now belongs to another unit
		}
		delete(c.put, at)
		c.remove[at] = struct{}{}
	}
	return altered
}

// compute returns a unit's wanted content of the maps, and why it cannot be there.
func (l *plan) compute(u unit) (items, string) {
	switch u.kind {
	case nextHop:
		return l.nextHop(u.n), ""
	case port:
		return l.port(uint16(u.n)), "" //nolint:gosec // ports are small
	case multicast:
		out, others := l.multicast(uint16(u.n)) //nolint:gosec // the program's groups have 16 bits
		l.touchAll(others)
		return out, ""
	}
	if _, gone := l.cells.gone[u.e]; gone {
		return nil, ""
	}
	return l.entry(u)
}

// why returns the reason why the kernel cannot process packets at all, or "".
func (l *plan) why() string {
	if n := l.faultIn.Len() + l.faultOut.Len(); n > 0 {
		return fmt.Sprintf("%d rules of fault injection", n)
	}
	for _, why := range l.cannot {
		return why
	}
	return ""
}
