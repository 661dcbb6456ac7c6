package p4rt

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"math"
	"net/netip"
	"reflect"
	"slices"

	p4cfg "github.com/p4lang/p4runtime/go/p4/config/v1"
	p4 "github.com/p4lang/p4runtime/go/p4/v1"

	"github.com/mcrdma/mcrdma/internal/switchspec"
)

// An entry is an entry of a table in numbers: of each key field one, of LPM and
// range fields two (value and prefix length, first and last).
type entry struct {
	key    []uint64
	action string
	args   []uint64
	set    []switchspec.ECMPHop // instead, with a selector
}

// Fields are pointers to fields of an entity.
type fields []any

// numbers are their values. A prefix has two.
func (f fields) numbers() []uint64 {
	var out []uint64
	for _, p := range f {
		switch p := p.(type) {
		case *netip.Addr:
			out = append(out, u32(*p))
		case *netip.Prefix:
			out = append(out, u32(p.Addr()), uint64(p.Bits())) //nolint:gosec // 0 to 32
		case *switchspec.MAC:
			out = append(out, binary.BigEndian.Uint64(append([]byte{0, 0}, p[:]...)))
		case *bool:
			out = append(out, map[bool]uint64{true: 1}[*p])
		default:
			out = append(out, reflect.ValueOf(p).Elem().Uint())
		}
	}
	return out
}

// set sets them to these values. Widths need not be checked: the switch keeps fields in theirs.
func (f fields) set(v []uint64) {
	for _, p := range f {
		switch p := p.(type) {
		case *netip.Addr:
			*p = addr(v[0])
		case *netip.Prefix:
			*p = netip.PrefixFrom(addr(v[0]), int(v[1])) //nolint:gosec // 0 to 32
			v = v[1:]
		case *switchspec.MAC:
			*p = mac(v[0])
		case *bool:
			*p = v[0] == 1
		default:
			reflect.ValueOf(p).Elem().SetUint(v[0])
		}
		v = v[1:]
	}
}

func addr(v uint64) netip.Addr {
	return netip.AddrFrom4([4]byte(binary.BigEndian.AppendUint32(nil, uint32(v)))) //nolint:gosec // fields of 32 bits
}

func u32(a netip.Addr) uint64 {
	b := a.As4()
	return uint64(binary.BigEndian.Uint32(b[:]))
}

func mac(v uint64) switchspec.MAC { return switchspec.MAC(binary.BigEndian.AppendUint64(nil, v)[2:]) }

// A layout says how one kind of entities is laid out in a table.
type layout struct {
	table  string
	encode func(switchspec.Entity) (entry, bool) // false: of another kind
	decode func(entry) switchspec.Entity
}

// A row names the fields of an entity that are the key of its entry, and the action's
// arguments.
type row struct {
	key    fields
	action string
	args   fields
}

// of makes a layout of one type. action is that of the entry from which the entity is read; empty:
// the entity says which it is to have.
func of[T switchspec.Entity](table string, row func(e *T, action string) row) layout {
	return layout{table,
		func(e switchspec.Entity) (entry, bool) {
			x, ok := e.(T)
			if !ok {
				return entry{}, false
			}
			r := row(&x, "")
			return entry{key: r.key.numbers(), action: r.action, args: r.args.numbers()}, true
		},
		func(x entry) switchspec.Entity {
			var e T
			r := row(&e, x.action)
			r.key.set(x.key)
			r.args.set(x.args)
			return e
		}}
}

const (
	noAction   = "NoAction"
	toNextHop  = "ingress.unicast.to_next_hop"
	toECMP     = "ingress.unicast.to_ecmp"
	toAgent    = "ingress.unicast.to_agent"
	toNowhere  = "ingress.unicast.no_route"
	toPort     = "ingress.unicast.to_port"
	toBranch   = "egress.rewrite.to_branch"
	toReceiver = "egress.rewrite.to_receiver"
	bypass     = "egress.ack_merge.bypass"
	members    = "egress.ack_merge.merge_members" // a table of two kinds of entities
)

var routeActions = [...]string{
	switchspec.ToNowhere: toNowhere, switchspec.ToNextHop: toNextHop, switchspec.ToECMP: toECMP, switchspec.ToAgent: toAgent,
}

var (
	memberLayout = of(members, func(m *switchspec.MergeMember, _ string) row {
		return row{fields{&m.Src, &m.Dst, &m.DestQP}, "egress.ack_merge.from", fields{&m.Slot, &m.Index}}
	})
	bypassLayout = of(members, func(b *switchspec.Bypass, _ string) row {
		return row{fields{&b.Src, &b.Dst, &b.QPN}, bypass, nil}
	})
)

