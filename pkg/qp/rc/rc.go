// Package rc implements the reliable-connection transport as pure state machines: the Requester
// turns work requests into packets, and acknowledgements into completions; the Responder turns
// packets into memory writes, receive completions, acknowledgements and READ responses; a QP
// consists of one of each. The specification is IBTA 1.2.1 §9.7; comments in the code name the
// deviations.
//
// The package is pure: no sockets, clocks, goroutines, logging or randomness. Time is a monotonic
// duration since an epoch that the caller chooses and passes in as now; it must never decrease. The
// caller passes in packets and work requests, then retrieves the results:
//
//	q.Handle(&in, now)          // a packet has arrived
//	for q.Next(now, &out) {…}   // packets to send now
//	for q.NextSendWC(&wc) {…}   // completions, and NextRecvWC
//	t := q.Deadline()           // call Tick(t) then, if nothing else happens
//
// Nothing allocates in steady state. None of the types is safe for concurrent
// use: the caller holds one lock per queue pair.
//
// Production devices, the deterministic simulator and the model checker run this same code.
package rc

import (
	"cmp"
	"time"

	"github.com/mcrdma/mcrdma/pkg/qp"
	"github.com/mcrdma/mcrdma/pkg/rocev2"
)

// Never is the deadline if only input causes work.
const Never = time.Duration(1<<63 - 1)

// In is a received packet whose ICRC, addresses, P_Key and destination QPN the
// caller has checked. Payload is only read during the call.
type In struct {
	rocev2.Headers
	Payload []byte
	CE      bool // IP ECN field was Congestion Experienced
}

// Out is a packet to send. The caller reuses one Out for many calls of Next.
type Out struct {
	rocev2.Headers
	// Payload is the payload in order, in pieces that alias the memory of the
	// work request; valid until the request completes. That of a READ response
	// is from Memory. Padding is not included: Headers.Pad says how many zero
	// bytes follow.
	Payload    [][]byte
	PayloadLen int
	// Retransmit marks a packet that repeats a PSN sent before.
	Retransmit bool
}

// Memory gives the responder access to registered memory.
type Memory interface {
	// Remote returns the n bytes at va if rkey grants the peer of this queue
	// pair the access need, remote write or remote read, to all of them, and
	// false otherwise. The slice is used before the next call into the machine
	// and not kept.
	Remote(rkey uint32, va uint64, n int, need qp.Access) ([]byte, bool)
}

// Config holds a queue pair's attributes. Sizes are fixed at creation; the
// rest comes from modify-QP.
type Config struct {
	MaxSendWR, MaxRecvWR, MaxSGE int
	SignalAll                    bool

	LocalQPN, RemoteQPN rocev2.QPN
	PathMTU             int
	SQPSN, RQPSN        rocev2.PSN
	Timeout             uint8
	RetryCnt            uint8
	RNRRetry            uint8
	MinRNRTimer         uint8
	Access              qp.Access // operations that the peer may perform
	// MaxRdAtomic is the maximum number of this side's outstanding READ requests, MaxDestRdAtomic
	// of the peer's.
	MaxRdAtomic, MaxDestRdAtomic uint8

	// Window is the maximum number of unacknowledged packets, 0 for DefaultWindow. After a loss the
	// limit is lower for a while.
	Window int
	// AckEvery makes the requester ask for an acknowledgement every AckEvery packets of a message,
	// and at its last packet; 0 means a quarter of Window.
	AckEvery int

	// CC holds the congestion control parameters.
	CC CCParams
}

// DefaultWindow is the Window of a zero Config: 64 packets of 4 KiB just fit into the receive
// buffer that Linux gives an unprivileged socket.
const DefaultWindow = 64

// def sets v to d unless v is positive.
func def[T cmp.Ordered](v *T, d T) {
	var zero T
	if *v <= zero {
		*v = d
	}
}
