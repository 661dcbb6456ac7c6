package qp

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/mcrdma/mcrdma/pkg/rocev2"
)

// A State is a queue pair state; numbers as in libibverbs. StateSQE is for
// unreliable services and never entered by an RC queue pair.
type State uint8

// The queue pair states (IBTA 1.2.1 §10.3.1).
const (
	StateReset State = iota
	StateInit
	StateRTR
	StateRTS
	StateSQD
	StateSQE
	StateError
)

// String returns the verbs name.
func (s State) String() string { return nameOf(s, "UNKNOWN", verbsStates) }

var verbsStates = []string{"RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR"}

// Attr holds the attributes of an RC queue pair.
type Attr struct {
	State    State
	Access   Access     // what the peer may do through this queue pair
	DestAddr netip.Addr // peer's IPv4 address
	DestQPN  rocev2.QPN
	PathMTU  int // payload bytes per packet: 256, 512, 1024, 2048 or 4096
	SQPSN    rocev2.PSN
	RQPSN    rocev2.PSN
	Timeout  uint8 // local ACK timeout exponent: 4.096 µs × 2^Timeout; 0 = none
	RetryCnt uint8 // 0..7 retries after a time-out or sequence NAK
	RNRRetry uint8 // 0..6 retries after an RNR NAK; 7 = without end
	// MinRNRTimer is the 5-bit code that this side's RNR NAKs carry. Code 0
	// means 655.36 ms, the longest.
	MinRNRTimer uint8
	DSCP        uint8 // 0..63, for the IPv4 header of what this side sends
	// MaxRdAtomic is how many READ requests this side has outstanding at the most, MaxDestRdAtomic
	// how many the peer may have; 0: none. This side's MaxRdAtomic must not be more than the
	// peer's MaxDestRdAtomic: a READ too many is refused, and both queue pairs fail.
	MaxRdAtomic, MaxDestRdAtomic uint8
}

// MaxReads is the largest MaxRdAtomic and MaxDestRdAtomic.
const MaxReads = 16

// AckTimeout returns the local ACK timeout that exponent t means, 0 for none.
func AckTimeout(t uint8) time.Duration {
	if t == 0 {
		return 0
	}
	return 4096 * time.Nanosecond << (t & 0x1f)
}

// An AttrMask names attributes of Attr.
type AttrMask uint16

// The attribute names.
const (
	MaskState AttrMask = 1 << iota
	MaskAccess
	MaskDestAddr
	MaskDestQPN
	MaskPathMTU
	MaskSQPSN
	MaskRQPSN
	MaskTimeout
	MaskRetryCnt
	MaskRNRRetry
	MaskMinRNRTimer
	MaskDSCP
	MaskMaxRdAtomic
	MaskMaxDestRdAtomic
)

var maskNames = [...]string{"State", "Access", "DestAddr", "DestQPN", "PathMTU", "SQPSN", "RQPSN",
	"Timeout", "RetryCnt", "RNRRetry", "MinRNRTimer", "DSCP", "MaxRdAtomic", "MaxDestRdAtomic"}

// String lists the names, comma-separated, and unknown bits in hexadecimal.
func (m AttrMask) String() string {
	var out []string
	for i, n := range maskNames {
		if m&(1<<i) != 0 {
			out = append(out, n)
		}
	}
	if rest := m >> len(maskNames) << len(maskNames); rest != 0 {
		out = append(out, fmt.Sprintf("%#x", uint16(rest)))
	}
	return strings.Join(out, ",")
}

// Merge copies the attributes that mask names.
func (a *Attr) Merge(from *Attr, mask AttrMask) {
	set(&a.State, from.State, mask, MaskState)
	set(&a.Access, from.Access, mask, MaskAccess)
	set(&a.DestAddr, from.DestAddr, mask, MaskDestAddr)
	set(&a.DestQPN, from.DestQPN, mask, MaskDestQPN)
	set(&a.PathMTU, from.PathMTU, mask, MaskPathMTU)
	set(&a.SQPSN, from.SQPSN, mask, MaskSQPSN)
	set(&a.RQPSN, from.RQPSN, mask, MaskRQPSN)
	set(&a.Timeout, from.Timeout, mask, MaskTimeout)
	set(&a.RetryCnt, from.RetryCnt, mask, MaskRetryCnt)
	set(&a.RNRRetry, from.RNRRetry, mask, MaskRNRRetry)
	set(&a.MinRNRTimer, from.MinRNRTimer, mask, MaskMinRNRTimer)
	set(&a.DSCP, from.DSCP, mask, MaskDSCP)
	set(&a.MaxRdAtomic, from.MaxRdAtomic, mask, MaskMaxRdAtomic)
	set(&a.MaxDestRdAtomic, from.MaxDestRdAtomic, mask, MaskMaxDestRdAtomic)
}

func set[T any](to *T, from T, mask, name AttrMask) {
	if mask&name != 0 {
		*to = from
	}
}

// Convenient masks for the usual way up: exactly what each transition needs.
const (
	MaskInit = MaskState | MaskAccess
	MaskRTR  = MaskState | MaskDestAddr | MaskDestQPN | MaskPathMTU | MaskRQPSN | MaskMinRNRTimer
	MaskRTS  = MaskState | MaskSQPSN | MaskTimeout | MaskRetryCnt | MaskRNRRetry
)

type transition struct{ required, optional AttrMask }

