package connmgr

import (
	"sync"

	machine "github.com/mcrdma/mcrdma/internal/group"
)

// firstGroups bounds the number from which the groups of a run count upward, which is random: so
// numbers of earlier runs are not used again, even if the state file was lost or is an older
// copy. A receiver would mistake a group of another run for one that it knows. Such numbers are
// exact in JSON for any reader.
const firstGroups = 1 << 48

// mcIDsBlock is how many MC_IDs are reserved at a time, so that callers seldom wait for the disk.
const mcIDsBlock = 4096

// mcIDs hands out MC_IDs, none of them twice, and has those that are in use.
type mcIDs struct {
	inUse     sync.Map   // by MC_ID; false: its formation is being undone
	mu        sync.Mutex // held while the store is waited for
	next, end uint64
}

// take returns an MC_ID that is in use until it is deleted from inUse.
func (n *mcIDs) take(s Store) (uint32, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for {
		if n.next == n.end {
			first, err := s.Reserve("mc_ids", mcIDsBlock)
			if err != nil {
				return 0, stateError(err)
			}
			n.next, n.end = first, first+mcIDsBlock
		}
		id := uint32(machine.FirstMCID + n.next%machine.CountMCID) //nolint:gosec // 24 bits
		n.next++
		if _, used := n.inUse.LoadOrStore(id, true); !used {
			return id, nil
		}
	}
}

// has says whether the switches may have an MC_ID.
func (n *mcIDs) has(id uint32) bool {
	has, _ := n.inUse.Load(id)
	return has == true
}
