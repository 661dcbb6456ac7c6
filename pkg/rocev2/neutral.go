package rocev2

import (
	"encoding/binary"
	"math/bits"
)

// A HeaderChange is what a rewrite changes of a packet whose IPv4 header has no
// options: the exclusive or of old and new. VA and RKey are zero for a packet
// without RETH.
type HeaderChange struct {
	Dst  [4]byte // IPv4 destination
	QPN  QPN     // destination QPN of the BTH
	VA   uint64  // of the RETH
	RKey uint32  // of the RETH
}

// A Neutral is a change of the IPv4 identification and the UDP source port: the
// exclusive or of old and new, the identification in the high 16 bits.
type Neutral uint32

// ID is the change of the IPv4 identification.
func (n Neutral) ID() uint16 { return uint16(n >> 16) }

// SrcPort is the change of the UDP source port.
func (n Neutral) SrcPort() uint16 { return uint16(n) } //nolint:gosec // the low half

// NeutralOf returns the one change of identification and source port under which
// the ICRC of a packet stays right when c is applied to it, whatever else is in
// the packet, and however long it is.
//
// The ICRC is linear over GF(2): what a change of headers adds to it depends on the
// change alone, and so does what a change of identification and source port adds.
// The 32 bits of these two reach each of the 2^32 values of the ICRC, each by one
// setting; NeutralOf solves for the setting that adds the same as c. It is
// linear itself: NeutralOf(a ^ b) = NeutralOf(a) ^ NeutralOf(b), field by field.
func NeutralOf(c HeaderChange) Neutral {
	q := uint32(c.QPN)
	d := place(binary.LittleEndian.Uint32(c.Dst[:]), 16) ^
		place(bits.ReverseBytes32(q)>>8, IPv4Len+UDPLen+5) ^
		place(bits.ReverseBytes32(c.RKey), neutralEnd+8)
	va := bits.ReverseBytes64(c.VA)
	d ^= place(uint32(va), neutralEnd) ^ place(uint32(va>>32), neutralEnd+4) //nolint:gosec // two halves
	return Neutral(neutralTable[0][d&0xff] ^ neutralTable[1][d>>8&0xff] ^ neutralTable[2][d>>16&0xff] ^ neutralTable[3][d>>24])
}

// KeepsIDOrder reports whether copies that are rewritten between this end of a queue pair and another
// for which it is true as well keep the low five bits of their identification. NeutralOf is linear, so that it can
// be said of one end. Packets that a sender's kernel has cut out of one message are numbered
// 0, 1, 2, …, and receivers' kernels (GRO of UDP, Linux 6.10 and later) put together only what counts up:
// 32 packets at a time where this is true, and single ones elsewhere. One QPN in 32 has it.
func KeepsIDOrder(addr [4]byte, q QPN) bool {
	return NeutralOf(HeaderChange{Dst: addr, QPN: q}).ID()&31 == 0
}

// PortKey returns the n-th of the rkeys with which a rewrite from one to another changes no source port. Requests with a RETH would get
// another than the rest of their message: receivers' kernels put together what has one source port, and hand on the
// requests of one before those of another. The low 16 bits are n.
func PortKey(n uint16) uint32 {
	k := uint32(0x6d630000) // any will do
	for i, row := range portKeys {
		if n>>i&1 == 1 {
			k ^= row
		}
	}
	return k
}

// portKeys are the changes of an rkey that change no source port, by the only one of the low 16 bits that each has.
var portKeys = func() [16]uint32 {
	var keys, ports [32]uint32
	for i := range keys {
		keys[i] = 1 << i
		ports[i] = uint32(NeutralOf(HeaderChange{RKey: keys[i]}).SrcPort())
	}
	eliminate(ports[:], keys[:], 16, 16) // the changes of the high 16 bits are independent
	return [16]uint32(keys[:16])
}()

// neutralEnd is the end of the BTH. What bytes add to the ICRC is told as the
// register has it there; for bytes behind it, as if it were run backwards.
const neutralEnd = IPv4Len + UDPLen + BTHLen

// place is what bytes at an offset of the IPv4 packet, the first of them in the low
// bits of b, add to the register.
func place(b uint32, off int) uint32 {
	if off > neutralEnd {
		return shift(b, ^uint32(off-neutralEnd)) //nolint:gosec // positive
	}
	return shift(b, uint32(neutralEnd-off)) //nolint:gosec // not negative
}

// neutralTable gives the Neutral that adds a value of the register, by the value's
// bytes.
var neutralTable = func() (t [4][256]uint32) {
	// Each row says which value of the register a Neutral adds. The rows begin
	// as those of single bits, and are added to one another until each value
	// is a single bit.
	var adds, of [32]uint32
	for i := range of {
		of[i] = 1 << i
		n := Neutral(of[i])
		adds[i] = place(uint32(bits.ReverseBytes16(n.ID())), 4) ^ place(uint32(bits.ReverseBytes16(n.SrcPort())), IPv4Len)
	}
	eliminate(adds[:], of[:], len(adds), 0) // the 32 values are independent
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

// eliminate adds rows to one another until each of the low bits is in one value alone: bit 0 in that of row first, bit 1 in the next. of are
// added as the values are.
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
