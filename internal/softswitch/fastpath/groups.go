package fastpath

import (
	"bytes"
	"cmp"
	"maps"
	"math"
	"slices"

	"github.com/mcrdma/mcrdma/bpf"
	"github.com/mcrdma/mcrdma/internal/softswitch/match"
	"github.com/mcrdma/mcrdma/internal/softswitch/pipeline"
	"github.com/mcrdma/mcrdma/internal/softswitch/pre"
)

// multicast returns the map items of a group: its match, its copies and their regions. If a copy
// needs something that the kernel cannot do, the group's packets climb.
//
// touched are the groups to be recomputed.
func (l *plan) multicast(g uint16) (out items, touched map[uint16]struct{}) {
	p := l.groups.at(g)
	var pres, hops []uint16
	for m := range p.matches {
		for n := range max(uint16(arg(m, 2)), 1) { //nolint:gosec // 16 bits each
			if id := uint16(arg(m, 1)) + n; !slices.Contains(pres, id) { //nolint:gosec // as above
				pres = append(pres, id)
			}
		}
	}
	for _, r := range p.replicas {
		hops = append(hops, uint16(arg(r, l.hopAt(r)))) //nolint:gosec // 16 bits
	}
	slices.Sort(pres)
	had := l.groups.preOf[g]
	same := slices.Equal(had, pres)
	if shared := l.groups.uses(g, pres, hops); !same {
		touched = shared // no packet may be replicated by another group's PRE group
	}
	delete(l.copied, g)
	delete(l.climbing, g)
	b := builder{plan: l, parts: p, group: uint32(g), out: items{}, copies: map[uint16][]bpf.Copy{}}
	can := len(p.matches) > 0
	for _, id := range pres {
		can = can && len(l.groups.byPRE[id]) == 1 && b.preGroup(id)
	}
	if can = can && b.regions() && b.place(); !can {
		b.out, b.copies = items{}, nil
	}
	for _, id := range slices.Concat(had, pres) {
		if len(b.copies[id]) == 0 {
			l.room.give(id)
		}
	}
	if len(p.matches) == 0 {
		if len(p.replicas)+len(p.regions) == 0 {
			delete(l.groups.parts, g)
		}
		return nil, touched
	}
	for m := range p.matches {
		v := bpf.Multicast{Group: uint32(g), FirstPREGroup: uint32(arg(m, 1)), PREGroups: uint32(arg(m, 2))} //nolint:gosec // 16 bits each
		n, there := l.cells.number(m)
		switch {
		case can && there:
			v.Counter = n
			v.Regions, v.RKey, v.Span = uint32(len(b.spans)), b.first, b.spans[b.first] //nolint:gosec // few
			if len(b.last) > 0 && v.Regions == 0 {
				v.Regions, v.Span = 1, bpf.Span{First: 1} // WRITEs climb: it covers nothing
			}
		default:
			v.Climbs = 1
			l.climbing[g] = struct{}{}
		}
		b.out[place{"groups", bpf.GroupKey{Src: wire(m.Key[0].Value.Uint()), Dst: wire(m.Key[2].Value.Uint()), MCID: wire(m.Key[1].Value.Uint())}}] = v
	}
	if _, climbs := l.climbing[g]; !climbs {
		l.copied[g] = struct{}{}
	}
	return b.out, touched
}

// A builder computes the copies of a group.
type builder struct {
	*plan
	*parts
	group  uint32
	out    items
	last   []uint16              // instances that are copies for the group's receivers
	copies map[uint16][]bpf.Copy // by PRE group, in the order of their interfaces
	spans  map[[4]byte]bpf.Span  // regions, by rkey
	first  [4]byte               // the region stored with the copies
	firsts map[uint32]bpf.Region // by copy
}

// number returns the number by which regions refer to a copy.
func (b *builder) number(rid uint16) uint32 { return b.group<<16 | uint32(rid) }

// preGroup adds the copies of a PRE group. It returns false if the kernel cannot make them.
func (b *builder) preGroup(id uint16) bool {
	var list []bpf.Copy // nil: its packets climb, and are dropped there
	for _, r := range b.engine.Group(id) {
		c, ok := b.copy(r)
		if c.PREGroup = id; !ok || slices.ContainsFunc(list, func(other bpf.Copy) bool { return other.Interface == c.Interface }) {
			return false
		}
		list = append(list, c)
	}
	slices.SortFunc(list, func(x, y bpf.Copy) int { return cmp.Compare(x.Interface, y.Interface) })
	b.copies[id] = list
	return true
}

