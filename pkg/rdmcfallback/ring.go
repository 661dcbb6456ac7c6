package rdmcfallback

// A Ring is an optional interface of a Transport, for small messages (DSN §4.6 "Small
// messages"): at each receiver a ring of slots into which the root puts messages directly.
// All members of a group have it, or none; a wrapper that only has a Transport's methods
// hides it.
//
// In small groups, small messages then take one hop to each receiver, instead of
// blocks through a pipeline that each have to be asked for.
type Ring interface {
	// OpenRing is called at all members, before anything else, with the same
	// numbers: each receiver is to have slots of size bytes each.
	OpenRing(slots, size int) error
	// PutSmall puts msg, of at most size bytes, into the next slot at a peer; imm
	// travels with it. Only the root calls it, at most slots times more than it
	// has seen the peer's slots freed (EventFreed). msg is the caller's again when PutSmall
	// returns.
	PutSmall(peer int, imm uint32, msg []byte) error
	// FreeSmall lets the root use the n oldest slots of this receiver again, at
	// least one.
	FreeSmall(n int) error
}

const (
	// smallMax is the default of Config.SmallMax, in bytes (DSN §4.6).
	smallMax = 10 << 10
	// smallMembers is the number of members of the largest groups that use a ring:
	// 16 receivers and the root. The root sends to each receiver itself, so the time
	// grows with their number, while that of blocks grows with its logarithm; the
	// authors put the limit at about 16 (DSN §4.6).
	smallMembers = 17
)
