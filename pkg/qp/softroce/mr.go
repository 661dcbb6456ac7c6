package softroce

import (
	"fmt"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/mcrdma/mcrdma/pkg/qp"
	"github.com/mcrdma/mcrdma/pkg/rocev2"
)

// An MR is a registered memory region.
type MR struct {
	pd     *PD
	buf    []byte
	addr   uint64 // address of its first byte for peers and SGEs
	access qp.Access
	key    uint32 // both lkey and rkey: see mrTable
}

// Bytes implements qp.MR.
func (m *MR) Bytes() []byte { return m.buf }

// Addr implements qp.MR.
func (m *MR) Addr() uint64 { return m.addr }

// LKey implements qp.MR.
func (m *MR) LKey() uint32 { return m.key }

// RKey implements qp.MR.
func (m *MR) RKey() uint32 { return m.key }

// SGE implements qp.MR.
func (m *MR) SGE(off, n int) qp.SGE {
	_ = m.buf[off : off+n : len(m.buf)]
	return qp.SGE{Addr: m.addr + uint64(off), Length: uint32(n), LKey: m.key}
}

// slice returns the n bytes at va if all are inside the region.
func (m *MR) slice(va uint64, n int) ([]byte, bool) {
	off := va - m.addr
	size := uint64(len(m.buf))
	if off > size || uint64(n) > size-off {
		return nil, false
	}
	return m.buf[off : off+uint64(n) : off+uint64(n)], true
}

// overlaps reports whether mem is in the region.
func (m *MR) overlaps(mem []byte) bool {
	at, first := uintptr(unsafe.Pointer(unsafe.SliceData(mem))), uintptr(unsafe.Pointer(unsafe.SliceData(m.buf)))
	return len(mem) > 0 && at-first < uintptr(len(m.buf))
}

const (
	mrChunk  = 1 << 10
	mrChunks = 1 << 10
	portKeys = 1 << 16
)

// An mrTable finds regions by key without locks. A key is an index and 8 bits that change with each
// use of the index; index 0 is not used, so that no key is 0. After these are the places of regions
// that groups write to, whose keys are port keys: switches can insert them without changing the
// order of packets (rocev2.PortKey).
type mrTable struct {
	chunks [mrChunks + portKeys/mrChunk]atomic.Pointer[[mrChunk]atomic.Pointer[MR]]

	mu   sync.Mutex
	next uint32   // index never used so far
	free []uint32 // keys of closed regions, oldest first
	seed uint32
	port uint16 // the last port key that was given out
}

func (t *mrTable) init(seed uint32) { t.next, t.seed, t.port = 1, seed, uint16(seed) } //nolint:gosec // any

// place returns the place of the region with a key in the table.
func place(key uint32) uint32 {
	if i := key >> 8; i < mrChunks*mrChunk {
		return i
	}
	return mrChunks*mrChunk + key%portKeys
}

// at returns the cell of a place, nil if there is no chunk.
func (t *mrTable) at(i uint32) *atomic.Pointer[MR] {
	if c := t.chunks[i/mrChunk].Load(); c != nil {
		return &c[i%mrChunk]
	}
	return nil
}

// portKey finds a key for a mapped region that has been unused for long; 0: all are in use.
func (t *mrTable) portKey() uint32 {
	for range portKeys {
		t.port++
		k := rocev2.PortKey(t.port)
		if i := place(k); i >= mrChunks*mrChunk { // no other kind of key
			if c := t.at(i); c == nil || c.Load() == nil {
				return k
			}
		}
	}
	return 0
}

// add gives m a key and publishes it.
func (t *mrTable) add(m *MR, mapped bool) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if mapped {
		m.key = t.portKey()
	}
	// A freed index rests for a while, and is reused with other low bits, so that a peer's old key
	// finds nothing.
	const rest = 64
	switch {
	case m.key != 0:
	case len(t.free) > rest || len(t.free) > 0 && t.next > MaxMR:
		old := t.free[0]
		t.free = t.free[1:]
		m.key = old&^0xff | (old+1)&0xff
	case t.next > MaxMR:
		return fmt.Errorf("softroce: %w: %d memory regions", qp.ErrLimit, MaxMR)
	default:
		t.seed = t.seed*1664525 + 1013904223
		m.key = t.next<<8 | t.seed>>24
		t.next++
	}
	i := place(m.key)
	if t.at(i) == nil {
		t.chunks[i/mrChunk].Store(new([mrChunk]atomic.Pointer[MR]))
	}
	t.at(i).Store(m)
	return nil
}

func (t *mrTable) remove(m *MR) {
	t.mu.Lock()
	defer t.mu.Unlock()
	i := place(m.key)
	t.at(i).Store(nil)
	if i < mrChunks*mrChunk {
		t.free = append(t.free, m.key)
	}
}

// find returns the region with the key, nil if there is none.
func (t *mrTable) find(key uint32) *MR {
	if c := t.at(place(key)); c != nil {
		if m := c.Load(); m != nil && m.key == key {
			return m
		}
	}
	return nil
}

// Remote implements rc.Memory for the queue pairs of the domain.
func (p *PD) Remote(rkey uint32, va uint64, n int, need qp.Access) ([]byte, bool) {
	m := p.dev.mrs.find(rkey)
	if m == nil || m.pd != p || m.access&need == 0 {
		return nil, false
	}
	return m.slice(va, n)
}

// local appends the memory that sges name to dst. For receives it must be
// writable.
func (p *PD) local(dst [][]byte, sges []qp.SGE, write bool) ([][]byte, error) {
	for i := range sges {
		s := &sges[i]
		if s.Length == 0 {
			continue
		}
		m := p.dev.mrs.find(s.LKey)
		switch {
		case m == nil || m.pd != p:
			return dst, fmt.Errorf("softroce: %w: entry %d: lkey %#x is of no region of this protection domain",
				qp.ErrSGE, i, s.LKey)
		case write && m.access&qp.AccessLocalWrite == 0:
			return dst, fmt.Errorf("softroce: %w: entry %d: the region lacks local write access", qp.ErrSGE, i)
		}
		b, ok := m.slice(s.Addr, int(s.Length))
		if !ok {
			return dst, fmt.Errorf("softroce: %w: entry %d: %d bytes at %#x are not inside the region (%d bytes at %#x)",
				qp.ErrSGE, i, s.Length, s.Addr, len(m.buf), m.addr)
		}
		dst = append(dst, b)
	}
	return dst, nil
}
