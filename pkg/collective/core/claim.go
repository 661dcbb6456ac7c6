package core

import "fmt"

// A claim says in which call a rank waits on a lane. Ranks compare claims, because calls that differ may all wait, and none get a message of another.
// A rank that has ended the call in which another waits replies with a claim, by unicast, and if it is in no call, also to all.
type claim struct {
	lane   int
	kind   Kind   // 0: it is in no call
	number uint64 // its lowest bits; in no call, that of the next one
	hash   uint32 // likewise; by unicast, the epoch
}

// Immediate data that are a claim: messages have lanes up to 3.
const (
	claimImm      = 1 << 30
	claimKindAt   = 25
	claimNumberAt = 10
	claimNumbers  = 1 << (claimKindAt - claimNumberAt)
	claimHashes   = 1 << claimNumberAt
)

func (c *Call) claim() claim {
	return claim{c.lane, c.op.Kind, c.number % claimNumbers, c.hash % claimHashes}
}

func (c claim) imm() uint32 {
	return claimImm | uint32(c.lane)<<laneAt | uint32(c.kind)<<claimKindAt | uint32(c.number)<<claimNumberAt | c.hash //nolint:gosec // of so many bits
}

// claimOf is the inverse, but for the lane.
func claimOf(imm uint32) claim {
	return claim{kind: Kind(imm >> claimKindAt & kindMask), number: uint64(imm >> claimNumberAt % claimNumbers), hash: imm % claimHashes} //nolint:gosec // three bits
}

// after says whether a claim is of a later call than another.
func (c claim) after(o claim) bool {
	ahead := (c.number - o.number) % claimNumbers
	return 0 < ahead && ahead < claimNumbers/2
}

// differs compares a call with what was heard of a rank. A rank that has ended its operation of this number has sent all multicast messages of
// it before its claim, and all unicast ones before its reply.
func (c *Call) differs(rank int) error {
	ours := c.claim()
	if theirs, ok := c.heard[rank]; ok {
		if theirs.kind != 0 && theirs.number == ours.number && (theirs.kind != ours.kind || theirs.hash != ours.hash) {
			return &Mismatch{rank, theirs.kind, ours.kind, false}
		}
		if theirs.after(ours) && c.op.Want(rank, Multicast) > 0 {
			return &Mismatch{rank, theirs.kind, ours.kind, true}
		}
	}
	if theirs, ok := c.passed[rank]; ok && theirs.after(ours) && c.op.Want(rank, Unicast) > 0 {
		return &Mismatch{rank, theirs.kind, ours.kind, true}
	}
	return nil
}

func noted(claims map[int]claim, rank int, c claim) map[int]claim {
	if claims == nil {
		claims = map[int]claim{}
	}
	claims[rank] = c
	return claims
}

// A Mismatch is that a rank does not do the same operation.
type Mismatch struct {
	Rank         int
	Theirs, Ours Kind // Theirs is 0 if it is ahead, and in no operation
	Ahead        bool // it has ended its operation of this number
}

// Error says what each does.
func (m *Mismatch) Error() string {
	const same = "all ranks have to do the same, in the same order"
	switch {
	case m.Theirs == 0:
		return fmt.Sprintf("rank %d has ended its call, and has not sent what this one's %v awaits: %s", m.Rank, m.Ours, same)
	case m.Theirs == Close:
		return fmt.Sprintf("rank %d closes, where this one does %v: %s", m.Rank, m.Ours, same)
	case m.Ours == Close:
		return fmt.Sprintf("rank %d does %v, where this one closes: %s", m.Rank, m.Theirs, same)
	case m.Ahead:
		return fmt.Sprintf("rank %d has gone on to %v, and has not sent what this one's %v awaits: %s", m.Rank, m.Theirs, m.Ours, same)
	case m.Theirs != m.Ours:
		return fmt.Sprintf("rank %d does %v, where this one does %v: %s", m.Rank, m.Theirs, m.Ours, same)
	}
	return fmt.Sprintf("rank %d does another %v than this one, of another size, type or root: %s", m.Rank, m.Ours, same)
}