// transitions is IBTA 1.2.1 table 91, cut to RC and to this API's attributes. It requires the
// depths of READ too, and lets SQD change both; here a queue pair without them has no READs.
// StateReset and StateError can be entered from everywhere with the state alone.
var transitions = map[[2]State]transition{
	{StateReset, StateInit}: {MaskInit, 0},
	{StateInit, StateInit}:  {0, MaskState | MaskAccess},
	{StateInit, StateRTR}:   {MaskRTR, MaskAccess | MaskDSCP | MaskMaxDestRdAtomic},
	{StateRTR, StateRTS}:    {MaskRTS, MaskAccess | MaskMinRNRTimer | MaskDSCP | MaskMaxRdAtomic},
	{StateRTS, StateRTS}:    {0, MaskState | MaskAccess | MaskMinRNRTimer},
	{StateRTS, StateSQD}:    {MaskState, 0},
	{StateSQD, StateSQD}:    {0, MaskState | MaskAccess | MaskMinRNRTimer | MaskTimeout | MaskRetryCnt | MaskRNRRetry | MaskDSCP},
	{StateSQD, StateRTS}:    {MaskState, MaskAccess | MaskMinRNRTimer},
}

// CheckModify reports whether a queue pair in state cur may be modified with
// attr and mask: the transition exists, every attribute that it needs is
// there, none that it forbids, and the values are in range. The error wraps
// ErrState or ErrAttr and names what is wrong. Every device uses it.
func CheckModify(cur State, attr *Attr, mask AttrMask) error {
	next := cur
	if mask&MaskState != 0 {
		next = attr.State
	}
	if next == StateReset || next == StateError {
		if mask&^MaskState != 0 {
			return fmt.Errorf("%w: %v → %v takes no attributes, got %v", ErrAttr, cur, next, mask&^MaskState)
		}
		return nil
	}
	t, ok := transitions[[2]State{cur, next}]
	if !ok {
		return fmt.Errorf("%w: no transition %v → %v", ErrState, cur, next)
	}
	if miss := t.required &^ mask; miss != 0 {
		return fmt.Errorf("%w: %v → %v needs %v", ErrAttr, cur, next, miss)
	}
	if extra := mask &^ (t.required | t.optional); extra != 0 {
		return fmt.Errorf("%w: %v → %v does not allow %v", ErrAttr, cur, next, extra)
	}
	return checkRanges(attr, mask)
}

func checkRanges(a *Attr, mask AttrMask) error {
	bad := func(m AttrMask, format string, args ...any) error {
		return fmt.Errorf("%w: %v: %s", ErrAttr, m, fmt.Sprintf(format, args...))
	}
	switch {
	case mask&MaskAccess != 0 && a.Access >= AccessRemoteAtomic<<1:
		return bad(MaskAccess, "%#x has unknown bits", uint8(a.Access))
	case mask&MaskDestAddr != 0 && (!a.DestAddr.Is4() || a.DestAddr.IsUnspecified() || a.DestAddr.IsMulticast()):
		return bad(MaskDestAddr, "%v is not a unicast IPv4 address", a.DestAddr)
	case mask&MaskDestQPN != 0 && (a.DestQPN > rocev2.Mask24 || a.DestQPN < 2):
		return bad(MaskDestQPN, "%#x is not 2..0xffffff", uint32(a.DestQPN))
	case mask&MaskPathMTU != 0 && !ValidMTU(a.PathMTU):
		return bad(MaskPathMTU, "%d is not 256, 512, 1024, 2048 or 4096", a.PathMTU)
	case mask&MaskSQPSN != 0 && a.SQPSN > rocev2.Mask24:
		return bad(MaskSQPSN, "%#x has more than 24 bits", uint32(a.SQPSN))
	case mask&MaskRQPSN != 0 && a.RQPSN > rocev2.Mask24:
		return bad(MaskRQPSN, "%#x has more than 24 bits", uint32(a.RQPSN))
	}
	for _, n := range [...]struct {
		name        AttrMask
		value, most uint8
	}{
		{MaskTimeout, a.Timeout, 31}, {MaskRetryCnt, a.RetryCnt, 7}, {MaskRNRRetry, a.RNRRetry, 7}, {MaskMinRNRTimer, a.MinRNRTimer, 31},
		{MaskDSCP, a.DSCP, 63}, {MaskMaxRdAtomic, a.MaxRdAtomic, MaxReads}, {MaskMaxDestRdAtomic, a.MaxDestRdAtomic, MaxReads},
	} {
		if mask&n.name != 0 && n.value > n.most {
			return bad(n.name, "%d is not 0..%d", n.value, n.most)
		}
	}
	return nil
}

// mtus are the path MTUs of InfiniBand.
var mtus = []int{4096, 2048, 1024, 512, 256}

// ValidMTU reports whether n is a path MTU of InfiniBand.
func ValidMTU(n int) bool { return slices.Contains(mtus, n) }

// MTUFor returns the largest path MTU whose packets fit into a netdev MTU of n
// bytes with IPv4, UDP and RoCEv2 headers: 1500 → 1024, 4200 → 4096, as with
// the Linux kernel, which however reserves 80 bytes for headers where 64 will
// do, and so may come out lower in between. It returns 0 if not even 256 fits.
func MTUFor(n int) int {
	const overhead = 20 + 8 + rocev2.BTHLen + rocev2.RETHLen + rocev2.ImmDtLen + rocev2.ICRCLen
	for _, m := range mtus {
		if n >= m+overhead {
			return m
		}
	}
	return 0
}
