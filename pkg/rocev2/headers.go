package rocev2

import (
	"encoding/binary"
	"fmt"
)

// DefaultPKey is the full-membership default partition key, the only one that
// RoCE uses.
const DefaultPKey = 0xffff

// A BTH is the base transport header (IBTA 1.2.1 §9.2), 12 bytes on the wire. Reserved bits are
// sent as zero and ignored on receipt, as specified; Resv6 and Resv7 keep them so that a decoded
// frame re-encodes exactly. (A CNP's reserved bytes are not kept.)
type BTH struct {
	Opcode    Opcode
	Solicited bool
	MigReq    bool
	Pad       uint8 // bytes of padding after the payload, 0..3
	TVer      uint8 // transport header version, 0
	PKey      uint16
	FECN      bool
	BECN      bool
	Resv6     uint8 // 6 reserved bits after BECN
	DestQP    QPN
	AckReq    bool
	Resv7     uint8 // 7 reserved bits after AckReq
	PSN       PSN
}

// A RETH is the RDMA extended transport header (IBTA 1.2.1 §9.3.3), carried by
// the First and Only packets of a WRITE and by READ requests.
type RETH struct {
	VA     uint64 // virtual address at the responder
	RKey   uint32
	Length uint32 // length of the whole DMA, bytes
}

// An AETH is the ACK extended transport header (IBTA 1.2.1 §9.5.1).
type AETH struct {
	Syndrome Syndrome
	MSN      uint32 // message sequence number, 24 bits
}

// Headers holds the transport headers of one packet: always the BTH, and the others that the opcode
// carries (see Opcode.HasRETH etc.). Headers that the opcode does not carry are neither written nor
// read.
type Headers struct {
	BTH
	RETH RETH
	AETH AETH
	Imm  uint32 // immediate data, as the number that the application passed
}

// CNPHeaders returns the headers of a congestion notification packet to dst (IBTA 1.2.1 annex
// A17.9.3). With 16 reserved bytes and no payload its IPv4 packet has 60 bytes.
func CNPHeaders(dst QPN) Headers {
	return Headers{BTH: BTH{Opcode: CNP, PKey: DefaultPKey, BECN: true, DestQP: dst}}
}

// Len returns the encoded size of h in bytes, payload and ICRC excluded. It is
// Opcode.HeaderLen, or that of the BTH for an unknown opcode.
func (h *Headers) Len() int { return max(h.Opcode.HeaderLen(), BTHLen) }

// AppendTo appends the encoded headers to b and returns the result: only the BTH for an unknown
// opcode. It allocates only if b has no room. Numbers are truncated to the width of their fields.
func (h *Headers) AppendTo(b []byte) []byte {
	b = h.appendBTH(b)
	op := h.Opcode
	if op.HasRETH() {
		b = binary.BigEndian.AppendUint64(b, h.RETH.VA)
		b = binary.BigEndian.AppendUint32(b, h.RETH.RKey)
		b = binary.BigEndian.AppendUint32(b, h.RETH.Length)
	}
	if op.HasAETH() {
		b = binary.BigEndian.AppendUint32(b, uint32(h.AETH.Syndrome)<<24|h.AETH.MSN&Mask24)
	}
	if op.HasImm() {
		b = binary.BigEndian.AppendUint32(b, h.Imm)
	}
	if op == CNP {
		b = append(b, make([]byte, CNPPadLen)...)
	}
	return b
}

func (h *BTH) appendBTH(b []byte) []byte {
	return append(b,
		byte(h.Opcode),
		bit(h.Solicited, 7)|bit(h.MigReq, 6)|h.Pad&3<<4|h.TVer&0xf,
		byte(h.PKey>>8), byte(h.PKey),
		bit(h.FECN, 7)|bit(h.BECN, 6)|h.Resv6&0x3f,
		byte(h.DestQP>>16), byte(h.DestQP>>8), byte(h.DestQP),
		bit(h.AckReq, 7)|h.Resv7&0x7f,
		byte(h.PSN>>16), byte(h.PSN>>8), byte(h.PSN))
}

// Parse decodes the transport headers at the start of b (the UDP payload without its ICRC) into h
// and returns the payload without its padding, as a sub-slice of b. Extended headers that Headers
// does not hold remain in the payload, as its first Opcode.ExtLen bytes. Errors, wrapped with
// details: ErrTruncated; ErrOpcode for an opcode that is not in this package's table (the BTH is
// decoded nevertheless); and ErrFormat for a packet with payload or padding where its opcode allows
// none, and for a CNP without its reserved bytes. Fields that the opcode does not carry are left
// unchanged. It allocates only to report an error.
func (h *Headers) Parse(b []byte) (payload []byte, err error) {
	if len(b) < BTHLen {
		return nil, fmt.Errorf("%w: %d bytes, a BTH has %d", ErrTruncated, len(b), BTHLen)
	}
	h.parseBTH(b)
	op := h.Opcode
	if !op.Known() {
		return nil, fmt.Errorf("%w 0x%02x", ErrOpcode, uint8(op))
	}
	n := op.HeaderLen()
	least := n + op.ExtLen()
	switch {
	case op == CNP && len(b) < n:
		return nil, fmt.Errorf("%w: a CNP without its %d reserved bytes: %w", ErrFormat, CNPPadLen, ErrTruncated)
	case len(b) < least+int(h.Pad):
		return nil, fmt.Errorf("%w: %d bytes, %v needs %d and %d of padding", ErrTruncated, len(b), op, least, h.Pad)
	case !op.HasPayload() && len(b) > least:
		return nil, fmt.Errorf("%w: %v with %d bytes of payload and padding", ErrFormat, op, len(b)-least)
	}
	at := BTHLen
	if op.HasRETH() {
		h.RETH.VA = binary.BigEndian.Uint64(b[at:])
		h.RETH.RKey = binary.BigEndian.Uint32(b[at+8:])
		h.RETH.Length = binary.BigEndian.Uint32(b[at+12:])
		at += RETHLen
	}
	if op.HasAETH() {
		v := binary.BigEndian.Uint32(b[at:])
		h.AETH = AETH{Syndrome: Syndrome(v >> 24), MSN: v & Mask24}
		at += AETHLen
	}
	if op.HasImm() {
		h.Imm = binary.BigEndian.Uint32(b[at:])
	}
	return b[n : len(b)-int(h.Pad)], nil
}

func (h *BTH) parseBTH(b []byte) {
	_ = b[11]
	h.Opcode = Opcode(b[0])
	h.Solicited = b[1]&0x80 != 0
	h.MigReq = b[1]&0x40 != 0
	h.Pad = b[1] >> 4 & 3
	h.TVer = b[1] & 0xf
	h.PKey = binary.BigEndian.Uint16(b[2:])
	h.FECN = b[4]&0x80 != 0
	h.BECN = b[4]&0x40 != 0
	h.Resv6 = b[4] & 0x3f
	h.DestQP = QPN(binary.BigEndian.Uint32(b[4:]) & Mask24)
	h.AckReq = b[8]&0x80 != 0
	h.Resv7 = b[8] & 0x7f
	h.PSN = PSN(binary.BigEndian.Uint32(b[8:]) & Mask24)
}

func bit(v bool, n uint) byte {
	if v {
		return 1 << n
	}
	return 0
}
