package ibverbs

import (
	"fmt"
	"net/netip"
	"syscall"

	"github.com/mcrdma/mcrdma/pkg/qp"
)

// Numbers of libibverbs that the conversions use. They are written out here so
// that the conversions are plain Go, tested everywhere; consts_cgo.go fails to
// compile if one differs from the C header.
const (
	vState       = 1 << 0
	vAccess      = 1 << 3
	vPkeyIndex   = 1 << 4
	vPort        = 1 << 5
	vAV          = 1 << 7
	vPathMTU     = 1 << 8
	vTimeout     = 1 << 9
	vRetryCnt    = 1 << 10
	vRNRRetry    = 1 << 11
	vRQPSN       = 1 << 12
	vMaxRdAtomic = 1 << 13
	vMinRNRTimer = 1 << 15
	vSQPSN       = 1 << 16
	vMaxDestRd   = 1 << 17
	vDestQPN     = 1 << 20

	vMTU256 = 1 // each further doubling is one more

	vSendFence     = 1 << 0
	vSendSignaled  = 1 << 1
	vSendSolicited = 1 << 2

	vWCSend         = 0
	vWCWrite        = 1
	vWCRead         = 2
	vWCRecv         = 1 << 7
	vWCRecvWriteImm = vWCRecv + 1
	vWCWithImm      = 1 << 1

	vMaxStatus = 21 // the last status that qp knows, "general error"

	vEventCQErr       = 0
	vEventQPFatal     = 1
	vEventQPReqErr    = 2
	vEventQPAccessErr = 3
	vEventCommEst     = 4
	vEventDevFatal    = 8

	vGIDRoCEv2 = 2
)

// mtuToVerbs returns the ibv_mtu of an MTU that qp.ValidMTU accepts.
func mtuToVerbs(n int) int {
	v := vMTU256
	for m := 256; m < n; m *= 2 {
		v++
	}
	return v
}

// mtuFromVerbs returns the bytes of an ibv_mtu, 0 for unknown numbers.
func mtuFromVerbs(v int) int {
	if v < vMTU256 || v > vMTU256+4 {
		return 0
	}
	return 128 << v
}

// verbsMask translates the mask of a transition that qp.CheckModify accepted,
// and adds what verbs wants beside: port and P_Key with INIT, the depths of
// READ with RTR and RTS even if they are 0. It returns qp.ErrAttr for what verbs
// cannot do where qp could.
func verbsMask(cur, next qp.State, mask qp.AttrMask) (int, error) {
	var v int
	for _, m := range [...]struct {
		qp    qp.AttrMask
		verbs int
	}{
		{qp.MaskState, vState}, {qp.MaskAccess, vAccess}, {qp.MaskDestAddr, vAV}, {qp.MaskDestQPN, vDestQPN},
		{qp.MaskPathMTU, vPathMTU}, {qp.MaskSQPSN, vSQPSN}, {qp.MaskRQPSN, vRQPSN}, {qp.MaskTimeout, vTimeout},
		{qp.MaskRetryCnt, vRetryCnt}, {qp.MaskRNRRetry, vRNRRetry}, {qp.MaskMinRNRTimer, vMinRNRTimer},
		{qp.MaskDSCP, vAV}, // the address vector's traffic class
	} {
		if mask&m.qp != 0 {
			v |= m.verbs
		}
	}
	switch {
	case cur == qp.StateReset && next == qp.StateInit:
		v |= vPkeyIndex | vPort
	case cur == qp.StateInit && next == qp.StateRTR:
		v |= vMaxDestRd
	case cur == qp.StateRTR && next == qp.StateRTS:
		v |= vMaxRdAtomic
		if mask&qp.MaskDSCP != 0 {
			return 0, fmt.Errorf("%w: DSCP: with ibverbs it is part of the address and goes with INIT → RTR", qp.ErrAttr)
		}
	}
	return v, nil
}

func sendFlags(f qp.SendFlags) int {
	var v int
	if f&qp.FlagSignaled != 0 {
		v |= vSendSignaled
	}
	if f&qp.FlagSolicited != 0 {
		v |= vSendSolicited
	}
	if f&qp.FlagFence != 0 {
		v |= vSendFence
	}
	return v
}

// wcOpcode translates the opcode of a completion. It is not defined for failed
// ones; unknown numbers become WCSend.
func wcOpcode(v int) qp.WCOpcode {
	switch v {
	case vWCWrite:
		return qp.WCWrite
	case vWCRead:
		return qp.WCRead
	case vWCRecv:
		return qp.WCRecv
	case vWCRecvWriteImm:
		return qp.WCRecvWriteImm
	}
	return qp.WCSend
}

// eventType translates the asynchronous events that qp knows, and 0 for the
// others.
func eventType(v int) qp.EventType { return eventTypes[v] }

var eventTypes = map[int]qp.EventType{vEventCQErr: qp.EventCQError, vEventQPFatal: qp.EventQPFatal, vEventQPReqErr: qp.EventQPRequestErr,
	vEventQPAccessErr: qp.EventQPAccessErr, vEventCommEst: qp.EventCommEst, vEventDevFatal: qp.EventDeviceFatal}

// wcStatus translates the status of a completion; numbers that qp does not
// know become GeneralErr.
func wcStatus(v uint32) qp.Status { return qp.Status(min(v, vMaxStatus)) }

// gidAddr returns the address of a GID of the given type if it is one that
// this device can use: RoCEv2 over IPv4, which is an IPv4-mapped address.
func gidAddr(gid [16]byte, typ uint32) (netip.Addr, bool) {
	a := netip.AddrFrom16(gid)
	return a.Unmap(), a.Is4In6() && typ == vGIDRoCEv2
}

// verbError describes the failure of a libibverbs function and what can be
// done about it; it wraps the errno, and qp's sentinel where there is one.
func verbError(verb string, errno syscall.Errno) error {
	err := fmt.Errorf("ibverbs: %s: %w", verb, errno)
	switch {
	case verb == "ibv_reg_mr" && (errno == syscall.ENOMEM || errno == syscall.EAGAIN):
		return fmt.Errorf("%w: %w: the limit of locked memory may be too low "+
			"(see ulimit -l; LimitMEMLOCK=infinity for a systemd service)", err, qp.ErrLimit)
	case errno == syscall.ENOMEM:
		return fmt.Errorf("%w: %w: the device has no more of these, or not of this size", err, qp.ErrLimit)
	case errno == syscall.EACCES || errno == syscall.EPERM:
		return fmt.Errorf("%w: are the /dev/infiniband files readable and writable for this user?", err)
	case errno == syscall.EBUSY:
		return fmt.Errorf("%w: %w", err, qp.ErrBusy)
	}
	return err
}
