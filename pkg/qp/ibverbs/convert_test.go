package ibverbs

import (
	"errors"
	"net/netip"
	"strings"
	"syscall"
	"testing"

	"github.com/mcrdma/mcrdma/pkg/qp"
)

func TestMTU(t *testing.T) {
	for v, n := range map[int]int{1: 256, 2: 512, 3: 1024, 4: 2048, 5: 4096} {
		if got := mtuToVerbs(n); got != v {
			t.Errorf("mtuToVerbs(%d) = %d, want %d", n, got, v)
		}
		if got := mtuFromVerbs(v); got != n {
			t.Errorf("mtuFromVerbs(%d) = %d, want %d", v, got, n)
		}
	}
	for _, v := range []int{-1, 0, 6, 100} {
		if got := mtuFromVerbs(v); got != 0 {
			t.Errorf("mtuFromVerbs(%d) = %d, want 0", v, got)
		}
	}
}

// TestVerbsMask holds the masks of the usual way up against those that
// ibv_modify_qp(3) lists as required for RC.
func TestVerbsMask(t *testing.T) {
	const (
		toInit = vState | vPkeyIndex | vPort | vAccess
		toRTR  = vState | vAV | vPathMTU | vDestQPN | vRQPSN | vMaxDestRd | vMinRNRTimer
		toRTS  = vState | vSQPSN | vTimeout | vRetryCnt | vRNRRetry | vMaxRdAtomic
	)
	for _, tc := range []struct {
		cur, next qp.State
		mask      qp.AttrMask
		want      int
	}{
		{qp.StateReset, qp.StateInit, qp.MaskInit, toInit},
		{qp.StateInit, qp.StateInit, qp.MaskAccess, vAccess},
		{qp.StateInit, qp.StateRTR, qp.MaskRTR, toRTR},
		{qp.StateInit, qp.StateRTR, qp.MaskRTR | qp.MaskDSCP | qp.MaskAccess, toRTR | vAccess},
		{qp.StateRTR, qp.StateRTS, qp.MaskRTS, toRTS},
		{qp.StateRTS, qp.StateRTS, qp.MaskMinRNRTimer, vMinRNRTimer},
		{qp.StateRTS, qp.StateSQD, qp.MaskState, vState},
		{qp.StateSQD, qp.StateSQD, qp.MaskDSCP, vAV},
		{qp.StateRTS, qp.StateError, qp.MaskState, vState},
		{qp.StateError, qp.StateReset, qp.MaskState, vState},
	} {
		if err := qp.CheckModify(tc.cur, anyAttr(tc.next), tc.mask); err != nil {
			t.Errorf("%v → %v with %v is no transition: %v", tc.cur, tc.next, tc.mask, err)
		}
		if got, err := verbsMask(tc.cur, tc.next, tc.mask); got != tc.want || err != nil {
			t.Errorf("%v → %v with %v: %#x, %v; want %#x", tc.cur, tc.next, tc.mask, got, err, tc.want)
		}
	}
	if _, err := verbsMask(qp.StateRTR, qp.StateRTS, qp.MaskRTS|qp.MaskDSCP); !errors.Is(err, qp.ErrAttr) {
		t.Errorf("DSCP with RTR → RTS: %v, want ErrAttr", err)
	}
}

// anyAttr returns attributes in range.
func anyAttr(s qp.State) *qp.Attr {
	return &qp.Attr{State: s, DestAddr: netip.MustParseAddr("10.0.0.1"), DestQPN: 17, PathMTU: 1024}
}

func TestCompletionsAndEvents(t *testing.T) {
	for v, want := range map[int]qp.WCOpcode{0: qp.WCSend, 1: qp.WCWrite, 2: qp.WCRead, 128: qp.WCRecv, 129: qp.WCRecvWriteImm, 77: qp.WCSend} {
		if got := wcOpcode(v); got != want {
			t.Errorf("wcOpcode(%d) = %v, want %v", v, got, want)
		}
	}
	for v, want := range map[int]qp.EventType{0: qp.EventCQError, 1: qp.EventQPFatal, 2: qp.EventQPRequestErr,
		3: qp.EventQPAccessErr, 4: qp.EventCommEst, 8: qp.EventDeviceFatal, 5: 0, 9: 0} {
		if got := eventType(v); got != want {
			t.Errorf("eventType(%d) = %v, want %v", v, got, want)
		}
	}
	for v, want := range map[uint32]qp.Status{0: qp.StatusSuccess, 5: qp.StatusWRFlushErr, 13: qp.StatusRNRRetryExcErr, 21: qp.StatusGeneralErr, 300: qp.StatusGeneralErr} {
		if got := wcStatus(v); got != want {
			t.Errorf("wcStatus(%d) = %v, want %v", v, got, want)
		}
	}
	if got := sendFlags(qp.FlagSignaled | qp.FlagSolicited); got != 6 {
		t.Errorf("both send flags are %#x, want 6", got)
	}
	if got := sendFlags(qp.FlagFence); got != 1 {
		t.Errorf("Fence is %#x, want 1", got)
	}
	if got := sendFlags(qp.FlagSignaled); got != 2 {
		t.Errorf("Signaled is %#x, want 2", got)
	}
}

func TestGIDAddr(t *testing.T) {
	v4 := netip.MustParseAddr("10.1.2.3")
	if a, ok := gidAddr(netip.AddrFrom4(v4.As4()).As16(), vGIDRoCEv2); !ok || a != v4 {
		t.Errorf("IPv4-mapped GID: %v, %v", a, ok)
	}
	if a, ok := gidAddr(netip.AddrFrom4(v4.As4()).As16(), vGIDRoCEv2-1); ok {
		t.Errorf("a GID of RoCEv1 is taken for %v", a)
	}
	for _, s := range []string{"fe80::1", "::", "2001:db8::1"} {
		if a, ok := gidAddr(netip.MustParseAddr(s).As16(), vGIDRoCEv2); ok {
			t.Errorf("GID %s is taken for IPv4 %v", s, a)
		}
	}
}

func TestVerbErrorsSayWhatToDo(t *testing.T) {
	for _, tc := range []struct {
		verb  string
		errno syscall.Errno
		is    error
		says  string
	}{
		{"ibv_reg_mr", syscall.ENOMEM, qp.ErrLimit, "LimitMEMLOCK"},
		{"ibv_create_qp", syscall.ENOMEM, qp.ErrLimit, "ibv_create_qp"},
		{"ibv_dealloc_pd", syscall.EBUSY, qp.ErrBusy, "ibv_dealloc_pd"},
		{"ibv_open_device", syscall.EACCES, syscall.EACCES, "/dev/infiniband"},
		{"ibv_modify_qp", syscall.EINVAL, syscall.EINVAL, "ibv_modify_qp"},
	} {
		err := verbError(tc.verb, tc.errno)
		if !errors.Is(err, tc.is) || !errors.Is(err, tc.errno) || !strings.Contains(err.Error(), tc.says) {
			t.Errorf("%s, %v: %v", tc.verb, tc.errno, err)
		}
	}
}
