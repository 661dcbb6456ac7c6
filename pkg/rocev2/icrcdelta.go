package rocev2

import "math/bits"

// An ICRCDelta computes what an ICRC becomes when bytes of the packet change,
// without looking at the rest of the packet: the cost of an edit depends on the
// size of the edit and not on the length of the packet. It is how a device that
// rewrites headers (destination address and QPN, VA, rkey, PSN) keeps the ICRC
// right. Being relative, it never heals: the ICRC of a damaged packet stays
// wrong by the same difference.
//
// Why it works: without the inversions at its start and end a CRC is linear
// over GF(2). For two packets p and q of equal length the inversions contribute
// the same to both, so
//
//	icrc(p) ⊕ icrc(q) = raw(p ⊕ q)
//
// where raw is the plain remainder, starting from zero. p ⊕ q is zero except
// where they differ. Zeros before the first difference leave the register at
// zero; the difference d brings it to raw(d); each of the n bytes behind
// multiplies it by x^8. So an edit changes the ICRC by raw(d)·x^(8n) mod P,
// which takes one multiplication in GF(2)[x]/P for each non-zero base-256 digit
// of n. Several edits add up, whatever their order; those that come in order
// and near each other, as header fields do, are carried forward together and
// multiplied once. Masked bytes are ones in both packets and drop out of the
// difference.
type ICRCDelta struct {
	icrc   uint32 // with the edits whose share is multiplied out
	raw    uint32 // remainder of the other edits' difference, up to at
	at     int
	n, ihl int
}

// maxGap is the distance between two edits in bytes up to which it is quicker
// to feed zeros than to multiply.
const maxGap = 64

// NewICRCDelta begins with the ICRC of an IPv4 packet that is n bytes long
// without its ICRC and has an IPv4 header of ihl bytes.
func NewICRCDelta(icrc uint32, n, ihl int) ICRCDelta {
	return ICRCDelta{icrc: icrc, n: n, ihl: ihl}
}

// Replace accounts for the bytes of old, at offset off from the first byte of
// the IPv4 header, becoming those of new. Bytes that the ICRC does not cover
// may be among them and make no difference. Edits may overlap if each one's old
// is what the one before left; ascending order is quickest. An edit must not
// change the header length in byte 0, on which the masking depends. Replace
// panics, as slicing would, if the edit is not inside the packet or old and new
// are not equally long.
func (d *ICRCDelta) Replace(off int, old, new []byte) {
	if off < 0 || len(old) > d.n-off || len(old) != len(new) {
		panic("rocev2: ICRCDelta.Replace: edit out of range, or of two lengths")
	}
	if gap := off - d.at; gap < 0 || gap > maxGap || d.raw == 0 {
		d.icrc = d.Sum()
		d.raw, d.at = 0, off
	}
	c := d.raw
	for ; off-d.at >= 8; d.at += 8 {
		c = feed8(c, 0)
	}
	for ; d.at < off; d.at++ {
		c = feed1(c, 0)
	}
	for i, v := range old {
		if v ^= new[i]; !covered(off+i, d.ihl) {
			v = 0
		}
		c = feed1(c, v)
	}
	d.raw, d.at = c, off+len(old)
}

// Sum returns the ICRC after the edits so far.
func (d *ICRCDelta) Sum() uint32 {
	if d.raw == 0 {
		return d.icrc
	}
	return d.icrc ^ shift(d.raw, uint32(d.n-d.at))
}

// SolveIPID returns the IPv4 identification that explains an ICRC. Who receives
// through a UDP socket does not see the identification, which the ICRC covers
// and the sender's stack chose. received is the ICRC in the packet, computed
// the one over the packet with identification 0, and behind the number of bytes
// that the ICRC covers after the identification field: the IPv4 total length
// less 6 and less the ICRC's own 4. At most one identification fits; ok is
// false if none does, and then the packet is damaged. If computed is over the
// packet with some other identification, for example the one expected next, id
// is the exclusive or of that and the one sought.
//
// A damaged packet has 2^16 chances in 2^32 to be explained by some
// identification, so that the check is only as strong as 16 bits unless the
// caller knows more about the identification, for example that it is small.
//
// The two ICRCs differ by the two bytes' polynomial times x^(8(behind+2)), as
// ICRCDelta explains; dividing by that power, which has an inverse, leaves the
// two bytes, and sixteen zero bits.
func SolveIPID(received, computed uint32, behind int) (id uint16, ok bool) {
	c := shift(received^computed, ^uint32(behind+2))
	return bits.ReverseBytes16(uint16(c)), c>>16 == 0
}