var layouts = []layout{
	of("ingress.settings", func(s *switchspec.Settings, _ string) row {
		return row{nil, "ingress.configure", fields{&s.ICRC, &s.HashSeed, &s.Owner, &s.Numbers}}
	}),
	of("ingress.bridge_ports", func(p *switchspec.BridgePort, _ string) row {
		return row{fields{&p.Port}, "ingress.bridge_port", fields{&p.FloodGroup}}
	}),
	of("ingress.guard.guarded_ports", func(p *switchspec.GuardedPort, _ string) row {
		return row{fields{&p.Port}, noAction, nil}
	}),
	of("ingress.guard.port_hosts", func(h *switchspec.PortHost, _ string) row {
		return row{fields{&h.Port, &h.Addr}, "ingress.guard.host", fields{&h.MAC}}
	}),
	of("ingress.unicast.router_macs", func(m *switchspec.RouterMAC, _ string) row {
		return row{fields{&m.MAC}, noAction, nil}
	}),
	of("ingress.unicast.arp_targets", func(t *switchspec.ARPTarget, _ string) row {
		return row{fields{&t.Addr}, noAction, nil}
	}),
	of("ingress.unicast.bridge", func(m *switchspec.BridgeMAC, _ string) row {
		return row{fields{&m.MAC}, toPort, fields{&m.Port}}
	}),
	of("ingress.unicast.routes", func(r *switchspec.Route, action string) row {
		if action != "" {
			r.To = switchspec.RouteTo(slices.Index(routeActions[:], action)) //nolint:gosec // the table has no other actions
		}
		if r.To == switchspec.ToNextHop || r.To == switchspec.ToECMP {
			return row{fields{&r.Dst}, routeActions[r.To], fields{&r.Number}}
		}
		return row{fields{&r.Dst}, routeActions[r.To], nil}
	}),
	{"ingress.unicast.ecmp_groups",
		func(e switchspec.Entity) (entry, bool) {
			g, ok := e.(switchspec.ECMPGroup)
			return entry{key: fields{&g.ID}.numbers(), set: g.Hops}, ok
		},
		func(e entry) switchspec.Entity {
			slices.SortFunc(e.set, func(x, y switchspec.ECMPHop) int { return cmp.Compare(x.NextHop, y.NextHop) })
			g := switchspec.ECMPGroup{Hops: e.set}
			fields{&g.ID}.set(e.key)
			return g
		}},
	of("ingress.unicast.next_hops", func(h *switchspec.NextHop, _ string) row {
		return row{fields{&h.ID}, toPort, fields{&h.Port}}
	}),
	of("egress.neighbour.neighbours", func(n *switchspec.Neighbor, _ string) row {
		return row{fields{&n.NextHop}, "egress.neighbour.rewrite", fields{&n.Src, &n.Dst}}
	}),
	of("ingress.replication.groups", func(m *switchspec.Match, _ string) row {
		return row{fields{&m.Src, &m.MCID, &m.Dst}, "ingress.replication.replicate", fields{&m.Group, &m.FirstPRE, &m.PREGroups}}
	}),
	of("egress.rewrite.replicas", func(r *switchspec.Replica, action string) row {
		r.Last = r.Last || action == toReceiver
		if r.Last {
			return row{fields{&r.Group, &r.RID}, toReceiver, fields{&r.Dst, &r.QPN, &r.NextHop, &r.Neutral}}
		}
		return row{fields{&r.Group, &r.RID}, toBranch, fields{&r.Dst, &r.NextHop, &r.Neutral}}
	}),
	of("egress.rewrite.regions", func(r *switchspec.Region, _ string) row {
		return row{fields{&r.Group, &r.RID, &r.RKey, &r.First, &r.Last}, "egress.rewrite.translate", fields{&r.Offset, &r.NewRKey, &r.Neutral}}
	}),
	{members,
		func(e switchspec.Entity) (entry, bool) {
			if x, ok := bypassLayout.encode(e); ok {
				return x, true
			}
			return memberLayout.encode(e)
		},
		func(e entry) switchspec.Entity {
			if e.action == bypass {
				return bypassLayout.decode(e)
			}
			return memberLayout.decode(e)
		}},
	of("egress.ack_merge.merge_groups", func(g *switchspec.MergeGroup, _ string) row {
		return row{fields{&g.Slot}, "egress.ack_merge.merge", fields{&g.Members, &g.Epoch, &g.InitialPSN, &g.Learn, &g.Source, &g.SenderQPN, &g.CNPGap}}
	}),
	of("egress.ecn.ports", func(p *switchspec.ECNPort, _ string) row {
		return row{fields{&p.Port}, "egress.ecn.red", fields{&p.KMin, &p.KMax, &p.PMax}}
	}),
}

