package rocev2

import "math/bits"

// SolveIPID returns the IPv4 identification that explains an ICRC. A receiver that reads a UDP
// socket does not see the identification, which the ICRC covers and the sender's stack chose.
// received is the ICRC in the packet, computed the ICRC of the packet with identification 0, and
// behind the number of bytes that the ICRC covers after the identification field: the IPv4 total
// length minus 6 and minus the ICRC's own 4. At most one identification fits; if none does, ok is
// false, and the packet is damaged. If computed is for another identification, such as the expected
// next one, id is the exclusive or of that one and the packet's.
//
// A damaged packet matches some identification with probability 2^16 in 2^32, so the check is only
// as strong as 16 bits unless the caller knows more about the identification, for example that it
// is small.
//
// Without the inversions at its start and end a CRC is linear over GF(2), and
// for two packets of equal length the inversions contribute the same to both.
// So the two ICRCs differ by the two bytes' polynomial times x^(8(behind+2));
// dividing by that power, which has an inverse, leaves the two bytes, and
// sixteen zero bits.
func SolveIPID(received, computed uint32, behind int) (id uint16, ok bool) {
	c := shift(received^computed, ^uint32(behind+2))
	return bits.ReverseBytes16(uint16(c)), c>>16 == 0
}
