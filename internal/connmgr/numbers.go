package connmgr

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
)

// groupNumbers number groups, upward from a random number. So numbers of earlier runs of
// the daemon are not used again, even if its state file was lost or is an older copy: a
// receiver would mistake a group of another run for one that it knows.
type groupNumbers struct{ last atomic.Uint64 }

// firstGroups bounds the first number of a run: such numbers are exact in JSON for any
// reader.
const firstGroups = 1 << 48

func (n *groupNumbers) open() { n.last.Store(rand.Uint64N(firstGroups)) } //nolint:gosec // not a secret

func (n *groupNumbers) take() uint64 { return n.last.Add(1) }

// numbers hands out numbers that are never handed out again. They are reserved many at a
// time, so that callers seldom wait for the disk.
type numbers struct {
	mu        sync.Mutex // held while the store is waited for
	next, end uint64
}

const numbersBlock = 4096

// take returns a number of those that the store has under a name.
func (n *numbers) take(s Store, name string) (uint64, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.next == n.end {
		first, err := s.Reserve(name, numbersBlock)
		if err != nil {
			return 0, stateError(err)
		}
		n.next, n.end = first, first+numbersBlock
	}
	n.next++
	return n.next - 1, nil
}

// MC_IDs are virtual QPNs that devices don't hand out.
const (
	firstMCID = 0x800000
	countMCID = 0x800000
)

// mcIDs are the MC_IDs that are in use.
type mcIDs struct {
	numbers numbers
	mu      sync.Mutex
	inUse   map[uint32]bool // false: its formation is being undone
}

// take returns an MC_ID that is in use until free.
func (n *mcIDs) take(s Store) (uint32, error) {
	for {
		x, err := n.numbers.take(s, "mc_ids")
		if err != nil {
			return 0, err
		}
		if id := uint32(firstMCID + x%countMCID); n.use(id) { //nolint:gosec // 24 bits
			return id, nil
		}
	}
}

// use reports whether an MC_ID was free. It is in use then.
func (n *mcIDs) use(id uint32) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	_, used := n.inUse[id]
	if !used {
		n.inUse[id] = true
	}
	return !used
}

// undo says that the switches are not to have an MC_ID any longer.
func (n *mcIDs) undo(id uint32) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.inUse[id] = false
}

// has says whether the switches may have an MC_ID.
func (n *mcIDs) has(id uint32) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.inUse[id]
}

func (n *mcIDs) free(id uint32) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.inUse, id)
}
