package links

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"github.com/mcrdma/mcrdma/internal/switchspec"
)

// Operations of ARP (RFC 826).
const (
	ARPRequest uint16 = 1
	ARPReply   uint16 = 2
)

// EtherARP is the EtherType of ARP.
const EtherARP = 0x0806

const (
	etherIPv4  = 0x0800
	arpEther   = 1 // hardware type
	arpLen     = 28
	arpHeader  = uint64(arpEther)<<48 | etherIPv4<<32 | 6<<24 | 4<<16 // and the operation
	arpOpMask  = 0xffff
	arpSender  = etherLen + 8
	arpTarget  = arpSender + 10
	arpOfEther = etherLen + arpLen
)

var broadcast = switchspec.MAC{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}

// ARP is an ARP packet of IPv4 on Ethernet.
type ARP struct {
	Op         uint16 // ARPRequest or ARPReply
	SenderMAC  switchspec.MAC
	SenderAddr netip.Addr // 0.0.0.0 in a request that only probes for an address (RFC 5227)
	TargetMAC  switchspec.MAC
	TargetAddr netip.Addr
}

// ParseARP reads an untagged Ethernet frame with an ARP packet of IPv4. A packet whose
// sender could not be a host is refused: a group address as its MAC, or
// an IP that is multicast, loopback or the broadcast address, or, in a reply,
// 0.0.0.0. Errors wrap [ErrFrame].
func ParseARP(frame []byte) (ARP, error) {
	if len(frame) < arpOfEther {
		return ARP{}, fmt.Errorf("%w: ARP frame of %d bytes, want at least %d", ErrFrame, len(frame), arpOfEther)
	}
	if t := binary.BigEndian.Uint16(frame[etherTypeA:]); t != EtherARP {
		return ARP{}, fmt.Errorf("%w: EtherType %#04x, want %#04x", ErrFrame, t, EtherARP)
	}
	header := binary.BigEndian.Uint64(frame[etherLen:])
	if header&^arpOpMask != arpHeader {
		return ARP{}, fmt.Errorf("%w: ARP header %016x is not that of IPv4 on Ethernet", ErrFrame, header)
	}
	a := ARP{
		Op:         uint16(header & arpOpMask),
		SenderMAC:  switchspec.MAC(frame[arpSender : arpSender+6]),
		SenderAddr: netip.AddrFrom4([4]byte(frame[arpSender+6 : arpSender+10])),
		TargetMAC:  switchspec.MAC(frame[arpTarget : arpTarget+6]),
		TargetAddr: netip.AddrFrom4([4]byte(frame[arpTarget+6 : arpTarget+10])),
	}
	if a.Op != ARPRequest && a.Op != ARPReply {
		return ARP{}, fmt.Errorf("%w: ARP operation %d, want request or reply", ErrFrame, a.Op)
	}
	if !a.SenderMAC.IsStation() {
		return ARP{}, fmt.Errorf("%w: ARP from %v, which is not a station's address", ErrFrame, a.SenderMAC)
	}
	s := a.SenderAddr
	if s.IsMulticast() || s.IsLoopback() || s == netip.AddrFrom4([4]byte{255, 255, 255, 255}) || s.IsUnspecified() && a.Op == ARPReply {
		return ARP{}, fmt.Errorf("%w: ARP from %v, which is not a host's address", ErrFrame, s)
	}
	return a, nil
}

// AppendRequest appends a broadcast frame in which mac, from, asks who has target.
// The addresses are IPv4; another one stands as 0.0.0.0.
func AppendRequest(b []byte, mac switchspec.MAC, from, target netip.Addr) []byte {
	return appendARP(b, broadcast, ARP{Op: ARPRequest, SenderMAC: mac, SenderAddr: from, TargetAddr: target})
}

// AppendReply appends a frame in which mac tells to, at toMAC, that it has addr.
// The addresses are IPv4; another one stands as 0.0.0.0.
func AppendReply(b []byte, mac switchspec.MAC, addr netip.Addr, toMAC switchspec.MAC, to netip.Addr) []byte {
	return appendARP(b, toMAC, ARP{Op: ARPReply, SenderMAC: mac, SenderAddr: addr, TargetMAC: toMAC, TargetAddr: to})
}

func appendARP(b []byte, dst switchspec.MAC, a ARP) []byte {
	start := len(b)
	b = append(b, dst[:]...)
	b = append(b, a.SenderMAC[:]...)
	b = binary.BigEndian.AppendUint16(b, EtherARP)
	b = binary.BigEndian.AppendUint64(b, arpHeader|uint64(a.Op))
	b = append(b, a.SenderMAC[:]...)
	b = appendAddr(b, a.SenderAddr)
	b = append(b, a.TargetMAC[:]...)
	b = appendAddr(b, a.TargetAddr)
	return pad(b, start)
}

func appendAddr(b []byte, a netip.Addr) []byte {
	var four [4]byte
	if a = a.Unmap(); a.Is4() {
		four = a.As4()
	}
	return append(b, four[:]...)
}
