package switchspec

import (
	"cmp"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// Errors that those of this package wrap.
var (
	ErrInvalid  = errors.New("invalid entity")
	ErrDangling = errors.New("dangling reference")
	ErrConflict = errors.New("change does not fit the state")
)

// Kind is a type of entities.
type Kind uint8

// The kinds of entities, in the order in which they are sorted.
const (
	KindSettings Kind = iota + 1
	KindPREGroup
	KindNeighbor
	KindNextHop
	KindECMPGroup
	KindRouterMAC
	KindARPTarget
	KindRoute
	KindBridgeMAC
	KindBridgePort
	KindPortHost
	KindGuardedPort
	KindECNPort
	KindReplica
	KindRegion
	KindMergeGroup
	KindMergeMember
	KindBypass
	KindMatch
)

// kinds are what is known of each kind, and the stages at which its entities are
// inserted and deleted.
var kinds = [...]struct {
	name             string
	inserts, deletes int
}{
	KindSettings:    {"settings", stageBase, stageLast},
	KindPREGroup:    {"PRE group", stageRewrite, stageBare},
	KindNeighbor:    {"neighbor", stageBase, stageLast},
	KindNextHop:     {"next hop", stageRewrite, stageBare},
	KindECMPGroup:   {"ECMP group", stageChoice, stageStrip},
	KindRouterMAC:   {"router MAC", stageSwitch, stageLeave},
	KindARPTarget:   {"ARP target", stageSwitch, stageLeave},
	KindRoute:       {"route", stageSwitch, stageLeave},
	KindBridgeMAC:   {"bridge MAC", stageSwitch, stageLeave},
	KindBridgePort:  {"bridge port", stageSwitch, stageLeave},
	KindPortHost:    {"port host", stageBase, stageBare},
	KindGuardedPort: {"guarded port", stageSwitch, stageLeave},
	KindECNPort:     {"ECN port", stageBase, stageLeave},
	KindReplica:     {"replica", stageRewrite, stageStrip},
	KindRegion:      {"region", stageRewrite, stageCleanup},
	KindMergeGroup:  {"merge group", stageBase, stageStrip},
	KindMergeMember: {"merge member", stageRewrite, stageLeave},
	KindBypass:      {"bypass", stageBase, stageLast},
	KindMatch:       {"group match", stageAttach, stageDetach},
}

// Kinds is the number of kinds; the kinds are 1 to Kinds.
const Kinds = len(kinds) - 1

func (k Kind) String() string {
	if k == 0 || int(k) > Kinds {
		return fmt.Sprintf("kind %d", uint8(k))
	}
	return kinds[k].name
}

// A Key identifies an entity in a State. Keys are comparable and ordered; what
// stands in them depends on the kind.
type Key struct {
	kind       Kind
	a, b, c, d uint64
}

// Kind is the kind of entity that the key is of.
func (k Key) Kind() Kind { return k.kind }

func (k Key) compare(o Key) int {
	return cmp.Or(cmp.Compare(k.kind, o.kind), cmp.Compare(k.a, o.a), cmp.Compare(k.b, o.b), cmp.Compare(k.c, o.c), cmp.Compare(k.d, o.d))
}

// An Entity is one of the types of this package whose names are kinds.
type Entity interface {
	// Key identifies the entity among those of a switch. It is meaningless for an
	// entity that State.Put refuses.
	Key() Key
	check() error
}

// equal reports whether two entities are the same.
func equal(e, o Entity) bool {
	switch e := e.(type) {
	case PREGroup:
		o, ok := o.(PREGroup)
		return ok && e.ID == o.ID && slices.Equal(e.Replicas, o.Replicas)
	case ECMPGroup:
		o, ok := o.(ECMPGroup)
		return ok && e.ID == o.ID && slices.Equal(e.Hops, o.Hops)
	}
	return e == o
}

// MAC is an Ethernet address.
type MAC [6]byte

func (m MAC) String() string {
	return fmt.Sprintf("%02x:%02x:%02x:%02x:%02x:%02x", m[0], m[1], m[2], m[3], m[4], m[5])
}

// MarshalText implements encoding.TextMarshaler, for files.
func (m MAC) MarshalText() ([]byte, error) { return []byte(m.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (m *MAC) UnmarshalText(text []byte) error {
	var out MAC
	parts := strings.Split(string(text), ":")
	if len(parts) != len(out) {
		return bad("%q is not a MAC address: want six pairs of hex digits with colons, as 02:00:00:00:00:01", text)
	}
	for i, p := range parts {
		b, err := hex.DecodeString(p)
		if err != nil || len(b) != 1 {
			return bad("%q is not a MAC address: %q is not a pair of hex digits", text, p)
		}
		out[i] = b[0]
	}
	*m = out
	return nil
}

// IsStation reports whether it can be the address of a station: the group bit is not set, and the
// address is not zero, which means unknown.
func (m MAC) IsStation() bool { return m != MAC{} && m[0]&1 == 0 }

func (m MAC) number() uint64 {
	return binary.BigEndian.Uint64([]byte{0, 0, m[0], m[1], m[2], m[3], m[4], m[5]})
}

// Limits of the program's numbers.
const (
	MaxPort    = 510 // 511 means "drop"
	MaxQPN     = 1<<24 - 1
	MaxPSN     = 1<<24 - 1
	MaxMembers = 16        // of a merge group
	MaxPackets = 1 << 21   // of a group, that are not acknowledged: pkg/ackmerge
	MaxDepth   = 1<<19 - 1 // of queues, as the switch tells it
	MaxSlot    = 16383
)

func ip(a netip.Addr) uint64 {
	if a = a.Unmap(); !a.Is4() {
		return 0
	}
	b := a.As4()
	return uint64(binary.BigEndian.Uint32(b[:]))
}

func bad(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrInvalid, fmt.Sprintf(format, args...))
}

// rules returns the first of the conditions that does not hold.
type rule struct {
	ok   bool
	text string
}

func rules(what fmt.Stringer, list ...rule) error {
	for _, r := range list {
		if !r.ok {
			return bad("%v: %s", what, r.text)
		}
	}
	return nil
}

// ICRC is what becomes of the ICRC.
type ICRC uint8

// What becomes of the ICRC.
const (
	ICRCRecompute ICRC = iota // checked on the way in, recomputed where something has changed
	ICRCOff                   // neither
	// ICRCNeutral: constants of replicas and regions keep it right. A copy without is
	// checked and recomputed.
	ICRCNeutral
)

func (i ICRC) String() string {
	if int(i) < len(icrcNames) {
		return icrcNames[i]
	}
	return fmt.Sprintf("mode %d", uint8(i))
}

var icrcNames = [...]string{"recompute", "off", "neutral"}

// Settings are those of the switch as a whole. A State without any has the zero
// value.
type Settings struct {
	ICRC     ICRC
	HashSeed uint32 // of the choice among equal paths
	// Whose epochs the registers hold, and that all of them are of uses of slots with
	// lower numbers. The program does not look at them.
	Owner   uint64 // 0: none
	Numbers uint64
}

// Key implements Entity.
func (Settings) Key() Key { return Key{kind: KindSettings} }

func (s Settings) String() string {
	return fmt.Sprintf("settings: ICRC %v, hash seed %d, owner %016x, numbers to %d", s.ICRC, s.HashSeed, s.Owner, s.Numbers)
}
func (s Settings) check() error {
	return rules(s, rule{s.ICRC <= ICRCNeutral, "there is no such mode of the ICRC"})
}

// BridgePort is a port that bridges.
type BridgePort struct {
	Port       uint16
	FloodGroup uint16 // PRE group that unknown and broadcast MACs go to; 0: none
}

// Key implements Entity.
func (p BridgePort) Key() Key { return Key{kind: KindBridgePort, a: uint64(p.Port)} }

func (p BridgePort) String() string {
	return fmt.Sprintf("bridge port %d: flood group %d", p.Port, p.FloodGroup)
}
func (p BridgePort) check() error {
	return rules(p, rule{p.Port <= MaxPort, "the port is more than 510"})
}

// BridgeMAC is a station behind a port that bridges.
type BridgeMAC struct {
	MAC  MAC
	Port uint16
}

// Key implements Entity.
func (m BridgeMAC) Key() Key { return Key{kind: KindBridgeMAC, a: m.MAC.number()} }

func (m BridgeMAC) String() string { return fmt.Sprintf("bridge %v: port %d", m.MAC, m.Port) }
func (m BridgeMAC) check() error {
	return rules(m, rule{m.Port <= MaxPort, "the port is more than 510"})
}

// RouterMAC is an address of the router: frames to it are routed.
type RouterMAC struct{ MAC MAC }

// Key implements Entity.
func (m RouterMAC) Key() Key { return Key{kind: KindRouterMAC, a: m.MAC.number()} }

func (m RouterMAC) String() string { return fmt.Sprintf("router MAC %v", m.MAC) }
func (m RouterMAC) check() error   { return nil }

// ARPTarget is an address for which the agent answers ARP.
type ARPTarget struct{ Addr netip.Addr }

// Key implements Entity.
func (t ARPTarget) Key() Key { return Key{kind: KindARPTarget, a: ip(t.Addr)} }

func (t ARPTarget) String() string { return fmt.Sprintf("ARP target %v", t.Addr) }
func (t ARPTarget) check() error {
	return rules(t, rule{t.Addr.Is4(), "the address is not IPv4"})
}

// RouteTo says where a route leads.
type RouteTo uint8

// Where routes lead.
const (
	ToNowhere RouteTo = iota // packets are dropped
	ToNextHop
	ToECMP
	ToAgent
)

// Route is a unicast route.
type Route struct {
	Dst    netip.Prefix
	To     RouteTo
	Number uint16 // next hop or ECMP group; else 0
}

// Key implements Entity.
func (r Route) Key() Key {
	return Key{kind: KindRoute, a: ip(r.Dst.Addr()), b: uint64(r.Dst.Bits())} //nolint:gosec // -1 only for what Put refuses
}

func (r Route) String() string {
	to := map[RouteTo]string{ToNowhere: "nowhere", ToNextHop: fmt.Sprint("next hop ", r.Number), ToECMP: fmt.Sprint("ECMP group ", r.Number), ToAgent: "the agent"}[r.To]
	return fmt.Sprintf("route %v: to %s", r.Dst, to)
}
func (r Route) check() error {
	numbered := r.To == ToNextHop || r.To == ToECMP
	return rules(r,
		rule{r.Dst.IsValid() && r.Dst.Addr().Is4(), "the destination is not an IPv4 prefix"},
		rule{r.Dst == r.Dst.Masked(), "the destination has bits outside of its mask"},
		rule{r.To <= ToAgent, "there is no such kind of route"},
		rule{numbered == (r.Number != 0), "next hops and ECMP groups have numbers from 1 on, other routes have none"})
}

// ECMPHop is one of the next hops of an ECMP group.
type ECMPHop struct {
	NextHop uint16
	Weight  uint16 // share of the flows; 1 or more
}

// ECMPGroup is a set of next hops among which flows are spread.
type ECMPGroup struct {
	ID   uint16
	Hops []ECMPHop // in ascending order of next hops
}

// Key implements Entity.
func (g ECMPGroup) Key() Key { return Key{kind: KindECMPGroup, a: uint64(g.ID)} }

func (g ECMPGroup) String() string { return fmt.Sprintf("ECMP group %d: %v", g.ID, g.Hops) }
func (g ECMPGroup) check() error {
	err := rules(g, rule{g.ID != 0, "the number is 0"}, rule{len(g.Hops) > 0, "there are no next hops"})
	for i, h := range g.Hops {
		err = errors.Join(err, rules(g, rule{h.NextHop != 0 && h.Weight != 0, "a next hop or a weight is 0"},
			rule{i == 0 || g.Hops[i-1].NextHop < h.NextHop, "the next hops are not in ascending order"}))
	}
	return err
}

// NextHop is the port toward a next hop. Its MACs are in the Neighbor of the
// same number.
type NextHop struct {
	ID   uint16
	Port uint16
}

// Key implements Entity.
func (h NextHop) Key() Key { return Key{kind: KindNextHop, a: uint64(h.ID)} }

func (h NextHop) String() string { return fmt.Sprintf("next hop %d: port %d", h.ID, h.Port) }
func (h NextHop) check() error {
	return rules(h, rule{h.ID != 0, "the number is 0"}, rule{h.Port <= MaxPort, "the port is more than 510"})
}

// Neighbor holds the MACs of frames to a next hop.
type Neighbor struct {
	NextHop  uint16
	Src, Dst MAC
}

// Key implements Entity.
func (n Neighbor) Key() Key { return Key{kind: KindNeighbor, a: uint64(n.NextHop)} }

func (n Neighbor) String() string {
	return fmt.Sprintf("neighbor %d: from %v to %v", n.NextHop, n.Src, n.Dst)
}
func (n Neighbor) check() error {
	return rules(n, rule{n.NextHop != 0, "the number is 0"})
}

// ECNPort marks packets that leave by a port.
type ECNPort struct {
	Port       uint16
	KMin, KMax uint32 // queue depth, as the switch tells it
	PMax       uint16 // probability at KMax, in 1/65536
}

// Key implements Entity.
func (p ECNPort) Key() Key { return Key{kind: KindECNPort, a: uint64(p.Port)} }

func (p ECNPort) String() string {
	return fmt.Sprintf("ECN port %d: depths of %d to %d, %d/65536", p.Port, p.KMin, p.KMax, p.PMax)
}
func (p ECNPort) check() error {
	return rules(p, rule{p.Port <= MaxPort, "the port is more than 510"},
		rule{p.KMin <= p.KMax && p.KMax <= MaxDepth, "the depths are not in order, or more than 19 bits"})
}