// encode turns an entity into P4Runtime's.
func (s *schema) encode(e switchspec.Entity) (*p4.Entity, error) {
	if g, ok := e.(switchspec.PREGroup); ok {
		m := &p4.MulticastGroupEntry{MulticastGroupId: uint32(g.ID)}
		for _, r := range g.Replicas {
			m.Replicas = append(m.Replicas, &p4.Replica{PortKind: &p4.Replica_EgressPort{EgressPort: uint32(r.Port)}, Instance: uint32(r.Instance)}) //nolint:staticcheck // bmv2 knows no other
		}
		return &p4.Entity{Entity: &p4.Entity_PacketReplicationEngineEntry{PacketReplicationEngineEntry: &p4.PacketReplicationEngineEntry{
			Type: &p4.PacketReplicationEngineEntry_MulticastGroupEntry{MulticastGroupEntry: m}}}}, nil
	}
	for _, l := range layouts {
		if x, ok := l.encode(e); ok {
			te, err := s.tableEntry(s.tables[l.table], x)
			return &p4.Entity{Entity: &p4.Entity_TableEntry{TableEntry: te}}, err
		}
	}
	return nil, fmt.Errorf("p4rt: nothing is known of a %T", e)
}

func (s *schema) tableEntry(t *table, x entry) (*p4.TableEntry, error) {
	te := &p4.TableEntry{TableId: t.id, IsDefaultAction: len(t.fields) == 0}
	key := x.key
	for _, f := range t.fields {
		m := &p4.FieldMatch{FieldId: f.GetId()}
		switch f.GetMatchType() {
		case p4cfg.MatchField_LPM:
			m.FieldMatchType = &p4.FieldMatch_Lpm{Lpm: &p4.FieldMatch_LPM{Value: number(key[0]), PrefixLen: int32(key[1])}} //nolint:gosec // up to 32
			if key[1] == 0 {
				m = nil // "don't care" is said by leaving it out
			}
			key = key[2:]
		case p4cfg.MatchField_RANGE:
			te.Priority = 1
			m.FieldMatchType = &p4.FieldMatch_Range_{Range: &p4.FieldMatch_Range{Low: number(key[0]), High: number(key[1])}}
			if key[0] == 0 && key[1] == math.MaxUint64>>(64-f.GetBitwidth()) {
				m = nil
			}
			key = key[2:]
		default:
			m.FieldMatchType = &p4.FieldMatch_Exact_{Exact: &p4.FieldMatch_Exact{Value: number(key[0])}}
			key = key[1:]
		}
		if m != nil {
			te.Match = append(te.Match, m)
		}
	}
	if x.action != "" {
		a, err := s.call(x.action, x.args...)
		te.Action = &p4.TableAction{Type: &p4.TableAction_Action{Action: a}}
		return te, err
	}
	set := &p4.ActionProfileActionSet{}
	for _, h := range x.set {
		a, err := s.call(toNextHop, uint64(h.NextHop))
		if err != nil {
			return nil, err
		}
		set.ActionProfileActions = append(set.ActionProfileActions, &p4.ActionProfileAction{Action: a, Weight: int32(h.Weight)})
	}
	te.Action = &p4.TableAction{Type: &p4.TableAction_ActionProfileActionSet{ActionProfileActionSet: set}}
	return te, nil
}

// decode turns P4Runtime's entity into ours. Errors wrap ErrForeign.
func (s *schema) decode(e *p4.Entity) (switchspec.Entity, error) {
	if m := e.GetPacketReplicationEngineEntry().GetMulticastGroupEntry(); m != nil {
		return decodePRE(m)
	}
	te := e.GetTableEntry()
	l, t, err := s.layout(te)
	if err != nil {
		return nil, err
	}
	x, err := s.parts(t, te)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", t.name, err)
	}
	return l.decode(x), nil
}

// layout finds what kind of entity is in an entry's table.
func (s *schema) layout(te *p4.TableEntry) (layout, *table, error) {
	t := s.byTable[te.GetTableId()]
	if t == nil {
		return layout{}, nil, fmt.Errorf("%w: an entity that is neither in a table nor a PRE group", ErrForeign)
	}
	for _, l := range layouts {
		if l.table == t.name {
			return l, t, nil
		}
	}
	return layout{}, nil, fmt.Errorf("%w: table %s is not the agent's", ErrForeign, t.name)
}

