package p4rtserver

import (
	"fmt"

	p4cfg "github.com/p4lang/p4runtime/go/p4/config/v1"
	p4 "github.com/p4lang/p4runtime/go/p4/v1"
)

// A packetHeader is the layout of the header with the metadata of packets from or to the controller
// ("ControllerPacketMetadata"): the fields in order, without gaps.
type packetHeader struct {
	object
	fields []field
	bits   int
}

func newPacketHeader(o object, h *p4cfg.ControllerPacketMetadata) *packetHeader {
	x := &packetHeader{object: o}
	for _, m := range h.GetMetadata() {
		f := field{id: m.GetId(), name: m.GetName(), bits: int(m.GetBitwidth())}
		x.fields = append(x.fields, f)
		x.bits += max(f.bits, 0)
	}
	return x
}

// pack prepends the header with the given metadata to the payload.
func (h *packetHeader) pack(metadata []*p4.PacketMetadata, payload []byte) ([]byte, error) {
	if h == nil {
		if len(metadata) > 0 {
			return nil, invalid("packet-out: metadata with id %d, but the P4Info has no packet_out header", metadata[0].GetMetadataId())
		}
		return payload, nil
	}
	frame := make([]byte, h.bits/8, h.bits/8+len(payload))
	var buf [4]uint64
	at := 0
	for i := range h.fields {
		f := &h.fields[i]
		var m *p4.PacketMetadata
		for _, c := range metadata {
			if c.GetMetadataId() == f.id {
				if m != nil {
					return nil, invalid("%s: %s is given twice", h, f)
				}
				m = c
			}
		}
		if m == nil {
			return nil, invalid("%s: %s is missing", h, f)
		}
		mem := slab(buf[:])
		clear(mem)
		value := mem.take(f.bits)
		if err := parseBits(value, m.GetValue(), f.bits, "field"); err != nil {
			return nil, invalid("%s: %s: %v", h, f, err)
		}
		putBits(frame, at, f.bits, value)
		at += f.bits
	}
	if len(metadata) != len(h.fields) {
		for _, m := range metadata {
			if findField(h.fields, nil, m.GetMetadataId()) < 0 {
				return nil, invalid("%s: there is no field with id %d", h, m.GetMetadataId())
			}
		}
	}
	return append(frame, payload...), nil
}

// unpack removes the header from a frame. The payload shares memory with it.
func (h *packetHeader) unpack(frame []byte) (metadata []*p4.PacketMetadata, payload []byte, err error) {
	if h == nil {
		return nil, frame, nil
	}
	if len(frame) < h.bits/8 {
		return nil, nil, fmt.Errorf("a frame of %d bytes is too short for the %d bytes of %s", len(frame), h.bits/8, h)
	}
	metadata = make([]*p4.PacketMetadata, len(h.fields))
	list := make([]p4.PacketMetadata, len(h.fields))
	at := 0
	for i, f := range h.fields {
		list[i].MetadataId = f.id
		list[i].Value = getBits(frame, at, f.bits)
		metadata[i] = &list[i]
		at += f.bits
	}
	return metadata, frame[h.bits/8:], nil
}

// putBits writes the low n bits of v, most significant first, to b from bit at on, where b is zero.
func putBits(b []byte, at, n int, v []uint64) {
	for i := range n {
		from := n - 1 - i // counted from the right
		if v[len(v)-1-from/64]>>(from%64)&1 != 0 {
			b[(at+i)/8] |= 0x80 >> ((at + i) % 8)
		}
	}
}

// getBits reads n bits of b from bit at on, as a canonical byte string.
func getBits(b []byte, at, n int) []byte {
	out := make([]byte, (n+7)/8)
	for i := range n {
		if b[(at+i)/8]&(0x80>>((at+i)%8)) != 0 {
			from := n - 1 - i
			out[len(out)-1-from/8] |= 1 << (from % 8)
		}
	}
	return canonical(out)
}
