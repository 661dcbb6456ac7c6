package rocev2

import "fmt"

// An Opcode is the BTH opcode: transport service in the top three bits,
// operation in the low five (IBTA 1.2.1 table 38; CNP from annex A17).
type Opcode uint8

// The opcodes of reliable connections and unreliable datagrams, and the congestion notification
// packet.
const (
	SendFirst      Opcode = 0x00
	SendMiddle     Opcode = 0x01
	SendLast       Opcode = 0x02
	SendLastImm    Opcode = 0x03
	SendOnly       Opcode = 0x04
	SendOnlyImm    Opcode = 0x05
	WriteFirst     Opcode = 0x06
	WriteMiddle    Opcode = 0x07
	WriteLast      Opcode = 0x08
	WriteLastImm   Opcode = 0x09
	WriteOnly      Opcode = 0x0a
	WriteOnlyImm   Opcode = 0x0b
	ReadRequest    Opcode = 0x0c
	ReadRespFirst  Opcode = 0x0d
	ReadRespMiddle Opcode = 0x0e
	ReadRespLast   Opcode = 0x0f
	ReadRespOnly   Opcode = 0x10
	Acknowledge    Opcode = 0x11
	AtomicAck      Opcode = 0x12
	CompareSwap    Opcode = 0x13
	FetchAdd       Opcode = 0x14
	SendLastInv    Opcode = 0x16
	SendOnlyInv    Opcode = 0x17
	UDSendOnly     Opcode = 0x64
	UDSendOnlyImm  Opcode = 0x65
	CNP            Opcode = 0x81
)

// Sizes in bytes of the headers that this package encodes.
const (
	BTHLen    = 12
	RETHLen   = 16
	AETHLen   = 4
	ImmDtLen  = 4
	ICRCLen   = 4
	CNPPadLen = 16 // the reserved zero bytes that follow the BTH of a CNP
)

type opFlags uint16

const (
	flagFirst opFlags = 1 << iota // begins a message
	flagLast                      // ends a message
	flagSend
	flagWrite
	flagRETH
	flagAETH
	flagImm
	flagRequest // goes from requester to responder
	flagPayload // may carry payload
)

type opInfo struct {
	name  string
	flags opFlags
	len   uint8 // BTH and the extended headers that Headers holds, bytes
	ext   uint8 // extended headers after those, left in the payload, bytes
}

const (
	only = flagFirst | flagLast
	req  = flagRequest | flagPayload
)

// Sizes in bytes of the extended headers that Headers does not hold.
const (
	dethLen         = 8  // UD: Q_Key and source QPN
	atomicETHLen    = 28 // VA, rkey and two operands
	atomicAckETHLen = 8  // the value before the operation
	iethLen         = 4  // the rkey to invalidate
)

