package rocev2

import (
	"encoding/binary"
	"hash/crc32"
)

// An ICRCState is a partially computed invariant CRC (IBTA 1.2.1 annex A17.3.3). StartICRC returns
// the first state, other methods add the bytes of the packet in order, and Sum returns the ICRC. It
// is a plain value: the state after the IP and UDP headers may be kept and reused for packets that
// share them.
//
// The ICRC is the CRC-32 of IEEE 802.3 over eight bytes of ones, in place of the InfiniBand header
// that RoCEv2 lacks, and the IPv4 packet up to the ICRC itself. Fields that routers may change
// count as all ones: ToS, TTL and header checksum of IPv4, the UDP checksum, and byte 4 of the BTH
// (FECN, BECN and six reserved bits). The Ethernet header is not covered. On the wire the ICRC is
// the last four bytes of the UDP payload, little-endian.
type ICRCState uint32

// icrcSeed is the state after the eight bytes of ones.
const icrcSeed ICRCState = 0xdebb20e3

// The bytes that count as ones, as masks over little-endian words.
const (
	maskIP0  = 0x00000000_0000ff00 // ToS; bytes 0–7 of the IPv4 header
	maskIP8  = 0x00000000_ffff00ff // TTL and checksum; bytes 8–15
	maskUDP  = 0xffff0000_00000000 // checksum
	maskBTH0 = 0x000000ff_00000000 // FECN, BECN and reserved; bytes 0–7
)

// covered reports whether the ICRC covers the byte at off of an IPv4 packet
// whose header has ihl bytes.
func covered(off, ihl int) bool {
	switch off {
	case 1, 8, 10, 11, ihl + 6, ihl + 7, ihl + UDPLen + 4:
		return false
	}
	return true
}

// StartICRC returns the state after an IPv4 header without options and a UDP
// header.
func StartICRC(ipudp *[IPv4Len + UDPLen]byte) ICRCState {
	return startICRC(ipudp[:], IPv4Len)
}

// startICRC returns the state after the IPv4 header of ihl bytes, a multiple of 4 from 20 on, and
// the UDP header, both in b.
func startICRC(b []byte, ihl int) ICRCState {
	le := binary.LittleEndian
	c := uint32(icrcSeed)
	c = feed8(c, le.Uint64(b)|maskIP0)
	c = feed8(c, le.Uint64(b[8:])|maskIP8)
	for at := 16; at < ihl; at += 4 {
		c = feed4(c, le.Uint32(b[at:]))
	}
	return ICRCState(feed8(c, le.Uint64(b[ihl:])|maskUDP))
}

// BTH adds a BTH and any headers that follow it in hdr, which must begin with the BTH's first byte,
// because byte 4 is masked. It keeps no reference to hdr, so a header on the stack does not escape.
func (s ICRCState) BTH(hdr []byte) ICRCState {
	c := uint32(s)
	if len(hdr) >= 8 {
		c = feed8(c, binary.LittleEndian.Uint64(hdr)|maskBTH0)
		for hdr = hdr[8:]; len(hdr) >= 4; hdr = hdr[4:] {
			c = feed4(c, binary.LittleEndian.Uint32(hdr))
		}
	}
	for i, v := range hdr { // fewer than four bytes, unless the BTH is incomplete
		if i == 4 {
			v = 0xff
		}
		c = feed1(c, v)
	}
	return ICRCState(c)
}

// Update adds the bytes of b unmasked: payload, in any number of pieces, and padding.
func (s ICRCState) Update(b []byte) ICRCState {
	return ICRCState(^crc32.Update(^uint32(s), crc32.IEEETable, b))
}

// Sum returns the ICRC of the bytes added so far.
func (s ICRCState) Sum() uint32 { return ^uint32(s) }

// ICRC returns the invariant CRC of ip, an IPv4 packet (options allowed) from its first byte up to
// the position of its ICRC. It is defined for any bytes: a packet that is too short for its headers
// has a CRC, too, with its maskable bytes masked.
func ICRC(ip []byte) uint32 {
	ihl := headerLen(ip)
	if n := ihl + UDPLen + BTHLen; ihl >= IPv4Len && len(ip) >= n {
		return startICRC(ip, ihl).BTH(ip[ihl+UDPLen : n]).Update(ip[n:]).Sum()
	}
	c := uint32(icrcSeed)
	for i, v := range ip {
		if !covered(i, ihl) {
			v = 0xff
		}
		c = feed1(c, v)
	}
	return ^c
}

// VerifyICRC reports whether ip, a whole IPv4 packet, ends in the correct ICRC. It returns false if
// ip is too short to be RoCEv2. The caller must cut off bytes that follow the packet, such as the
// padding of a short Ethernet frame.
func VerifyICRC(ip []byte) bool {
	n := len(ip) - ICRCLen
	ihl := headerLen(ip)
	return ihl >= IPv4Len && n >= ihl+UDPLen+BTHLen &&
		binary.LittleEndian.Uint32(ip[n:]) == ICRC(ip[:n])
}

// PutICRC computes the ICRC of ip, a whole IPv4 packet, and writes it to the
// last four bytes. It does nothing to a packet of fewer than four bytes.
func PutICRC(ip []byte) {
	if n := len(ip) - ICRCLen; n >= 0 {
		binary.LittleEndian.PutUint32(ip[n:], ICRC(ip[:n]))
	}
}

// headerLen returns the header length according to the IPv4 packet ip.
func headerLen(ip []byte) int {
	if len(ip) == 0 {
		return 0
	}
	return int(ip[0]&0xf) * 4
}
