package qp

import (
	"fmt"

	"github.com/mcrdma/mcrdma/pkg/rocev2"
)

// Access says what a memory region or queue pair allows.
type Access uint8

// The access rights; numbers as in libibverbs.
const (
	AccessLocalWrite  Access = 1 << iota // receives may land here
	AccessRemoteWrite                    // peers may WRITE here; implies local write
	AccessRemoteRead
	AccessRemoteAtomic
)

// An SGE names Length bytes at Addr in the region whose local key is LKey.
type SGE struct {
	Addr   uint64
	Length uint32
	LKey   uint32
}

// An Opcode is the operation of a send request.
type Opcode uint8

// The send operations; numbers as in libibverbs. The atomics are named so that
// posting them can be refused clearly.
const (
	OpWrite    Opcode = 0
	OpWriteImm Opcode = 1
	OpSend     Opcode = 2
	OpSendImm  Opcode = 3
	OpRead     Opcode = 4
	OpCmpSwap  Opcode = 5
	OpFetchAdd Opcode = 6
)

// IsWrite reports whether o is an RDMA WRITE, with immediate or without.
func (o Opcode) IsWrite() bool { return o == OpWrite || o == OpWriteImm }

// HasImm reports whether o carries immediate data.
func (o Opcode) HasImm() bool { return o == OpWriteImm || o == OpSendImm }

// String returns the verbs name.
func (o Opcode) String() string { return nameOf(o, "OPCODE_UNKNOWN", opcodeNames) }

var opcodeNames = []string{"RDMA_WRITE", "RDMA_WRITE_WITH_IMM", "SEND", "SEND_WITH_IMM", "RDMA_READ",
	"ATOMIC_CMP_AND_SWP", "ATOMIC_FETCH_AND_ADD"}

// SendFlags modify a send request.
type SendFlags uint8

// The send flags.
const (
	FlagSignaled  SendFlags = 1 << iota // complete visibly on success
	FlagSolicited                       // set the solicited-event bit in the last packet
	FlagFence                           // begin when all READs posted before are complete
	FlagDeferred                        // may complete with a later request, or some milliseconds later: devices may save its acknowledgement
)

// A SendWR is a send work request. Its message is the concatenation of the
// SGEs, 0 to MaxMessage bytes. A READ fills them, so their regions must allow
// local write; until it completes, their content is undefined. A request posted
// after a READ may change what the READ finds, unless it has FlagFence.
type SendWR struct {
	ID         uint64 // comes back in the completion
	Opcode     Opcode
	Flags      SendFlags
	SGEs       []SGE
	Imm        uint32 // for the immediate opcodes
	RemoteAddr uint64 // for WRITE and READ
	RKey       uint32 // for WRITE and READ
}

// A RecvWR is a receive work request: where the next SEND lands.
type RecvWR struct {
	ID   uint64
	SGEs []SGE
}

// MaxMessage is the largest message, bytes (IBTA 1.2.1 §9.7.7: 2^31).
const MaxMessage = 1 << 31

// A WC is a work completion.
type WC struct {
	ID      uint64
	Status  Status
	Opcode  WCOpcode
	QPN     rocev2.QPN
	ByteLen uint32 // received bytes; valid for receive completions
	Imm     uint32 // valid if HasImm
	HasImm  bool
	// VendorErr carries the AETH syndrome or a device code for failures.
	VendorErr uint32
}

// A WCOpcode says which kind of request completed.
type WCOpcode uint8

// The completion opcodes.
const (
	WCSend WCOpcode = iota
	WCWrite
	WCRecv
	WCRecvWriteImm // a receive consumed by a WRITE with immediate
	WCRead
)

// String returns the verbs name.
func (o WCOpcode) String() string { return nameOf(o, "OPCODE_UNKNOWN", wcOpcodeNames) }

var wcOpcodeNames = []string{"SEND", "RDMA_WRITE", "RECV", "RECV_RDMA_WITH_IMM", "RDMA_READ"}

// A Status is a completion status; numbers and names as in libibverbs.
type Status uint8

// The completion statuses.
const (
	StatusSuccess Status = iota
	StatusLocLenErr
	StatusLocQPOpErr
	StatusLocEECOpErr
	StatusLocProtErr
	StatusWRFlushErr
	StatusMWBindErr
	StatusBadRespErr
	StatusLocAccessErr
	StatusRemInvReqErr
	StatusRemAccessErr
	StatusRemOpErr
	StatusRetryExcErr
	StatusRNRRetryExcErr
	StatusLocRDDViolErr
	StatusRemInvRDReqErr
	StatusRemAbortErr
	StatusInvEECNErr
	StatusInvEECStateErr
	StatusFatalErr
	StatusRespTimeoutErr
	StatusGeneralErr
)

var statusNames = []string{"success", "local length error", "local QP operation error",
	"local EE context operation error", "local protection error", "Work Request Flushed Error",
	"memory management operation error", "bad response error", "local access error",
	"remote invalid request error", "remote access error", "remote operation error",
	"transport retry counter exceeded", "RNR retry counter exceeded", "local RDD violation error",
	"remote invalid RD request", "aborted error", "invalid EE context number", "invalid EE context state",
	"fatal error", "response timeout error", "general error"}

// String returns the text of ibv_wc_status_str.
func (s Status) String() string { return nameOf(s, "unknown", statusNames) }

// Err returns nil for StatusSuccess and otherwise an error that wraps s, so that
// errors.As finds the status.
func (s Status) Err() error {
	if s == StatusSuccess {
		return nil
	}
	return StatusError{s}
}

// A StatusError is a failed completion as an error.
type StatusError struct{ Status Status }

// Error returns the status text.
func (e StatusError) Error() string { return "qp: work completion: " + e.Status.String() }

// nameOf returns name number n.
func nameOf[T ~uint8](n T, unknown string, names []string) string {
	if int(n) < len(names) {
		return names[n]
	}
	return unknown
}

// CheckOpcode reports whether op can be posted. On a multicast queue pair READ
// and atomics have no meaning (N receivers would each answer; MC-RDMA §IV-A), and
// atomics are not offered on the others.
func CheckOpcode(op Opcode, multicast bool) error {
	switch {
	case op <= OpSendImm, op == OpRead && !multicast:
		return nil
	case op > OpFetchAdd:
		return fmt.Errorf("%w: opcode %d is unknown", ErrOpcode, uint8(op))
	case multicast:
		return fmt.Errorf("%w: %v on a multicast queue pair: every receiver would answer with its own data; "+
			"read from one replica over a unicast queue pair", ErrOpcode, op)
	}
	return fmt.Errorf("%w: %v: this device offers SEND, WRITE and READ only", ErrOpcode, op)
}