// place allocates cells for the copies. It returns false if there are not enough.
func (b *builder) place() bool {
	for id, list := range b.copies {
		if len(list) == 0 {
			continue
		}
		first, ok := b.room.take(id, len(list))
		if !ok {
			return false
		}
		var interfaces []uint32
		for i, c := range list {
			if r, there := b.firsts[c.Number]; there && c.Last == 1 {
				c.Regions, c.RKey, c.Region = 1, b.first, r
			}
			b.out[place{"copies", first + uint32(i)}] = c //nolint:gosec // ports are few
			interfaces = append(interfaces, c.Interface)
		}
		b.out[place{"pre_groups", uint32(id)}] = preGroup{setOf(interfaces), first}
	}
	return true
}

// copy returns the map value of one copy, and false if the kernel cannot make it.
func (b *builder) copy(r pre.Replica) (c bpf.Copy, ok bool) {
	e := b.replicas[r.Instance]
	if c.Interface, ok = b.ports[r.Port]; e == nil || !ok {
		return c, false
	}
	c.Dst, c.Number, c.Port = wire(arg(e, 0)), b.number(r.Instance), uint32(r.Port)
	last := b.actions(e) == "egress.rewrite.to_receiver"
	hop, neutral := arg(e, b.hopAt(e)), arg(e, b.hopAt(e)+1)
	if last {
		c.Last, c.QPN = 1, wire(arg(e, 1))
		if !slices.Contains(b.last, r.Instance) {
			b.last = append(b.last, r.Instance)
		}
	}
	if neutral == 0 && (last || !b.always(c.Dst)) {
		return c, false // its ICRC must be recomputed
	}
	c.ID, c.SrcPort = halves(neutral)
	if hop == 0 {
		return c, false
	}
	var known bool
	if c.EthDst, c.EthSrc, known = b.neighbor(uint32(hop)); known { //nolint:gosec // 16 bits
		c.Known = 1
	}
	c.Counter, ok = b.cells.number(e)
	return c, ok
}

// always reports whether all packets of the group already have that address.
func (b *builder) always(dst [4]byte) bool {
	for m := range b.matches {
		if wire(m.Key[2].Value.Uint()) != dst {
			return false
		}
	}
	return true
}

// halves returns the XOR masks of identification and source port.
func halves(neutral uint64) (id, srcPort [2]byte) {
	w := wire(neutral)
	return [2]byte(w[:2]), [2]byte(w[2:])
}

// regions adds the regions. It returns false if the kernel cannot rewrite the copies of all
// receivers in some region: then its WRITEs would climb, and later packets would overtake them.
func (b *builder) regions() bool {
	spans, all := map[[4]byte]bpf.Span{}, map[bpf.RegionKey]bpf.Region{}
	for i, rid := range b.last {
		here := b.parts.regions[rid]
		if i > 0 && len(here) != len(spans) {
			return false
		}
		for e := range here {
			key, s := wire(e.Key[2].Value.Uint()), spanOf(&e.Key[3])
			others, there := spans[key]
			n, ok := b.cells.number(e)
			if there != (i > 0) || !ok || !b.constant(e, rid) {
				return false
			}
			if there {
				s.First, s.Last = max(s.First, others.First), min(s.Last, others.Last)
			}
			spans[key] = s
			at := bpf.RegionKey{Copy: b.number(rid), RKey: key}
			if _, twice := all[at]; twice {
				return false
			}
			r := bpf.Region{RKey: wire(arg(e, 1)), Counter: n}
			r.ID, r.SrcPort = halves(arg(e, 2))
			all[at] = r
		}
	}
	b.spans, b.firsts = spans, map[uint32]bpf.Region{}
	for i, key := range slices.SortedFunc(maps.Keys(spans), func(x, y [4]byte) int { return bytes.Compare(x[:], y[:]) }) {
		if s := spans[key]; s.First > s.Last {
			return false
		} else if i > 0 {
			b.out[place{"group_regions", bpf.GroupRegion{Group: b.group, RKey: key}}] = s
			continue
		}
		b.first = key
	}
	for at, r := range all {
		if at.RKey == b.first {
			b.firsts[at.Copy] = r
		} else {
			b.out[place{"regions", at}] = r
		}
	}
	return true
}

func spanOf(f *match.Field) bpf.Span {
	if f.Value == nil && f.High == nil {
		return bpf.Span{Last: math.MaxUint64} // not used
	}
	return bpf.Span{First: f.Value.Uint(), Last: f.High.Uint()}
}

// constant reports whether a region changes the ICRC by a constant that the neutral rewrite
// cancels.
func (b *builder) constant(e *pipeline.Entry, rid uint16) bool {
	if b.actions(e) != "egress.rewrite.translate" || arg(e, 0) != 0 || arg(e, 2) == 0 {
		return false
	}
	r := b.replicas[rid]
	return arg(e, 2) != arg(r, b.hopAt(r)+1) // together they would be 0, which means none
}
