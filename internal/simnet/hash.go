package simnet

import (
	"hash/crc32"

	"github.com/mcrdma/mcrdma/pkg/rocev2"
)

// flowOf is the CRC of what makes a flow, as in p4src/flow.p4: addresses, protocol, ports.
func (s *Sim) flowOf(src, dst int32, sport uint16) uint32 {
	a, b := &s.nodes[src].addr, &s.nodes[dst].addr
	sum := ^uint32(0)
	for _, x := range [...]byte{a[0], a[1], a[2], a[3], b[0], b[1], b[2], b[3], rocev2.ProtocolUDP,
		byte(sport >> 8), byte(sport), rocev2.UDPPort >> 8, rocev2.UDPPort & 0xff} { //nolint:gosec // its halves
		sum = crc32.IEEETable[byte(sum)^x] ^ sum>>8
	}
	return ^sum
}

// hash is what chooses among equal paths of a packet at a switch, as in the P4 program.
func (n *node) hash(k *packet) int {
	h := k.flow ^ n.seed
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
