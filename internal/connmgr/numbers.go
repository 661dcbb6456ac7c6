package connmgr

import (
	"context"
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
// time, and before they run out, so that no caller waits for the disk.
type numbers struct {
	m    *Manager
	name string

	mu        sync.Mutex // held while the store is waited for
	next, end uint64
	filling   bool
}

const (
	numbersBlock = 256
	numbersLow   = 64
)

func (n *numbers) open(m *Manager, name string) { n.m, n.name = m, name }

func (n *numbers) take() (uint64, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.next == n.end {
		if err := n.fill(); err != nil {
			return 0, err
		}
	}
	x := n.next
	n.next++
	if n.end-n.next < numbersLow && !n.filling {
		n.filling = true
		n.m.background(func(context.Context) {
			first, err := n.m.store.Reserve(n.name, numbersBlock)
			n.mu.Lock()
			defer n.mu.Unlock()
			n.filling = false
			if err == nil && first == n.end {
				n.end += numbersBlock
			}
		})
	}
	return x, nil
}

// fill is called with mu.
func (n *numbers) fill() error {
	first, err := n.m.store.Reserve(n.name, numbersBlock)
	if err != nil {
		return stateError(err)
	}
	n.next, n.end = first, first+numbersBlock
	return nil
}

// MC_IDs are virtual QPNs that devices don't hand out.
const (
	firstMCID = 0x800000
	countMCID = 0x800000
)

// takeMCID returns an MC_ID that is in use until freeMCID.
func (m *Manager) takeMCID() (uint32, error) {
	for {
		n, err := m.mcIDs.take()
		if err != nil {
			return 0, err
		}
		id := uint32(firstMCID + n%countMCID) //nolint:gosec // 24 bits
		m.mu.Lock()
		_, used := m.mcInUse[id]
		if !used {
			m.mcInUse[id] = true
		}
		m.mu.Unlock()
		if !used {
			return id, nil
		}
	}
}

func (m *Manager) freeMCID(id uint32) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.mcInUse, id)
}
