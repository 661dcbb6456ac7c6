// Package rc holds the reliable-connection transport as pure state machines:
// the Requester turns work requests into packets and acknowledgements into
// completions, the Responder turns packets into memory writes, receive
// completions, acknowledgements and READ responses, and QP joins one of each as a queue pair
// does. IBTA 1.2.1 §9.7 is the specification; deviations are noted where they
// are made.
//
// The package is pure: no sockets, clocks, goroutines, logging or randomness. Time is a monotonic
// duration since an epoch that the caller chooses and passes in as now; it must never decrease. The
// caller passes in packets and work requests, then pulls the results:
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

// Never is the deadline of a machine that waits for nothing but input.
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

// Memory is the responder's view of registered memory.
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
	Access              qp.Access // what the peer may do
	// MaxRdAtomic is how many READ requests may be outstanding, MaxDestRdAtomic how many the
	// peer may have.
	MaxRdAtomic, MaxDestRdAtomic uint8

	// Window is the largest number of unacknowledged packets, 0 for
	// DefaultWindow. After a loss it is less for a while.
	Window int
	// AckEvery makes the requester ask for an acknowledgement every so many
	// packets of a message, and at its last; 0 for a quarter of Window.
	AckEvery int

	// CC holds the congestion control parameters.
	CC CCParams
}

// DefaultWindow is the Window of a zero Config: 64 packets of 4 KiB are just
// inside the receive buffer that Linux gives an unprivileged socket.
const DefaultWindow = 64

// def gives v the value d unless it is positive.
func def[T cmp.Ordered](v *T, d T) {
	var zero T
	if *v <= zero {
		*v = d
	}
}
