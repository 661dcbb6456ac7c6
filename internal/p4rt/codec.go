package p4rt

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"math"
	"net/netip"
	"slices"

	p4cfg "github.com/p4lang/p4runtime/go/p4/config/v1"
	p4 "github.com/p4lang/p4runtime/go/p4/v1"

	"github.com/mcrdma/mcrdma/internal/switchspec"
	"github.com/mcrdma/mcrdma/pkg/bifurcation"
)

// An entry is an entry of a table in numbers: of each key field one, of LPM and
// range fields two (value and prefix length, first and last).
type entry struct {
	key    []uint64
	action string
	args   []uint64
	set    []switchspec.ECMPHop // instead, with a selector
}

// A layout says how one kind of entities is laid out in a table.
type layout struct {
	table  string
	encode func(switchspec.Entity) (entry, bool) // false: of another kind
	decode func(entry) (switchspec.Entity, error)
}

func addr(v uint64) netip.Addr {
	return netip.AddrFrom4([4]byte(binary.BigEndian.AppendUint32(nil, uint32(v)))) //nolint:gosec // fields of 32 bits
}

func u32(a netip.Addr) uint64 {
	b := a.As4()
	return uint64(binary.BigEndian.Uint32(b[:]))
}

func mac(v uint64) switchspec.MAC { return switchspec.MAC(binary.BigEndian.AppendUint64(nil, v)[2:]) }

func u48(m switchspec.MAC) uint64 {
	return binary.BigEndian.Uint64(append([]byte{0, 0}, m[:]...))
}

func bit(b bool) uint64 {
	if b {
		return 1
	}
	return 0
}

// of makes a layout of the conversions of one type. Those of the entry back to the
// entity need not check widths: the switch keeps fields in theirs.
func of[T switchspec.Entity](table string, encode func(T) entry, decode func(k, a []uint64, name string) T) layout {
	return layout{table,
		func(e switchspec.Entity) (entry, bool) {
			x, ok := e.(T)
			if !ok {
				return entry{}, false
			}
			return encode(x), true
		},
		func(x entry) (switchspec.Entity, error) {
			return decode(x.key, append(x.args, make([]uint64, 8)...), x.action), nil
		}}
}

func nums(v ...uint64) []uint64 { return v }

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
)

var routeActions = [...]string{
	switchspec.ToNowhere: toNowhere, switchspec.ToNextHop: toNextHop, switchspec.ToECMP: toECMP, switchspec.ToAgent: toAgent,
}

