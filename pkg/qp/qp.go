package qp

import (
	"context"
	"net/netip"
	"time"

	"github.com/mcrdma/mcrdma/pkg/rocev2"
)

// A Device is an open RDMA device. All methods are safe for concurrent use.
type Device interface {
	// Name returns the name it was opened by, for example "softroce:10.0.0.1".
	Name() string
	// Attr describes the device and its port.
	Attr() DeviceAttr
	// AllocPD allocates a protection domain.
	AllocPD() (PD, error)
	// CreateCQ creates a completion queue with room for depth completions.
	// Overrunning it is an error of the application: the queue and the queue
	// pairs that feed it go to the error state, as on hardware.
	CreateCQ(depth int) (CQ, error)
	// Event waits for the next asynchronous event (a queue pair that failed
	// without a work request to blame, a CQ overrun). It returns ErrClosed
	// after Close.
	Event(ctx context.Context) (Event, error)
	// Counters returns a snapshot of the device's statistics by name: packets
	// and bytes each way, and every dropped packet under its reason.
	Counters() map[string]uint64
	// Close destroys everything that was created from the device, then the
	// device. Outstanding waits return ErrClosed.
	Close() error
}

// A Poller is a device whose owner can have it poll.
type Poller interface {
	// PollFor has the device poll for packets for that long from now, and let other processes run
	// between polls, where it would otherwise block and be woken. It suits short waits for which a
	// wake-up takes long. A device that others need the processor of blocks nevertheless.
	PollFor(d time.Duration)
}

// DeviceAttr describes a device and its port.
type DeviceAttr struct {
	Driver    string     // "softroce" or "ibverbs"
	Addr      netip.Addr // the IPv4 address of the GID in use
	ActiveMTU int        // largest path MTU, bytes of payload per packet: 256..4096
	MaxSGE    int        // gather and scatter entries per work request
	MaxQPWR   int        // work requests outstanding per queue
	MaxCQE    int
	// SeesIdentification: the device sees the IPv4 identification of what it receives, and takes any.
	// One that does not cannot check the ICRC under another than its peer is known to send.
	SeesIdentification bool
}

// A PD is a protection domain: memory regions and queue pairs of one PD may be
// used together.
type PD interface {
	// RegMR registers buf for local use and, as access allows, for remote use.
	// The device keeps buf alive and reads and writes it until the region is
	// closed; the application owns the bytes between posting and completion as
	// verbs programs do.
	RegMR(buf []byte, access Access) (MR, error)
	// CreateQP creates an RC queue pair in StateReset.
	CreateQP(init Init) (QP, error)
	// Close frees the domain; it is ErrBusy while regions or queue pairs live.
	Close() error
}

// A Mapper is a PD that registers memory under a virtual address of the caller's choice.
type Mapper interface {
	// RegMRAt is RegMR with va as the region's address, which is multiples of the page
	// size away from that of buf where a NIC translates. Errors wrap ErrAttr if the device cannot.
	RegMRAt(buf []byte, va uint64, access Access) (MR, error)
}

// An MR is a registered memory region.
type MR interface {
	Bytes() []byte
	Addr() uint64 // virtual address of the first byte, as peers and SGEs name it
	LKey() uint32
	RKey() uint32
	// SGE names n bytes at offset off of the region. It panics if they are not
	// inside, as slicing would.
	SGE(off, n int) SGE
	// Close deregisters the region. When it returns, the device reads and
	// writes it no more.
	Close() error
}

// A CQ is a completion queue.
type CQ interface {
	// Poll moves up to len(wc) completions into wc without waiting and returns
	// how many. It does not allocate. It returns ErrOverrun once if
	// completions were lost, and ErrClosed after Close.
	Poll(wc []WC) (int, error)
	// Wait returns when at least one completion is there to be polled, or with
	// ctx's error, or with ErrClosed.
	Wait(ctx context.Context) error
	// Close destroys the queue; it is ErrBusy while queue pairs use it.
	Close() error
}

// A QP is an RC queue pair.
type QP interface {
	QPN() rocev2.QPN
	State() State
	// Modify changes the attributes that mask names. CheckModify states which
	// attributes each transition needs.
	Modify(attr *Attr, mask AttrMask) error
	// Query returns all attributes, with the present PSNs.
	Query() (Attr, error)
	// PostSend queues a send request. The request and its SGE slice may be
	// reused when it returns; the memory that the SGEs name may not, until
	// the completion. Errors: ErrQueueFull, ErrState, ErrOpcode, ErrSGE.
	PostSend(wr *SendWR) error
	// PostRecv queues a receive request; same rules.
	PostRecv(wr *RecvWR) error
	// Close destroys the queue pair without completing what is queued.
	Close() error
}

// A Silencer is a queue pair that says for how long its peer has been silent. A device may
// send late what was posted, and the peer is not to blame for that.
type Silencer interface {
	// Silence is the time since the last acknowledgement, or since the oldest packet that is
	// not acknowledged was sent; 0 if there is none. Patience is for how long acknowledgements
	// are to be waited for, as the device has learned of late.
	Silence() (silence, patience time.Duration)
}

// Init holds what is fixed when a queue pair is created. Zero values of the
// sizes mean DefaultWR and DefaultSGE.
type Init struct {
	SendCQ, RecvCQ CQ // both required; may be the same
	MaxSendWR      int
	MaxRecvWR      int
	MaxSGE         int
	// SignalAll makes every send request complete visibly (verbs'
	// sq_sig_all); otherwise only those posted with FlagSignaled, and failures.
	SignalAll bool
	// Multicast marks the sender of a multicast group: READ and atomics are
	// then refused with an error that says why.
	Multicast bool
}

// Defaults for the zero values in Init.
const (
	DefaultWR  = 128
	DefaultSGE = 4
)

// An Event is an asynchronous event.
type Event struct {
	Type EventType
	QPN  rocev2.QPN // of the queue pair concerned, 0 if none
	Err  error      // detail
}

// An EventType says what happened; names as in verbs.
type EventType uint8

// The asynchronous events.
const (
	EventQPFatal      EventType = iota + 1 // the queue pair went to the error state
	EventQPRequestErr                      // the responder refused a malformed request
	EventQPAccessErr                       // the responder refused a memory access
	EventCommEst                           // first packet arrived in RTR
	EventCQError                           // completion queue overrun
	EventDeviceFatal
)

// String returns the verbs name of the event.
func (t EventType) String() string { return nameOf(t, eventNames[0], eventNames) }

var eventNames = []string{"EVENT_UNKNOWN", EventQPFatal: "QP_FATAL", EventQPRequestErr: "QP_REQ_ERR", EventQPAccessErr: "QP_ACCESS_ERR",
	EventCommEst: "COMM_EST", EventCQError: "CQ_ERR", EventDeviceFatal: "DEVICE_FATAL"}
