package rocev2

import (
	"encoding/binary"
	"fmt"
	"math/bits"
)

// UDPPort is the UDP destination port of RoCEv2.
const UDPPort = 4791

// Sizes in bytes of the IPv4 header without options and of the UDP header, and
// the IPv4 protocol number of UDP.
const (
	IPv4Len     = 20
	UDPLen      = 8
	ProtocolUDP = 17

	maxIPv4Options = 40
)

// DontFragment is the bit of IPv4.Flags that forbids routers to fragment.
const DontFragment = 2

// An IPv4 is an IPv4 header (RFC 791). There is no checksum field: AppendTo computes it and Parse
// rejects a wrong one.
type IPv4 struct {
	TOS      uint8  // DSCP in the high six bits, ECN in the low two
	TotalLen uint16 // of header and payload, bytes
	ID       uint16 // identification
	Flags    uint8  // DontFragment or 0
	TTL      uint8
	Protocol uint8
	Src, Dst [4]byte
	// Options is nil for a header of 20 bytes. Parse makes it a sub-slice of its input. AppendTo
	// pads it with zeros to a multiple of four bytes, and omits what exceeds the maximum of 40
	// bytes.
	Options []byte
}

// Package-level values, so that rejecting a packet does not allocate.
var (
	errIPShort    = fmt.Errorf("%w: no room for an IPv4 header", ErrTruncated)
	errIPOptShort = fmt.Errorf("%w: the IPv4 header says that it is longer than the packet", ErrTruncated)
	errIPTotal    = fmt.Errorf("%w: the IPv4 total length is more than what is there", ErrTruncated)
	errIHL        = fmt.Errorf("%w: the IPv4 header says that it is shorter than 20 bytes", ErrFormat)
	errIPTotalLow = fmt.Errorf("%w: the IPv4 total length is less than the header", ErrFormat)
	errUDPShort   = fmt.Errorf("%w: no room for a UDP header", ErrTruncated)
	errUDPLen     = fmt.Errorf("%w: the UDP length is not that of the IPv4 payload", ErrFormat)
)

// Len returns the encoded size of h in bytes, 20 to 60.
func (h *IPv4) Len() int { return IPv4Len + (min(len(h.Options), maxIPv4Options)+3)&^3 }

// AppendTo appends the encoded header with its checksum to b and returns the result. TotalLen is
// written unchanged.
func (h *IPv4) AppendTo(b []byte) []byte {
	at, n := len(b), h.Len()
	b = append(b,
		4<<4|byte(n/4), h.TOS, byte(h.TotalLen>>8), byte(h.TotalLen),
		byte(h.ID>>8), byte(h.ID), h.Flags<<5, 0,
		h.TTL, h.Protocol, 0, 0)
	b = append(b, h.Src[:]...)
	b = append(b, h.Dst[:]...)
	b = append(b, h.Options[:min(len(h.Options), maxIPv4Options)]...)
	for len(b) < at+n {
		b = append(b, 0)
	}
	binary.BigEndian.PutUint16(b[at+10:], Checksum(b[at:]))
	return b
}

// Checksum returns the Internet checksum (RFC 1071) of b, such as an IPv4 header or an ICMP
// message. If the checksum field in b is zero, the result is the value for that field; if the field
// is correct, the result is zero.
func Checksum(b []byte) uint16 {
	var sum, carry uint64
	for ; len(b) >= 8; b = b[8:] {
		sum, carry = bits.Add64(sum, binary.BigEndian.Uint64(b), carry)
	}
	var last [8]byte
	copy(last[:], b)
	sum, carry = bits.Add64(sum, binary.BigEndian.Uint64(last[:]), carry)
	sum, carry = bits.Add64(sum, 0, carry)
	sum += carry
	sum = sum>>32 + sum&0xffffffff
	sum = sum>>16 + sum&0xffff
	sum = sum>>16 + sum&0xffff
	sum = sum>>16 + sum&0xffff
	return ^uint16(sum)
}

