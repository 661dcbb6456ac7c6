package rdmcfallback

// A Ring is an optional interface of a Transport, for small messages (DSN §4.6 "Small messages"):
// at each receiver a ring of slots into which the root writes messages directly. Either all members
// of a group have it or none. A wrapper with only a Transport's methods hides it.
//
// In small groups, small messages then take one hop to each receiver, instead of passing through a
// pipeline as blocks, each of which must be requested.
type Ring interface {
	// OpenRing is called at all members, before anything else, with the same numbers: each receiver
	// gets slots of size bytes each.
	OpenRing(slots, size int) error
	// PutSmall puts msg, of at most size bytes, with imm into the next slot at a peer. Only the
	// root calls it, and at most slots times more than it has seen the peer's slots freed
	// (EventFreed). When PutSmall returns, the caller may reuse msg.
	PutSmall(peer int, imm uint32, msg []byte) error
	// FreeSmall frees the n oldest slots of this receiver, at least one, for use by the root.
	FreeSmall(n int) error
}

const (
	// smallMax is the default of Config.SmallMax, in bytes (DSN §4.6).
	smallMax = 10 << 10
	// smallMembers is the maximum number of members of groups that use a ring: 16 receivers and the
	// root. The root sends to each receiver itself, so the time grows with their number, while the
	// time of blocks grows with its logarithm; the authors put the limit at about 16 (DSN §4.6).
	smallMembers = 17
)
