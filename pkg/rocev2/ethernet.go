package rocev2

import (
	"encoding/binary"
	"fmt"
)

// The EtherTypes that a RoCEv2 endpoint handles.
const (
	EtherTypeIPv4 = 0x0800
	EtherTypeARP  = 0x0806
	EtherTypeVLAN = 0x8100 // the tag protocol identifier of IEEE 802.1Q
)

// Sizes in bytes of the Ethernet header and of its optional 802.1Q tag.
const (
	EthernetLen = 14
	VLANTagLen  = 4
)

// An Ethernet is an Ethernet II header with at most one 802.1Q tag. This package does not see the
// frame check sequence.
type Ethernet struct {
	Dst, Src  [6]byte
	Tagged    bool   // there is an 802.1Q tag
	TCI       uint16 // tag control information: PCP 3 bits, DEI 1, VLAN 12; if Tagged
	EtherType uint16 // of the payload, after the tag
}

var (
	errEthShort = fmt.Errorf("%w: no room for an Ethernet header", ErrTruncated)
	errTagShort = fmt.Errorf("%w: no room for the 802.1Q tag", ErrTruncated)
	errTagTwice = fmt.Errorf("%w: more than one 802.1Q tag", ErrFormat)
)

// AppendTo appends the encoded header to b and returns the result.
func (h *Ethernet) AppendTo(b []byte) []byte {
	b = append(b, h.Dst[:]...)
	b = append(b, h.Src[:]...)
	if h.Tagged {
		b = append(b, EtherTypeVLAN>>8, EtherTypeVLAN&0xff, byte(h.TCI>>8), byte(h.TCI))
	}
	return append(b, byte(h.EtherType>>8), byte(h.EtherType))
}

// Parse decodes the header at the start of frame and returns what follows it, including any padding
// to the minimum frame size: only the payload's own length field says where it ends. Errors:
// ErrTruncated, and ErrFormat for a second 802.1Q tag. It does not allocate.
func (h *Ethernet) Parse(frame []byte) (payload []byte, err error) {
	if len(frame) < EthernetLen {
		return nil, errEthShort
	}
	*h = Ethernet{Dst: [6]byte(frame[0:6]), Src: [6]byte(frame[6:12]), EtherType: binary.BigEndian.Uint16(frame[12:])}
	if h.EtherType != EtherTypeVLAN {
		return frame[EthernetLen:], nil
	}
	if len(frame) < EthernetLen+VLANTagLen {
		return nil, errTagShort
	}
	h.Tagged, h.TCI, h.EtherType = true, binary.BigEndian.Uint16(frame[14:]), binary.BigEndian.Uint16(frame[16:])
	if h.EtherType == EtherTypeVLAN {
		return nil, errTagTwice
	}
	return frame[EthernetLen+VLANTagLen:], nil
}