//nolint:gosec // fields have the widths of their types
var layouts = []layout{
	of("ingress.settings",
		func(s switchspec.Settings) entry {
			return entry{action: "ingress.configure", args: nums(uint64(s.ICRC), uint64(s.HashSeed), s.Owner, s.Numbers)}
		},
		func(_, a []uint64, _ string) switchspec.Settings {
			return switchspec.Settings{ICRC: switchspec.ICRC(a[0]), HashSeed: uint32(a[1]), Owner: a[2], Numbers: a[3]}
		}),
	of("ingress.bridge_ports",
		func(p switchspec.BridgePort) entry {
			return entry{key: nums(uint64(p.Port)), action: "ingress.bridge_port", args: nums(uint64(p.FloodGroup))}
		},
		func(k, a []uint64, _ string) switchspec.BridgePort {
			return switchspec.BridgePort{Port: uint16(k[0]), FloodGroup: uint16(a[0])}
		}),
	of("ingress.guard.guarded_ports",
		func(p switchspec.GuardedPort) entry { return entry{key: nums(uint64(p.Port)), action: noAction} },
		func(k, _ []uint64, _ string) switchspec.GuardedPort {
			return switchspec.GuardedPort{Port: uint16(k[0])}
		}),
	of("ingress.guard.port_hosts",
		func(h switchspec.PortHost) entry {
			return entry{key: nums(uint64(h.Port), u32(h.Addr)), action: "ingress.guard.host", args: nums(u48(h.MAC))}
		},
		func(k, a []uint64, _ string) switchspec.PortHost {
			return switchspec.PortHost{Port: uint16(k[0]), Addr: addr(k[1]), MAC: mac(a[0])}
		}),
	of("ingress.unicast.router_macs",
		func(m switchspec.RouterMAC) entry { return entry{key: nums(u48(m.MAC)), action: noAction} },
		func(k, _ []uint64, _ string) switchspec.RouterMAC { return switchspec.RouterMAC{MAC: mac(k[0])} }),
	of("ingress.unicast.arp_targets",
		func(t switchspec.ARPTarget) entry { return entry{key: nums(u32(t.Addr)), action: noAction} },
		func(k, _ []uint64, _ string) switchspec.ARPTarget { return switchspec.ARPTarget{Addr: addr(k[0])} }),
	of("ingress.unicast.bridge",
		func(m switchspec.BridgeMAC) entry {
			return entry{key: nums(u48(m.MAC)), action: toPort, args: nums(uint64(m.Port))}
		},
		func(k, a []uint64, _ string) switchspec.BridgeMAC {
			return switchspec.BridgeMAC{MAC: mac(k[0]), Port: uint16(a[0])}
		}),
	of("ingress.unicast.routes",
		func(r switchspec.Route) entry {
			e := entry{key: nums(u32(r.Dst.Addr()), uint64(r.Dst.Bits())), action: routeActions[r.To]}
			if r.To == switchspec.ToNextHop || r.To == switchspec.ToECMP {
				e.args = nums(uint64(r.Number))
			}
			return e
		},
		func(k, a []uint64, name string) switchspec.Route {
			to := slices.Index(routeActions[:], name)
			return switchspec.Route{Dst: netip.PrefixFrom(addr(k[0]), int(k[1])), To: switchspec.RouteTo(to), Number: uint16(a[0])}
		}),
	{"ingress.unicast.ecmp_groups",
		func(e switchspec.Entity) (entry, bool) {
			g, ok := e.(switchspec.ECMPGroup)
			return entry{key: nums(uint64(g.ID)), set: g.Hops}, ok
		},
		func(e entry) (switchspec.Entity, error) {
			slices.SortFunc(e.set, func(x, y switchspec.ECMPHop) int { return cmp.Compare(x.NextHop, y.NextHop) })
			return switchspec.ECMPGroup{ID: uint16(e.key[0]), Hops: e.set}, nil
		}},
	of("ingress.unicast.next_hops",
		func(h switchspec.NextHop) entry {
			return entry{key: nums(uint64(h.ID)), action: toPort, args: nums(uint64(h.Port))}
		},
		func(k, a []uint64, _ string) switchspec.NextHop {
			return switchspec.NextHop{ID: uint16(k[0]), Port: uint16(a[0])}
		}),
	of("egress.neighbour.neighbours",
		func(n switchspec.Neighbor) entry {
			return entry{key: nums(uint64(n.NextHop)), action: "egress.neighbour.rewrite", args: nums(u48(n.Src), u48(n.Dst))}
		},
		func(k, a []uint64, _ string) switchspec.Neighbor {
			return switchspec.Neighbor{NextHop: uint16(k[0]), Src: mac(a[0]), Dst: mac(a[1])}
		}),
	of("ingress.replication.groups",
		func(m switchspec.Match) entry {
			return entry{key: nums(u32(m.Src), uint64(m.MCID), u32(m.Dst)), action: "ingress.replication.replicate",
				args: nums(uint64(m.Group), uint64(m.FirstPRE), uint64(m.PREGroups))}
		},
		func(k, a []uint64, _ string) switchspec.Match {
			return switchspec.Match{Src: addr(k[0]), MCID: uint32(k[1]), Dst: addr(k[2]),
				Group: uint16(a[0]), FirstPRE: uint16(a[1]), PREGroups: uint16(a[2])}
		}),
	of("egress.rewrite.replicas",
		func(r switchspec.Replica) entry {
			e := entry{key: nums(uint64(r.Group), uint64(r.RID)), action: toBranch, args: nums(u32(r.Dst), uint64(r.NextHop), uint64(r.Neutral))}
			if r.Last {
				e.action, e.args = toReceiver, nums(u32(r.Dst), uint64(r.QPN), uint64(r.NextHop), uint64(r.Neutral))
			}
			return e
		},
		func(k, a []uint64, name string) switchspec.Replica {
			r := bifurcation.Rewrite{RID: uint16(k[1]), Dst: addr(a[0]), NextHop: uint16(a[1]), Neutral: uint32(a[2])}
			if name == toReceiver {
				r.Last, r.QPN, r.NextHop, r.Neutral = true, uint32(a[1]), uint16(a[2]), uint32(a[3])
			}
			return switchspec.Replica{Group: uint16(k[0]), Rewrite: r}
		}),
	of("egress.rewrite.regions",
		func(r switchspec.Region) entry {
			return entry{key: nums(uint64(r.Group), uint64(r.RID), uint64(r.RKey), r.First, r.Last),
				action: "egress.rewrite.translate", args: nums(r.Offset, uint64(r.NewRKey), uint64(r.Neutral))}
		},
		func(k, a []uint64, _ string) switchspec.Region {
			return switchspec.Region{Group: uint16(k[0]), Translation: bifurcation.Translation{RID: uint16(k[1]), RKey: uint32(k[2]),
				First: k[3], Last: k[4], Offset: a[0], NewRKey: uint32(a[1]), Neutral: uint32(a[2])}}
		}),
	{"egress.ack_merge.merge_members",
		func(e switchspec.Entity) (entry, bool) {
			switch m := e.(type) {
			case switchspec.MergeMember:
				return entry{key: nums(u32(m.Src), u32(m.Dst), uint64(m.DestQP)), action: "egress.ack_merge.from",
					args: nums(uint64(m.Slot), uint64(m.Index))}, true
			case switchspec.Bypass:
				return entry{key: nums(u32(m.Src), u32(m.Dst), uint64(m.QPN)), action: bypass}, true
			}
			return entry{}, false
		},
		func(e entry) (switchspec.Entity, error) {
			src, dst, qpn := addr(e.key[0]), addr(e.key[1]), uint32(e.key[2])
			if e.action == bypass {
				return switchspec.Bypass{Src: src, Dst: dst, QPN: qpn}, nil
			}
			a := append(e.args, 0, 0) // those of a key alone
			return switchspec.MergeMember{Src: src, Dst: dst, DestQP: qpn, Slot: uint16(a[0]), Index: uint8(a[1])}, nil
		}},
	of("egress.ack_merge.merge_groups",
		func(g switchspec.MergeGroup) entry {
			return entry{key: nums(uint64(g.Slot)), action: "egress.ack_merge.merge", args: nums(uint64(g.Members), uint64(g.Epoch),
				uint64(g.InitialPSN), bit(g.Learn), u32(g.Source), uint64(g.SenderQPN), uint64(g.CNPGap))}
		},
		func(k, a []uint64, _ string) switchspec.MergeGroup {
			return switchspec.MergeGroup{Slot: uint16(k[0]), Members: uint16(a[0]), Epoch: uint16(a[1]), InitialPSN: uint32(a[2]),
				Learn: a[3] == 1, Source: addr(a[4]), SenderQPN: uint32(a[5]), CNPGap: uint32(a[6])}
		}),
	of("egress.ecn.ports",
		func(p switchspec.ECNPort) entry {
			return entry{key: nums(uint64(p.Port)), action: "egress.ecn.red", args: nums(uint64(p.KMin), uint64(p.KMax), uint64(p.PMax))}
		},
		func(k, a []uint64, _ string) switchspec.ECNPort {
			return switchspec.ECNPort{Port: uint16(k[0]), KMin: uint32(a[0]), KMax: uint32(a[1]), PMax: uint16(a[2])}
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
	return l.decode(x)
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
	slices.SortFunc(g.Replicas, func(x, y switchspec.PREReplica) int {
		return cmp.Or(cmp.Compare(x.Port, y.Port), cmp.Compare(x.Instance, y.Instance))
	})
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
		var m *p4.FieldMatch
		if i := slices.IndexFunc(te.GetMatch(), func(m *p4.FieldMatch) bool { return m.GetFieldId() == f.GetId() }); i >= 0 {
			m = te.GetMatch()[i]
			used++
		}
		switch x := m.GetFieldMatchType().(type) {
		case *p4.FieldMatch_Exact_:
			number(x.Exact.GetValue(), f.GetBitwidth())
		case *p4.FieldMatch_Lpm:
			number(x.Lpm.GetValue(), f.GetBitwidth())
			key = append(key, uint64(x.Lpm.GetPrefixLen())) //nolint:gosec // a negative one is more than any width
			if key[len(key)-1] > uint64(f.GetBitwidth()) {  //nolint:gosec // not negative
				return nil, fmt.Errorf("%w: a prefix of %d bits", ErrForeign, x.Lpm.GetPrefixLen())
			}
		case *p4.FieldMatch_Range_:
			number(x.Range.GetLow(), f.GetBitwidth())
			number(x.Range.GetHigh(), f.GetBitwidth())
		case nil:
			key = append(key, 0, math.MaxUint64>>(64-f.GetBitwidth()))
			if f.GetMatchType() == p4cfg.MatchField_LPM {
				key[len(key)-1] = 0
			}
		}
		if m == nil && f.GetMatchType() == p4cfg.MatchField_EXACT || m != nil && matchType(m) != f.GetMatchType() {
			return nil, fmt.Errorf("%w: field %s matches by %v", ErrForeign, f.GetName(), m)
		}
		if f.GetMatchType() == p4cfg.MatchField_RANGE {
			priority = 1
		}
	}
	if used != len(te.GetMatch()) || te.GetPriority() != priority {
		return nil, fmt.Errorf("%w: an entry of priority %d by %v", ErrForeign, te.GetPriority(), te.GetMatch())
	}
	return key, err
}

func matchType(m *p4.FieldMatch) p4cfg.MatchField_MatchType {
	switch m.GetFieldMatchType().(type) {
	case *p4.FieldMatch_Exact_:
		return p4cfg.MatchField_EXACT
	case *p4.FieldMatch_Lpm:
		return p4cfg.MatchField_LPM
	case *p4.FieldMatch_Range_:
		return p4cfg.MatchField_RANGE
	}
	return p4cfg.MatchField_UNSPECIFIED
}
