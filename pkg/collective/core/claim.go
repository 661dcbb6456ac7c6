package core

import "fmt"

// A claim says in which call a rank waits on a lane. Ranks compare claims, because calls that differ may all wait, and none get a message of another.
type claim struct {
	lane   int
	kind   Kind
	number uint64 // its lowest bits
	hash   uint32 // likewise
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

// differs compares a call with what was heard of a rank. A rank that has ended its operation of this number has sent all multicast messages of
// it before its claim; of unicast ones that is not known.
func (c *Call) differs(rank int) error {
	theirs, ok := c.heard[rank]
	if !ok {
		return nil
	}
	ours := c.claim()
	switch ahead := (theirs.number - ours.number) % claimNumbers; {
	case ahead == 0 && (theirs.kind != ours.kind || theirs.hash != ours.hash):
		return &Mismatch{rank, theirs.kind, ours.kind, false}
	case 0 < ahead && ahead < claimNumbers/2 && c.op.Want(rank, Multicast) > 0:
		return &Mismatch{rank, theirs.kind, ours.kind, true}
	}
	return nil
}

// A Mismatch is that a rank does not do the same operation.
type Mismatch struct {
	Rank         int
	Theirs, Ours Kind
	Ahead        bool // it has ended its operation of this number
}

// Error says what each does.
func (m *Mismatch) Error() string {
	const same = "all ranks have to do the same, in the same order"
	switch {
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
