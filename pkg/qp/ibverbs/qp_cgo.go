//go:build ibverbs && cgo && linux

package ibverbs

/*
#cgo noescape mc_post_send
#cgo nocallback mc_post_send
#cgo noescape mc_post_recv
#cgo nocallback mc_post_recv
#include "shim.h"
*/
import "C"

import (
	"cmp"
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"
	"unsafe"

	"github.com/mcrdma/mcrdma/pkg/qp"
	"github.com/mcrdma/mcrdma/pkg/rocev2"
)

// A queuePair is an RC ibv_qp. libibverbs lets several threads use it at once;
// the lock only keeps it alive meanwhile.
type queuePair struct {
	pd             *domain
	sendCQ, recvCQ *completionQueue
	maxSGE         int
	multicast      bool
	qpn            rocev2.QPN
	// state is where Modify has brought it; the device may have gone from
	// there to Error by itself.
	state atomic.Uint32

	mu     sync.RWMutex
	qp     *C.struct_ibv_qp
	closed bool

	modify sync.Mutex // serializes Modify
	attr   qp.Attr    // as modified so far; protected by modify
}

func (p *domain) CreateQP(init qp.Init) (qp.QP, error) {
	send, ok1 := init.SendCQ.(*completionQueue)
	recv, ok2 := init.RecvCQ.(*completionQueue)
	if !ok1 || !ok2 || send.dev != p.dev || recv.dev != p.dev {
		return nil, fmt.Errorf("%w: a queue pair needs two completion queues of its own device", qp.ErrAttr)
	}
	sendWR, recvWR := cmp.Or(init.MaxSendWR, qp.DefaultWR), cmp.Or(init.MaxRecvWR, qp.DefaultWR)
	sge := cmp.Or(init.MaxSGE, qp.DefaultSGE)
	if a := p.dev.attr; min(sendWR, recvWR, sge) < 0 || max(sendWR, recvWR) > a.MaxQPWR || sge > a.MaxSGE {
		return nil, fmt.Errorf("%w: queues of %d and %d requests of %d SGEs; the device has up to %d of %d",
			qp.ErrLimit, sendWR, recvWR, sge, a.MaxQPWR, a.MaxSGE)
	}
	undo, err := useAll(p, send, recv)
	if err != nil {
		return nil, err
	}
	q, err := create(p.dev, p.dev.qps, func() (*queuePair, error) {
		q := &queuePair{pd: p, sendCQ: send, recvCQ: recv, maxSGE: sge, multicast: init.Multicast}
		var sigAll C.int
		if init.SignalAll {
			sigAll = 1
		}
		err := check("ibv_create_qp", C.mc_create_qp(p.pd, send.cq, recv.cq,
			C.uint32_t(sendWR), C.uint32_t(recvWR), C.uint32_t(sge), sigAll, &q.qp))
		if err == nil {
			q.qpn = rocev2.QPN(q.qp.qp_num)
		}
		return q, err
	})
	if err != nil {
		undo()
		return nil, err
	}
	return q, nil
}

// useAll counts a user of each, or of none if one is closed.
func useAll(objs ...interface {
	use() error
	release()
}) (undo func(), err error) {
	undo = func() {}
	for _, o := range objs {
		if err := o.use(); err != nil {
			undo()
			return nil, err
		}
		before := undo
		undo = func() { before(); o.release() }
	}
	return undo, nil
}

func (q *queuePair) QPN() rocev2.QPN { return q.qpn }

func (q *queuePair) State() qp.State {
	if a, err := q.query(); err == nil {
		return qp.State(a.state)
	}
	return qp.State(q.state.Load())
}

func (q *queuePair) query() (a C.struct_mc_qp_attr, err error) {
	q.mu.RLock()
	defer q.mu.RUnlock()
	if q.closed {
		return a, qp.ErrClosed
	}
	return a, check("ibv_query_qp", C.mc_query_qp(q.qp, &a))
}

func (q *queuePair) Query() (qp.Attr, error) {
	a, err := q.query()
	if err != nil {
		return qp.Attr{}, err
	}
	out := qp.Attr{
		State:       qp.State(a.state),
		Access:      qp.Access(a.access) & (qp.AccessRemoteAtomic<<1 - 1),
		DestQPN:     rocev2.QPN(a.dest_qpn) & rocev2.Mask24,
		PathMTU:     mtuFromVerbs(int(a.path_mtu)),
		SQPSN:       rocev2.PSN(a.sq_psn) & rocev2.Mask24,
		RQPSN:       rocev2.PSN(a.rq_psn) & rocev2.Mask24,
		Timeout:     uint8(a.timeout),
		RetryCnt:    uint8(a.retry_cnt),
		RNRRetry:    uint8(a.rnr_retry),
		MinRNRTimer: uint8(a.min_rnr_timer),
		DSCP:        uint8(a.traffic_class) >> 2,

		MaxRdAtomic: uint8(a.max_rd_atomic), MaxDestRdAtomic: uint8(a.max_dest_rd_atomic),
	}
	if addr, ok := gidAddr(*(*[16]byte)(unsafe.Pointer(&a.dgid)), vGIDRoCEv2); ok {
		out.DestAddr = addr
	}
	return out, nil
}