// Parse decodes and checks the header at the start of b, which may have bytes after the packet (the
// padding of a short Ethernet frame), and returns the payload as a sub-slice that ends at the
// packet's end. Errors: ErrNotIPv4 (another version), ErrTruncated, ErrFormat, ErrChecksum, and
// ErrFragment: RoCEv2 is never fragmented, and a fragment's transport headers cannot be trusted. It
// does not allocate.
func (h *IPv4) Parse(b []byte) (payload []byte, err error) {
	if len(b) < IPv4Len {
		return nil, errIPShort
	}
	if b[0]>>4 != 4 {
		return nil, ErrNotIPv4
	}
	n := int(b[0]&0xf) * 4
	total := int(binary.BigEndian.Uint16(b[2:]))
	switch {
	case n < IPv4Len:
		return nil, errIHL
	case n > len(b):
		return nil, errIPOptShort
	case Checksum(b[:n]) != 0:
		return nil, ErrChecksum
	case total < n:
		return nil, errIPTotalLow
	case total > len(b):
		return nil, errIPTotal
	case binary.BigEndian.Uint16(b[6:])&0x3fff != 0: // more fragments, or an offset
		return nil, ErrFragment
	}
	*h = IPv4{
		TOS: b[1], TotalLen: uint16(total), ID: binary.BigEndian.Uint16(b[4:]), Flags: b[6] >> 5,
		TTL: b[8], Protocol: b[9], Src: [4]byte(b[12:16]), Dst: [4]byte(b[16:20]),
	}
	if n > IPv4Len {
		h.Options = b[IPv4Len:n:n]
	}
	return b[n:total:total], nil
}

// A UDP is a UDP header (RFC 768).
type UDP struct {
	SrcPort, DstPort uint16
	Length           uint16 // of header and payload, bytes
	Checksum         uint16 // 0 = none, as RoCEv2 senders set it
}

// AppendTo appends the encoded header to b and returns the result.
func (h *UDP) AppendTo(b []byte) []byte {
	return append(b, byte(h.SrcPort>>8), byte(h.SrcPort), byte(h.DstPort>>8), byte(h.DstPort),
		byte(h.Length>>8), byte(h.Length), byte(h.Checksum>>8), byte(h.Checksum))
}

// Parse decodes the header at the start of b, an IPv4 payload, and returns the UDP payload as a
// sub-slice of b. Errors: ErrTruncated, or ErrFormat if the UDP length is not exactly that of b,
// since the ICRC is at the end of both. It does not verify the UDP checksum: the ICRC covers the
// same bytes and is the stronger check, and virtual links with checksum offload deliver frames
// whose UDP checksum is not filled in yet. It does not allocate.
func (h *UDP) Parse(b []byte) (payload []byte, err error) {
	if len(b) < UDPLen {
		return nil, errUDPShort
	}
	*h = UDP{
		SrcPort: binary.BigEndian.Uint16(b), DstPort: binary.BigEndian.Uint16(b[2:]),
		Length: binary.BigEndian.Uint16(b[4:]), Checksum: binary.BigEndian.Uint16(b[6:]),
	}
	if int(h.Length) != len(b) {
		return nil, errUDPLen
	}
	return b[UDPLen:], nil
}

// ParseIPv4UDP decodes the IPv4 packet at the start of b down to the UDP payload, which it returns
// as a sub-slice of b. Afterwards b[:ip.TotalLen] is the packet without trailing bytes, as
// VerifyICRC needs it. Errors are those of IPv4.Parse and UDP.Parse, and ErrNotUDP. It does not
// check the destination port. It does not allocate.
func ParseIPv4UDP(b []byte, ip *IPv4, udp *UDP) (payload []byte, err error) {
	p, err := ip.Parse(b)
	if err != nil {
		return nil, err
	}
	if ip.Protocol != ProtocolUDP {
		return nil, ErrNotUDP
	}
	return udp.Parse(p)
}
