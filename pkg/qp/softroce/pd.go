package softroce

import (
	"fmt"
	"maps"
	"slices"
	"unsafe"

	"github.com/mcrdma/mcrdma/pkg/qp"
)

// A PD is a protection domain. Its fields are guarded by the device's lock.
type PD struct {
	dev    *Device
	closed bool
	mrs    map[*MR]struct{}
	qps    map[*QP]struct{}
}

// RegMR implements qp.PD. The region's virtual address is that of buf in this
// process.
func (p *PD) RegMR(buf []byte, access qp.Access) (qp.MR, error) {
	return p.register(buf, uint64(uintptr(unsafe.Pointer(unsafe.SliceData(buf)))), access, false)
}

// RegMRAt implements qp.Mapper. Any address works at which buf does not wrap.
func (p *PD) RegMRAt(buf []byte, va uint64, access qp.Access) (qp.MR, error) {
	return p.register(buf, va, access, true)
}

// register makes a region; mapped: for groups.
func (p *PD) register(buf []byte, va uint64, access qp.Access, mapped bool) (qp.MR, error) {
	const all = qp.AccessLocalWrite | qp.AccessRemoteWrite | qp.AccessRemoteRead | qp.AccessRemoteAtomic
	switch {
	case len(buf) == 0:
		return nil, fmt.Errorf("softroce: %w: memory region of 0 bytes", qp.ErrAttr)
	case va > va+uint64(len(buf)):
		return nil, fmt.Errorf("softroce: %w: memory region of %d bytes at %#x", qp.ErrAttr, len(buf), va)
	case access&^all != 0:
		return nil, fmt.Errorf("softroce: %w: access %#x has unknown bits", qp.ErrAttr, uint8(access))
	}
	if access&qp.AccessRemoteWrite != 0 {
		access |= qp.AccessLocalWrite
	}
	d := p.dev
	d.mu.Lock()
	defer d.mu.Unlock()
	if p.closed || d.closed {
		return nil, errClosed("protection domain")
	}
	m := &MR{pd: p, buf: buf, access: access, addr: va}
	if err := d.mrs.add(m, mapped); err != nil {
		return nil, err
	}
	p.mrs[m] = struct{}{}
	return m, nil
}

// Close implements qp.PD.
func (p *PD) Close() error {
	d := p.dev
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case p.closed:
		return errClosed("protection domain")
	case len(p.mrs)+len(p.qps) > 0:
		return fmt.Errorf("softroce: %w: protection domain with %d regions and %d queue pairs; close those first",
			qp.ErrBusy, len(p.mrs), len(p.qps))
	}
	p.closed = true
	delete(d.pds, p)
	return nil
}

// Close implements qp.MR. A queue pair with work requests outstanding in the
// region's memory goes to the error state, as on hardware, where they would
// fail with a local protection error.
func (m *MR) Close() error {
	d := m.pd.dev
	d.mu.Lock()
	if _, ok := m.pd.mrs[m]; !ok || m.pd.closed {
		d.mu.Unlock()
		return errClosed("memory region")
	}
	delete(m.pd.mrs, m)
	d.mrs.remove(m)
	users := slices.Collect(maps.Keys(m.pd.qps))
	d.mu.Unlock()

	// From now on the keys find nothing. Memory is accessed only under the lock of a queue pair, so
	// once this goroutine has held each lock, earlier accesses have ended.
	for _, q := range users {
		q.release(m)
	}
	return nil
}
