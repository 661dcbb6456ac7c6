package rdma

import (
	"fmt"
	"slices"
	"unsafe"

	"github.com/mcrdma/mcrdma/pkg/qp"
)

const (
	regionBytes = 64 << 20  // registered at once, except for longer blocks
	maxRegions  = 64        // registered, not counting those in use
	maxIdle     = 256 << 20 // bytes registered and not in use
)

// A region is a registered memory region.
type region struct {
	mr     qp.MR
	lo, hi uintptr
	write  bool   // receives may write to it
	busy   int    // work requests that use it
	used   uint64 // time of last use
}

// A memory is the set of regions registered with a protection domain. Regions may overlap.
type memory struct {
	pd         qp.PD
	regions    []*region
	clock      uint64
	registered int // regions ever registered
}

func extent(buf []byte) (lo, hi uintptr) {
	lo = uintptr(unsafe.Pointer(unsafe.SliceData(buf)))
	return lo, lo + uintptr(len(buf))
}

// use returns the scatter or gather entry for buf, which must not be empty, and its region, which
// it marks busy.
func (m *memory) use(buf []byte, write bool) (qp.SGE, *region, error) {
	lo, hi := extent(buf)
	r := m.find(lo, hi, write)
	if r == nil {
		var err error
		if r, err = m.register(buf, write); err != nil {
			return qp.SGE{}, nil, err
		}
	}
	m.clock++
	r.used = m.clock
	r.busy++
	return r.mr.SGE(int(lo-r.lo), len(buf)), r, nil
}

func (r *region) holds(lo, hi uintptr, write bool) bool {
	return lo >= r.lo && hi <= r.hi && (r.write || !write)
}

func (r *region) overlaps(lo, hi uintptr) bool { return lo < r.hi && hi > r.lo }

func (m *memory) find(lo, hi uintptr, write bool) *region {
	for _, r := range m.regions {
		if r.holds(lo, hi, write) {
			return r
		}
	}
	return nil
}

// register registers buf and the memory that follows it. If the device cannot register that much,
// it registers buf alone, and closes idle regions.
func (m *memory) register(buf []byte, write bool) (*region, error) {
	whole := buf[:max(len(buf), min(cap(buf), regionBytes))]
	var access qp.Access
	if write {
		access = qp.AccessLocalWrite
	}
	m.evict(maxRegions-1, maxIdle-len(whole))
	mr, err := m.pd.RegMR(whole, access)
	if err != nil {
		m.evict(0, 0)
		whole = buf
		if mr, err = m.pd.RegMR(whole, access); err != nil {
			return nil, fmt.Errorf("rdma: register %d bytes: %w", len(buf), err)
		}
	}
	m.registered++
	lo, hi := extent(whole)
	r := &region{mr: mr, lo: lo, hi: hi, write: write}
	m.regions = append(m.regions, r)
	return r, nil
}

// evict closes idle regions, least recently used first, until there are at most that many regions
// and idle bytes, or no region can be closed.
func (m *memory) evict(regions, idle int) {
	sum := 0
	for _, r := range m.regions {
		if r.busy == 0 {
			sum += int(r.hi - r.lo)
		}
	}
	for len(m.regions) > regions || sum > idle {
		oldest := -1
		for i, r := range m.regions {
			if m.idle(r) && (oldest < 0 || r.used < m.regions[oldest].used) {
				oldest = i
			}
		}
		if oldest < 0 {
			return
		}
		sum -= int(m.regions[oldest].hi - m.regions[oldest].lo)
		m.drop(oldest)
	}
}

// idle reports whether no work request uses memory of r, not even through another region, because a
// device may then fail its queue pair.
func (m *memory) idle(r *region) bool {
	return !slices.ContainsFunc(m.regions, func(o *region) bool { return o.busy > 0 && o.overlaps(r.lo, r.hi) })
}

func (m *memory) drop(i int) {
	_ = m.regions[i].mr.Close() // fails only if the device is closed already
	m.regions = slices.Delete(m.regions, i, i+1)
}

// forget closes the regions that overlap buf.
func (m *memory) forget(buf []byte) error {
	lo, hi := extent(buf[:cap(buf)])
	for i := len(m.regions) - 1; i >= 0; i-- {
		r := m.regions[i]
		if !r.overlaps(lo, hi) {
			continue
		}
		if !m.idle(r) {
			return fmt.Errorf("rdma: %w: the memory holds blocks that are under way", qp.ErrBusy)
		}
		m.drop(i)
	}
	return nil
}

// close closes all regions.
func (m *memory) close() {
	for i := len(m.regions) - 1; i >= 0; i-- {
		m.drop(i)
	}
}