var opTable = [256]opInfo{
	SendFirst:      {"SEND_FIRST", flagFirst | flagSend | req, BTHLen, 0},
	SendMiddle:     {"SEND_MIDDLE", flagSend | req, BTHLen, 0},
	SendLast:       {"SEND_LAST", flagLast | flagSend | req, BTHLen, 0},
	SendLastImm:    {"SEND_LAST_IMM", flagLast | flagSend | flagImm | req, BTHLen + ImmDtLen, 0},
	SendOnly:       {"SEND_ONLY", only | flagSend | req, BTHLen, 0},
	SendOnlyImm:    {"SEND_ONLY_IMM", only | flagSend | flagImm | req, BTHLen + ImmDtLen, 0},
	WriteFirst:     {"WRITE_FIRST", flagFirst | flagWrite | flagRETH | req, BTHLen + RETHLen, 0},
	WriteMiddle:    {"WRITE_MIDDLE", flagWrite | req, BTHLen, 0},
	WriteLast:      {"WRITE_LAST", flagLast | flagWrite | req, BTHLen, 0},
	WriteLastImm:   {"WRITE_LAST_IMM", flagLast | flagWrite | flagImm | req, BTHLen + ImmDtLen, 0},
	WriteOnly:      {"WRITE_ONLY", only | flagWrite | flagRETH | req, BTHLen + RETHLen, 0},
	WriteOnlyImm:   {"WRITE_ONLY_IMM", only | flagWrite | flagRETH | flagImm | req, BTHLen + RETHLen + ImmDtLen, 0},
	ReadRequest:    {"READ_REQUEST", only | flagRETH | flagRequest, BTHLen + RETHLen, 0},
	ReadRespFirst:  {"READ_RESPONSE_FIRST", flagFirst | flagAETH | flagPayload, BTHLen + AETHLen, 0},
	ReadRespMiddle: {"READ_RESPONSE_MIDDLE", flagPayload, BTHLen, 0},
	ReadRespLast:   {"READ_RESPONSE_LAST", flagLast | flagAETH | flagPayload, BTHLen + AETHLen, 0},
	ReadRespOnly:   {"READ_RESPONSE_ONLY", only | flagAETH | flagPayload, BTHLen + AETHLen, 0},
	Acknowledge:    {"ACKNOWLEDGE", flagAETH, BTHLen + AETHLen, 0},
	AtomicAck:      {"ATOMIC_ACKNOWLEDGE", flagAETH, BTHLen + AETHLen, atomicAckETHLen},
	CompareSwap:    {"COMPARE_SWAP", only | flagRequest, BTHLen, atomicETHLen},
	FetchAdd:       {"FETCH_ADD", only | flagRequest, BTHLen, atomicETHLen},
	SendLastInv:    {"SEND_LAST_INVALIDATE", flagLast | flagSend | req, BTHLen, iethLen},
	SendOnlyInv:    {"SEND_ONLY_INVALIDATE", only | flagSend | req, BTHLen, iethLen},
	UDSendOnly:     {"UD_SEND_ONLY", only | flagSend | flagPayload, BTHLen, dethLen},
	UDSendOnlyImm:  {"UD_SEND_ONLY_IMM", only | flagSend | flagPayload, BTHLen, dethLen + ImmDtLen},
	CNP:            {"CNP", 0, BTHLen + CNPPadLen, 0},
}

// String returns the specification's name of the opcode, or its number.
func (o Opcode) String() string {
	if n := opTable[o].name; n != "" {
		return n
	}
	return fmt.Sprintf("OPCODE_0x%02x", uint8(o))
}

// Known reports whether the opcode is in this package's table.
func (o Opcode) Known() bool { return opTable[o].len != 0 }

// HeaderLen returns the length in bytes of what Headers.AppendTo writes and
// Headers.Parse reads for a packet with this opcode: BTH, RETH, AETH, ImmDt and
// a CNP's reserved bytes. It is 0 for an unknown opcode.
func (o Opcode) HeaderLen() int { return int(opTable[o].len) }

// ExtLen returns the length in bytes of the extended headers that Headers does not hold and that
// are therefore at the start of the payload: AtomicETH, AtomicAckETH, IETH (SEND with invalidate)
// and, for UD, DETH and the immediate data after it. They belong to operations that mcrdma does not
// support.
func (o Opcode) ExtLen() int { return int(opTable[o].ext) }

func (o Opcode) has(f opFlags) bool { return opTable[o].flags&f != 0 }

// HasRETH reports whether packets with this opcode carry a RETH.
func (o Opcode) HasRETH() bool { return o.has(flagRETH) }

// HasAETH reports whether packets with this opcode carry an AETH.
func (o Opcode) HasAETH() bool { return o.has(flagAETH) }

// HasImm reports whether packets with this opcode carry immediate data in
// Headers.Imm. It is false for UD; see ExtLen.
func (o Opcode) HasImm() bool { return o.has(flagImm) }

// IsFirst reports whether the packet begins a message (First or Only).
func (o Opcode) IsFirst() bool { return o.has(flagFirst) }

// IsLast reports whether the packet ends a message (Last or Only).
func (o Opcode) IsLast() bool { return o.has(flagLast) }

// IsSend reports whether the packet is part of a SEND.
func (o Opcode) IsSend() bool { return o.has(flagSend) }

// IsWrite reports whether the packet is part of an RDMA WRITE.
func (o Opcode) IsWrite() bool { return o.has(flagWrite) }

// HasPayload reports whether packets with this opcode may carry payload other than the extended
// headers of ExtLen.
func (o Opcode) HasPayload() bool { return o.has(flagPayload) }

// IsRequest reports whether the packet goes from requester to responder.
func (o Opcode) IsRequest() bool { return o.has(flagRequest) }
