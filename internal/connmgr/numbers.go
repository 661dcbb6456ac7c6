package connmgr

import (
	"net/netip"
	"sync"

	machine "github.com/mcrdma/mcrdma/internal/group"
	"github.com/mcrdma/mcrdma/pkg/rocev2"
)

// firstGroups bounds the first group number of a run, which is random, so that numbers of earlier
// runs are not used again, even if the state file was lost or is an older copy: a receiver would
// mistake the group for one that it knows. Numbers below the bound are exact in JSON for any
// reader.
const firstGroups = 1 << 48

// An MC_ID is chosen from a row of mcIDsRow: the one that keeps the order of identifications.
// mcIDsBlock rows are reserved at a time, so that callers rarely wait for the disk.
const (
	mcIDsRow   = 32
	mcIDsRows  = machine.CountMCID / mcIDsRow
	mcIDsBlock = 512
)

// mcIDs assigns MC_IDs, none of them twice, and tracks those in use.
type mcIDs struct {
	inUse     sync.Map   // by MC_ID; false: its formation is being undone
	mu        sync.Mutex // held while the store is waited for
	next, end uint64
}

// take returns an MC_ID that is in use until it is deleted from inUse. Copies of the sender's
// packets keep the order of their identifications if its queue pair is connected to the first of
// the receivers, as it is in a formation with all of them.
func (n *mcIDs) take(s Store, receivers []netip.Addr) (uint32, error) {
	var first [4]byte
	if len(receivers) > 0 {
		first = receivers[0].As4()
	}
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
		row := machine.FirstMCID + uint32(n.next%mcIDsRows)*mcIDsRow //nolint:gosec // 24 bits
		n.next++
		for id := row; id < row+mcIDsRow; id++ {
			if !rocev2.KeepsIDOrder(first, rocev2.QPN(id)) {
				continue
			}
			if _, used := n.inUse.LoadOrStore(id, true); !used {
				return id, nil
			}
		}
	}
}

// has reports whether the switches may have an MC_ID.
func (n *mcIDs) has(id uint32) bool {
	has, _ := n.inUse.Load(id)
	return has == true
}