func decodePRE(m *p4.MulticastGroupEntry) (switchspec.Entity, error) {
	g := switchspec.PREGroup{ID: uint16(m.GetMulticastGroupId())} //nolint:gosec // checked below
	bad := m.GetMulticastGroupId() > math.MaxUint16
	for _, r := range m.GetReplicas() {
		port := uint64(r.GetEgressPort()) //nolint:staticcheck // what bmv2 reads back
		if b := r.GetPort(); len(b) > 0 {
			v, err := value(b, 64)
			if err != nil {
				return nil, err
			}
			port = v
		}
		bad = bad || port > math.MaxUint16 || r.GetInstance() > math.MaxUint16
		g.Replicas = append(g.Replicas, switchspec.PREReplica{Port: uint16(port), Instance: uint16(r.GetInstance())}) //nolint:gosec // checked here
	}
	if bad {
		return nil, fmt.Errorf("%w: multicast group %v has numbers of more than 16 bits", ErrForeign, m)
	}
	slices.SortFunc(g.Replicas, switchspec.PREReplica.Compare)
	return g, nil
}

// parts takes an entry apart.
func (s *schema) parts(t *table, te *p4.TableEntry) (x entry, err error) {
	if x.key, err = s.key(t, te); err != nil {
		return x, err
	}
	a := te.GetAction().GetType()
	if _, set := a.(*p4.TableAction_ActionProfileActionSet); set != t.set {
		return x, fmt.Errorf("%w: an entry with %T", ErrForeign, a)
	}
	switch a := a.(type) {
	case *p4.TableAction_Action:
		x.action, x.args, err = s.called(t, a.Action)
	case *p4.TableAction_ActionProfileActionSet:
		for _, h := range a.ActionProfileActionSet.GetActionProfileActions() {
			_, args, e := s.called(t, h.GetAction())
			if e != nil || len(args) != 1 || h.GetWeight() < 1 || h.GetWeight() > math.MaxUint16 {
				return x, fmt.Errorf("%w: %v in a selector", ErrForeign, h)
			}
			x.set = append(x.set, switchspec.ECMPHop{NextHop: uint16(args[0]), Weight: uint16(h.GetWeight())}) //nolint:gosec // 16 bits
		}
	default:
		err = fmt.Errorf("%w: an entry with %T", ErrForeign, a)
	}
	return x, err
}

// key takes an entry's key apart. LPM and range fields that are left out match
// everything.
func (s *schema) key(t *table, te *p4.TableEntry) (key []uint64, err error) {
	number := func(b []byte, width int32) {
		v, e := value(b, width)
		if e != nil {
			err = e
		}
		key = append(key, v)
	}
	used, priority := 0, int32(0)
	for _, f := range t.fields {
		var m *p4.FieldMatch // nil: left out
		if i := slices.IndexFunc(te.GetMatch(), func(m *p4.FieldMatch) bool { return m.GetFieldId() == f.GetId() }); i >= 0 {
			m = te.GetMatch()[i]
			used++
		}
		exact, lpm, within := m.GetExact(), m.GetLpm(), m.GetRange()
		switch kind := f.GetMatchType(); {
		case kind == p4cfg.MatchField_EXACT && exact != nil:
			number(exact.GetValue(), f.GetBitwidth())
		case kind == p4cfg.MatchField_LPM && (m == nil || lpm != nil):
			number(lpm.GetValue(), f.GetBitwidth())
			if n := lpm.GetPrefixLen(); n < 0 || n > f.GetBitwidth() {
				return nil, fmt.Errorf("%w: a prefix of %d bits", ErrForeign, n)
			}
			key = append(key, uint64(lpm.GetPrefixLen())) //nolint:gosec // not negative
		case kind == p4cfg.MatchField_RANGE && m == nil:
			key, priority = append(key, 0, math.MaxUint64>>(64-f.GetBitwidth())), 1
		case kind == p4cfg.MatchField_RANGE && within != nil:
			number(within.GetLow(), f.GetBitwidth())
			number(within.GetHigh(), f.GetBitwidth())
			priority = 1
		default:
			return nil, fmt.Errorf("%w: field %s matches by %v", ErrForeign, f.GetName(), m)
		}
	}
	if used != len(te.GetMatch()) || te.GetPriority() != priority {
		return nil, fmt.Errorf("%w: an entry of priority %d by %v", ErrForeign, te.GetPriority(), te.GetMatch())
	}
	return key, err
}
