package rocev2

import (
	"encoding/binary"
	"math/bits"
)

// A HeaderChange is a rewrite of the headers of a packet whose IPv4 header has no options: the
// exclusive or of old and new values. VA and RKey are zero for a packet without RETH.
type HeaderChange struct {
	Dst  [4]byte // IPv4 destination
	QPN  QPN     // destination QPN of the BTH
	VA   uint64  // of the RETH
	RKey uint32  // of the RETH
}

// A Neutral is a change of the IPv4 identification and the UDP source port: the exclusive or of old
// and new values, with the identification in the high 16 bits.
type Neutral uint32

// ID returns the change of the IPv4 identification.
func (n Neutral) ID() uint16 { return uint16(n >> 16) }

// SrcPort returns the change of the UDP source port.
func (n Neutral) SrcPort() uint16 { return uint16(n) } //nolint:gosec // the low half

// NeutralOf returns the one change of identification and source port that keeps a packet's ICRC
// correct when c is applied to it, for any packet content and length.
//
// The ICRC is linear over GF(2): the effect of a header change on it depends on the change alone,
// and so does the effect of a change of identification and source port. The 32 bits of these two
// reach each of the 2^32 values of the ICRC in exactly one way; NeutralOf solves for the one with
// the same effect as c. It is itself linear: NeutralOf(a ^ b) = NeutralOf(a) ^ NeutralOf(b), field
// by field.
func NeutralOf(c HeaderChange) Neutral {
	q := uint32(c.QPN)
	d := place(binary.LittleEndian.Uint32(c.Dst[:]), 16) ^
		place(bits.ReverseBytes32(q)>>8, IPv4Len+UDPLen+5) ^
		place(bits.ReverseBytes32(c.RKey), neutralEnd+8)
	va := bits.ReverseBytes64(c.VA)
	d ^= place(uint32(va), neutralEnd) ^ place(uint32(va>>32), neutralEnd+4) //nolint:gosec // two halves
	return Neutral(neutralTable[0][d&0xff] ^ neutralTable[1][d>>8&0xff] ^ neutralTable[2][d>>16&0xff] ^ neutralTable[3][d>>24])
}

// KeepsIDOrder reports whether addr and q keep the low five bits of the identification in rewritten
// copies. A rewrite from one end of a queue pair to another keeps them if KeepsIDOrder is true for
// both; because NeutralOf is linear, each end can be tested separately. The sender's kernel numbers
// the packets that it segments from one message 0, 1, 2, …, and receivers' kernels (UDP GRO, Linux
// 6.10 and later) only merge packets with consecutive numbers: 32 packets at a time if the bits are
// kept, and none otherwise. One QPN in 32 has this property.
func KeepsIDOrder(addr [4]byte, q QPN) bool {
	return NeutralOf(HeaderChange{Dst: addr, QPN: q}).ID()&31 == 0
}

// PortKey returns the n-th of the rkeys such that a rewrite from one of them to another does not
// change the source port. Otherwise requests with a RETH would get a different source port than the
// rest of their message; receivers' kernels merge packets with the same source port, and deliver
// those of one port before those of another. The low 16 bits are n.
func PortKey(n uint16) uint32 {
	k := uint32(0x6d630000) // arbitrary
	for i, row := range portKeys {
		if n>>i&1 == 1 {
			k ^= row
		}
	}
	return k
}

// portKeys[i] is a change of an rkey that does not change the source port, and whose only bit among
// the low 16 is bit i.
var portKeys = func() [16]uint32 {
	var keys, ports [32]uint32
	for i := range keys {
		keys[i] = 1 << i
		ports[i] = uint32(NeutralOf(HeaderChange{RKey: keys[i]}).SrcPort())
	}
	eliminate(ports[:], keys[:], 16, 16) // the changes of the high 16 bits are linearly independent
	return [16]uint32(keys[:16])
}()

// neutralEnd is the end of the BTH. Effects on the ICRC are expressed as the register's value at
// this point; for bytes after it, as if the register were run backward.
const neutralEnd = IPv4Len + UDPLen + BTHLen

// place returns the effect on the register of bytes at an offset of the IPv4 packet, with the first
// of them in the low bits of b.
func place(b uint32, off int) uint32 {
	if off > neutralEnd {
		return shift(b, ^uint32(off-neutralEnd)) //nolint:gosec // positive
	}
	return shift(b, uint32(neutralEnd-off)) //nolint:gosec // not negative
}

// neutralTable maps each byte of a register value to the Neutral that has that effect.
var neutralTable = func() (t [4][256]uint32) {
	// Each row says which register value a Neutral contributes. The rows start with single-bit
	// Neutrals, and are added to one another until each value is a single bit.
	var adds, of [32]uint32
	for i := range of {
		of[i] = 1 << i
		n := Neutral(of[i])
		adds[i] = place(uint32(bits.ReverseBytes16(n.ID())), 4) ^ place(uint32(bits.ReverseBytes16(n.SrcPort())), IPv4Len)
	}
	eliminate(adds[:], of[:], len(adds), 0) // the 32 values are linearly independent
	for k := range t {
		for b := range t[k] {
			for i := range 8 {
				if b>>i&1 == 1 {
					t[k][b] ^= of[8*k+i]
				}
			}
		}
	}
	return t
}()

// eliminate adds rows to one another until each of the low bits is set in one value only: bit 0 in
// row first, bit 1 in the next, and so on. It adds the elements of of in the same way as the
// values.
func eliminate(values, of []uint32, bits, first int) {
	for bit := range bits {
		at := first + bit
		for i := at; i < len(values); i++ {
			if values[i]>>bit&1 == 1 {
				values[i], values[at], of[i], of[at] = values[at], values[i], of[at], of[i]
				break
			}
		}
		for i := range values {
			if i != at && values[i]>>bit&1 == 1 {
				values[i] ^= values[at]
				of[i] ^= of[at]
			}
		}
	}
}
