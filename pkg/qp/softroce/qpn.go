package softroce

import (
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/mcrdma/mcrdma/pkg/qp"
	"github.com/mcrdma/mcrdma/pkg/rocev2"
)

// Queue pair numbers are in the lower half of the number space, without the first ones, which
// InfiniBand reserves. The upper half is for multicast groups, whose virtual queue pair numbers
// (MC_ID) must not be a device's.
const (
	firstQPN = 0x100
	endQPN   = 0x800000
	maxQPs   = 1 << 17 // of 2^18 numbers that keep the order of identifications
)

// A qpTable finds queue pairs by number.
type qpTable struct {
	mu    sync.RWMutex
	addr  [4]byte
	m     map[rocev2.QPN]*QP
	count uint32
	seed  uint32
}

func (t *qpTable) init(addr [4]byte, seed uint32) {
	t.addr, t.m, t.seed = addr, map[rocev2.QPN]*QP{}, seed
}

// add gives q a number that no existing queue pair has, nor any of the last 100,000: a packet in
// flight for a destroyed queue pair must not reach another. Numbers are scattered, because hash
// functions in the network see them, and chosen so that the kernel can merge (GRO) the copies of a
// group's packets.
func (t *qpTable) add(q *QP) error {
	const step = 0x2c5e9b // odd: count×step visits every number before it repeats one
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.m) >= maxQPs {
		return fmt.Errorf("softroce: %w: %d queue pairs", qp.ErrLimit, maxQPs)
	}
	for {
		n := rocev2.QPN((t.count*step + t.seed) % endQPN)
		t.count++
		if _, used := t.m[n]; n < firstQPN || used || !rocev2.KeepsIDOrder(t.addr, n) {
			continue
		}
		q.qpn = n
		t.m[n] = q
		return nil
	}
}

func (t *qpTable) remove(q *QP) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.m[q.qpn] != q {
		return false
	}
	delete(t.m, q.qpn)
	return true
}

func (t *qpTable) find(n rocev2.QPN) *QP {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.m[n]
}

func (t *qpTable) all() []*QP {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return slices.Collect(maps.Values(t.m))
}
