package ports

import (
	"encoding/binary"

	"github.com/mcrdma/mcrdma/pkg/rocev2"
)

// A vnetHeader is the kernel's struct virtio_net_hdr, in native byte order, which precedes a frame
// and describes the work left by offloads.
type vnetHeader [vnetLen]byte

const vnetLen = 10

// Fields of struct virtio_net_hdr (virtio 1.2, 5.1.6).
const (
	vnetFlags      = 0 // u8
	vnetNeedsCsum  = 1 // in flags: the checksum from start on must be written at offset
	vnetGSOType    = 1 // u8, 0 if the frame is one frame
	vnetCsumStart  = 6 // u16
	vnetCsumOffset = 8 // u16, from start
)

// segmented reports whether the frame stands for several.
func (v *vnetHeader) segmented() bool { return v[vnetGSOType] != 0 }

// complete computes the checksum that the sender left to its hardware. The header's offsets do not
// include a tag of that many bytes, which is in the frame.
func (v *vnetHeader) complete(frame []byte, tag int) {
	if v[vnetFlags]&vnetNeedsCsum == 0 {
		return
	}
	start := int(binary.NativeEndian.Uint16(v[vnetCsumStart:])) + tag
	at := start + int(binary.NativeEndian.Uint16(v[vnetCsumOffset:]))
	if start > len(frame) || at+2 > len(frame) {
		return // outside the frame; the frame's receiver will notice
	}
	// The field holds the sum of the pseudo header, which is thus included.
	sum := rocev2.Checksum(frame[start:])
	if sum == 0 {
		sum = 0xffff // for UDP, 0 would mean no checksum
	}
	binary.BigEndian.PutUint16(frame[at:], sum)
}
