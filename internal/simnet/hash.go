package simnet

import (
	"encoding/binary"
	"hash/crc32"

	"github.com/mcrdma/mcrdma/pkg/rocev2"
)

// hash is what chooses among equal paths of a packet at a switch: that of the P4 program (p4src/flow.p4), which takes
// CRC-16 of it.
func (s *Sim) hash(n *node, k *packet) int {
	var b [13]byte
	*(*[4]byte)(b[0:]) = s.nodes[k.src].addr
	*(*[4]byte)(b[4:]) = s.nodes[k.dst].addr
	b[8] = rocev2.ProtocolUDP
	binary.BigEndian.PutUint16(b[9:], k.sport)
	binary.BigEndian.PutUint16(b[11:], rocev2.UDPPort)
	h := crc32.ChecksumIEEE(b[:]) ^ n.seed
	h ^= h >> 16
	h *= 0x85ebca6b
	h ^= h >> 13
	h *= 0xc2b2ae35
	h ^= h >> 16
	sum := uint16(0)
	for shift := 24; shift >= 0; shift -= 8 {
		sum = sum>>8 ^ crc16[byte(sum)^byte(h>>shift)]
	}
	return int(sum)
}

// crc16 is of CRC-16/ARC.
var crc16 = func() (t [256]uint16) {
	for i := range t {
		x := uint16(i) //nolint:gosec // 255 at most
		for range 8 {
			x = x>>1 ^ -(x&1)&0xa001
		}
		t[i] = x
	}
	return t
}()