func (q *queuePair) Modify(attr *qp.Attr, mask qp.AttrMask) error {
	q.modify.Lock()
	defer q.modify.Unlock()
	if q.isClosed() {
		return qp.ErrClosed
	}
	cur := q.State()
	if err := qp.CheckModify(cur, attr, mask); err != nil {
		return err
	}
	next := cur
	if mask&qp.MaskState != 0 {
		next = attr.State
	}
	vmask, err := verbsMask(cur, next, mask)
	if err != nil {
		return err
	}
	if next == qp.StateReset {
		q.attr = qp.Attr{}
	}
	merged := q.attr
	merged.Merge(attr, mask)
	if err := q.apply(&merged, vmask); err != nil {
		return fmt.Errorf("%w (%v → %v with %v)", err, cur, next, mask)
	}
	q.attr = merged
	q.state.Store(uint32(next))
	return nil
}

func (q *queuePair) isClosed() bool {
	q.mu.RLock()
	defer q.mu.RUnlock()
	return q.closed
}

func (q *queuePair) apply(a *qp.Attr, vmask int) error {
	c := C.struct_mc_qp_attr{
		state:         C.uint32_t(a.State),
		access:        C.uint32_t(a.Access),
		dest_qpn:      C.uint32_t(a.DestQPN),
		sq_psn:        C.uint32_t(a.SQPSN),
		rq_psn:        C.uint32_t(a.RQPSN),
		timeout:       C.uint8_t(a.Timeout),
		retry_cnt:     C.uint8_t(a.RetryCnt),
		rnr_retry:     C.uint8_t(a.RNRRetry),
		min_rnr_timer: C.uint8_t(a.MinRNRTimer),
		traffic_class: C.uint8_t(a.DSCP << 2),
		port:          C.uint8_t(q.pd.dev.target.port),
		sgid_index:    C.uint8_t(q.pd.dev.target.gid),
		// Some devices refuse 0.
		max_rd_atomic:      C.uint8_t(max(1, a.MaxRdAtomic)),
		max_dest_rd_atomic: C.uint8_t(max(1, a.MaxDestRdAtomic)),
	}
	if vmask&vPathMTU != 0 {
		c.path_mtu = C.uint32_t(mtuToVerbs(a.PathMTU))
	}
	if vmask&vAV != 0 {
		*(*[16]byte)(unsafe.Pointer(&c.dgid)) = netip.AddrFrom4(a.DestAddr.As4()).As16()
	}
	q.mu.RLock()
	defer q.mu.RUnlock()
	if q.closed {
		return qp.ErrClosed
	}
	return check("ibv_modify_qp", C.mc_modify_qp(q.qp, &c, C.int(vmask)))
}

func (q *queuePair) PostSend(wr *qp.SendWR) error {
	if err := qp.CheckOpcode(wr.Opcode, q.multicast); err != nil {
		return err
	}
	if err := q.checkSGEs(wr.SGEs); err != nil {
		return err
	}
	if s := qp.State(q.state.Load()); s < qp.StateRTS {
		return fmt.Errorf("%w: %v, sending needs RTS", qp.ErrState, s)
	}
	w := C.struct_mc_wr{
		id:          C.uint64_t(wr.ID),
		opcode:      C.uint32_t(wr.Opcode),
		flags:       C.uint32_t(sendFlags(wr.Flags)),
		imm:         C.uint32_t(wr.Imm),
		remote_addr: C.uint64_t(wr.RemoteAddr),
		rkey:        C.uint32_t(wr.RKey),
	}
	q.mu.RLock()
	defer q.mu.RUnlock()
	if q.closed {
		return qp.ErrClosed
	}
	sges := (*C.struct_ibv_sge)(unsafe.Pointer(unsafe.SliceData(wr.SGEs)))
	return checkPost("ibv_post_send", C.mc_post_send(q.qp, &w, sges, C.int(len(wr.SGEs))))
}

func (q *queuePair) PostRecv(wr *qp.RecvWR) error {
	if err := q.checkSGEs(wr.SGEs); err != nil {
		return err
	}
	if s := qp.State(q.state.Load()); s == qp.StateReset {
		return fmt.Errorf("%w: %v, receiving needs INIT", qp.ErrState, s)
	}
	q.mu.RLock()
	defer q.mu.RUnlock()
	if q.closed {
		return qp.ErrClosed
	}
	sges := (*C.struct_ibv_sge)(unsafe.Pointer(unsafe.SliceData(wr.SGEs)))
	return checkPost("ibv_post_recv", C.mc_post_recv(q.qp, C.uint64_t(wr.ID), sges, C.int(len(wr.SGEs))))
}

func (q *queuePair) checkSGEs(sges []qp.SGE) error {
	if len(sges) > q.maxSGE {
		return fmt.Errorf("%w: %d entries, the queue pair was made for %d", qp.ErrSGE, len(sges), q.maxSGE)
	}
	var n uint64
	for i := range sges {
		n += uint64(sges[i].Length)
	}
	if n > q.pd.dev.maxMsg {
		return fmt.Errorf("%w: %d bytes, the device's largest message is %d", qp.ErrSGE, n, q.pd.dev.maxMsg)
	}
	return nil
}

// checkPost translates the result of posting, which reports a full queue as
// ENOMEM, or on some devices as EAGAIN.
func checkPost(verb string, errno C.int) error {
	switch syscall.Errno(errno) {
	case 0:
		return nil
	case syscall.ENOMEM, syscall.EAGAIN:
		return qp.ErrQueueFull
	}
	return check(verb, errno)
}

func (q *queuePair) Close() error {
	q.mu.Lock()
	if q.closed {
		q.mu.Unlock()
		return qp.ErrClosed
	}
	err := check("ibv_destroy_qp", C.ibv_destroy_qp(q.qp))
	q.closed = err == nil
	q.mu.Unlock()
	if err != nil {
		return err
	}
	forget(q.pd.dev, q.pd.dev.qps, q)
	q.sendCQ.release()
	q.recvCQ.release()
	q.pd.release()
	return nil
}
