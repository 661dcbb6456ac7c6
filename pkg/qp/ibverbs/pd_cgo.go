//go:build ibverbs && cgo && linux

package ibverbs

// #include "shim.h"
import "C"

import (
	"fmt"
	"os"
	"runtime"
	"sync"
	"unsafe"

	"github.com/mcrdma/mcrdma/pkg/qp"
)

// A domain is a protection domain.
type domain struct {
	dev *device

	mu     sync.Mutex
	pd     *C.struct_ibv_pd
	closed bool
	users  int // regions and queue pairs
}

func (d *device) AllocPD() (qp.PD, error) {
	return create(d, d.pds, func() (*domain, error) {
		p := &domain{dev: d}
		return p, check("ibv_alloc_pd", C.mc_alloc_pd(d.ctx, &p.pd))
	})
}

// use counts a new user, unless the domain is closed.
func (p *domain) use() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return qp.ErrClosed
	}
	p.users++
	return nil
}

func (p *domain) release() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.users--
}

func (p *domain) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.closed:
		return qp.ErrClosed
	case p.users > 0:
		return fmt.Errorf("%w: %d regions and queue pairs in the protection domain", qp.ErrBusy, p.users)
	}
	if err := check("ibv_dealloc_pd", C.ibv_dealloc_pd(p.pd)); err != nil {
		return err
	}
	p.closed = true
	forget(p.dev, p.dev.pds, p)
	return nil
}

// A region is a memory region. Its bytes are pinned: the kernel has locked the
// pages, and the pinner keeps Go from moving or reusing the object.
type region struct {
	pd         *domain
	buf        []byte
	va         uint64 // as peers and SGEs name the first byte
	pin        runtime.Pinner
	mr         *C.struct_ibv_mr
	lkey, rkey uint32

	mu     sync.Mutex
	closed bool
}

func (p *domain) RegMR(buf []byte, access qp.Access) (qp.MR, error) {
	return p.RegMRAt(buf, uint64(uintptr(unsafe.Pointer(unsafe.SliceData(buf)))), access)
}

// RegMRAt implements qp.Mapper. The kernel refuses addresses whose places within a page
// differ.
func (p *domain) RegMRAt(buf []byte, va uint64, access qp.Access) (qp.MR, error) {
	switch {
	case len(buf) == 0:
		return nil, fmt.Errorf("%w: a memory region must not be empty", qp.ErrAttr)
	case (va-uint64(uintptr(unsafe.Pointer(unsafe.SliceData(buf)))))%uint64(os.Getpagesize()) != 0:
		return nil, fmt.Errorf("%w: a memory region at %#x that begins elsewhere within its page", qp.ErrAttr, va)
	case access >= qp.AccessRemoteAtomic<<1:
		return nil, fmt.Errorf("%w: access %#x has unknown bits", qp.ErrAttr, uint8(access))
	}
	if access&(qp.AccessRemoteWrite|qp.AccessRemoteAtomic) != 0 {
		access |= qp.AccessLocalWrite // verbs requires it
	}
	if err := p.use(); err != nil {
		return nil, err
	}
	m, err := create(p.dev, p.dev.mrs, func() (*region, error) {
		m := &region{pd: p, buf: buf, va: va}
		m.pin.Pin(unsafe.SliceData(buf))
		addr := C.uintptr_t(uintptr(unsafe.Pointer(unsafe.SliceData(buf))))
		err := check("ibv_reg_mr", C.mc_reg_mr(p.pd, addr, C.size_t(len(buf)), C.uint64_t(va), C.int(access), &m.mr))
		if err != nil {
			m.pin.Unpin()
			return nil, fmt.Errorf("%w (%d bytes)", err, len(buf))
		}
		m.lkey, m.rkey = uint32(m.mr.lkey), uint32(m.mr.rkey)
		return m, nil
	})
	if err != nil {
		p.release()
		return nil, err
	}
	return m, nil
}

func (m *region) Bytes() []byte { return m.buf }
func (m *region) Addr() uint64  { return m.va }
func (m *region) LKey() uint32  { return m.lkey }
func (m *region) RKey() uint32  { return m.rkey }

func (m *region) SGE(off, n int) qp.SGE {
	_ = m.buf[off:][:n] // panics like slicing
	return qp.SGE{Addr: m.Addr() + uint64(off), Length: uint32(n), LKey: m.lkey}
}

func (m *region) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return qp.ErrClosed
	}
	if err := check("ibv_dereg_mr", C.ibv_dereg_mr(m.mr)); err != nil {
		return err
	}
	m.closed = true
	m.pin.Unpin()
	forget(m.pd.dev, m.pd.dev.mrs, m)
	m.pd.release()
	return nil
}
