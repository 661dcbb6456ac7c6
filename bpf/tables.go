package bpf

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

// Settings is the value of map settings, which has one.
type Settings struct {
	ICRCOff uint32
	Told    uint32 // 1: Now is the time, for tests
	Now     uint64 // ns
}

// Count is the value of map drops, by reason, on each processor.
type Count struct{ Packets, Bytes uint64 }
