package bpf

import "encoding/binary"

// The types here are those of the C source, field by field. Numbers are the machine's, addresses
// and QPNs those of the wire: [4]byte. A test compares sizes and places with the object's.

// Sizes of tables, and how many members a group has.
const (
	MaxMembers = 16
	Slots      = 16384
)

// Kinds of answers that are counted for each member.
const (
	Acks = iota
	SequenceNAKs
	RNRNAKs
	FatalNAKs
	CNPs
	Kinds
)

// DropUpdate is the reason of an answer that met half an update of the tables. The others are
// those of bmv2.DropReasons, by the same numbers.
const DropUpdate = 32

// MemberKey is the key of map merge_members: an answer's addresses, and what it is for; the first byte of the QPN is 0.
type MemberKey struct{ Src, Dst, DestQP [4]byte }

// Member is its value: a group's slot, and which of its members answers.
type Member struct {
	Slot   uint32
	Index  uint16
	Bypass uint16 // 1: to the sender's queue pair itself
}

// Group is the value of map merge_groups, by slot: pkg/ackmerge.Config, and how the sender is addressed.
type Group struct {
	CNPGap     uint64 // ns
	InitialPSN uint32
	Members    uint16
	Epoch      uint16
	Learn      uint8
	_          [7]byte
	Source     [4]byte
	SenderQPN  [4]byte // the first byte is 0
}

// Record is what a member has acknowledged, or the sender was told.
type Record struct{ MSN, PSN, Epoch uint32 }

// Slot is the value of map merge_slots: the state of a group. The kernel writes it.
type Slot struct {
	_       [8]byte // the lock
	Acked   [MaxMembers]Record
	Passed  Record
	_       [4]byte
	CNPAt   uint64 // ns
	Answers uint64
	Counts  [MaxMembers][Kinds]uint64
}

// Modes of the ICRC, as in p4src/headers.p4.
const (
	Recompute = iota
	CheckOff
	Neutral
)

// Settings is the value of map settings, which has one.
type Settings struct {
	ICRCMode uint32
	HashSeed uint32
	Climbs   uint32 // 1: everything: user space owns all state
	Told     uint32 // 1: Now is the time, for tests
	Now      uint64 // ns
}

// What map handled counts: packets that were neither dropped nor left to user space.
const (
	Routed = iota
	Requests
	Copies
	PassedOn // answers
	Handled
)

// Count is the value of map handled, of map drops, by reason, and of ecn_seen, by port, on each processor; and of counters, by the
// numbers that entries have, for all of them.
type Count struct{ Packets, Bytes uint64 }

// MAC is a MAC as a key of maps router_macs and bridge, whose value is a port, and a value of port_hosts.
type MAC struct {
	At [6]byte
	_  [2]byte
}

// Port is the value of map ports_in, by interface.
type Port struct {
	Number, Guarded uint32
	Flood           uint32 // the set of its bridge's ports; 0: it has none
}

// PortHost is the key of map port_hosts.
type PortHost struct {
	Port uint32
	IP   [4]byte
}

// Prefix is the key of map routes.
type Prefix struct {
	Bits uint32
	Dst  [4]byte
}

// Route is its value.
type Route struct {
	NextHop uint16
	ECMP    uint16 // if not 0, NextHop is 0
	Climbs  uint32 // 1: the agent's, or none
}

// MaxPaths is how many paths the kernel chooses from, each as often as its weight says.
const MaxPaths = 64

// Paths is the value of map ecmp_groups.
type Paths struct {
	N        uint32 // 0: none that the kernel can choose from
	NextHops [MaxPaths]uint16
}

// NextHop is the value of map next_hops.
type NextHop struct {
	Port  uint32
	Known uint32 // 1: its MAC is
	Dst   [6]byte
	Src   [6]byte
}

// GroupKey is the key of map groups: what a request comes with. The first byte of the MC_ID is 0.
type GroupKey struct{ Src, Dst, MCID [4]byte }

// Multicast is its value.
type Multicast struct {
	Group, FirstPREGroup, PREGroups uint32
	Climbs                          uint32 // 1: what must be done for some copy cannot be done here
	Regions                         uint32 // how many; 0: no copy is its receiver's. The first is what follows
	Counter                         uint32
	Span                            Span
	RKey                            [4]byte
	_                               [4]byte
}

// GroupRegion is the key of map group_regions, of the others.
type GroupRegion struct {
	Group uint32
	RKey  [4]byte
}

// Span is its value: virtual addresses, both ends included, at which all copies can be rewritten.
type Span struct{ First, Last uint64 }

// Ending is set in a number in map generation when tables are about to change: no more copies are made then. The number is odd while they
// do.
const Ending = 2

// Cells is how many numbers map generation has beside the first, which is for all packets.
const Cells = 1 << cellBits

const cellBits = 14

// CellOf is the number in map generation of a group's packets, and of its answers: by its sender, and by the QPN that both are for.
func CellOf(sender, qpn [4]byte) uint32 {
	h := binary.BigEndian.Uint32(sender[:])*0x9e3779b1 ^ binary.BigEndian.Uint32(qpn[:])*0x85ebca6b
	h ^= h >> 15
	return 1 + h*0xc2b2ae35>>(32-cellBits)
}

// CopyCells is how many copies there is room for.
const CopyCells = 131072

// An Out is an interface that packets leave by, and the descriptor of the program copy_out: all packets for an
// interface meet one program, whichever map they go by.
type Out struct{ Interface, Program uint32 }

// PREGroup is the value of map pre_groups: the ports that are copied to, and the first of the copies in map copies.
type PREGroup struct {
	Set   uint16 // 0: none
	N     uint16
	First uint32
}

// PlaceKey is the key of map places, whose value is which copy of a PRE group with this set goes there.
type PlaceKey struct{ Set, Interface uint32 }

// Copy is the value of map copies. ID and SrcPort are the change that keeps the ICRC, in network order.
type Copy struct {
	Dst       [4]byte
	QPN       [4]byte // the first byte is 0
	ID        [2]byte
	SrcPort   [2]byte
	PREGroup  uint16
	Last      uint8 // 1: it is its receiver's
	Known     uint8 // 1: the next hop's MAC is
	Interface uint32
	Number    uint32 // that its other regions refer to
	Counter   uint32
	Port      uint32
	EthDst    [6]byte
	EthSrc    [6]byte
	Regions   uint32  // 1: it has what follows
	RKey      [4]byte // of its first region
	Region    Region
}

// RegionKey is the key of map regions, the others of copies.
type RegionKey struct {
	Copy uint32
	RKey [4]byte
}

// Region is its value, for the addresses that the group's region has.
type Region struct {
	RKey    [4]byte
	ID      [2]byte
	SrcPort [2]byte
	Counter uint32
}
