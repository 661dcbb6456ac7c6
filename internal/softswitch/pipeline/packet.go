package pipeline

import (
	"time"

	"github.com/mcrdma/mcrdma/internal/softswitch/program"
)

// A Packet is a packet between ingress and egress: the values of its headers and metadata, and the
// unparsed rest. It belongs to the caller that got it from Ingress or Egress, until the caller
// passes it to Egress or Release.
type Packet struct {
	w    []uint64 // see layout
	args []uint64 // of the running action
	buf  *buffer  // the frame; shared with copies, never written
	pos  int      // where the unparsed rest starts in the frame
	end  int      // where the frame ends

	now      time.Duration // of the running ingress or egress
	port     uint16        // output port
	priority int
	inPort   uint16 // input port
	inLen    int    // for counters and meters: as received or recirculated
	length   uint64 // for standard metadata: as received, and headers added or removed
	keep     int    // bytes to keep of the deparsed frame
	passes   int    // through ingress or egress, including its ancestors'
	exited   bool   // the control is being exited
	failed   bool   // by assert
	inUse    bool   // not in the pool

	parserErr int64

	requests
}

// requests are operations requested by actions, to be done after the control.
type requests struct {
	clone, cloneList int // session and field list
	digest           int
	resubmit         int // field list, plus 1
	recirculate      int // likewise
}

// noRequests is the value without requests.
var noRequests = requests{clone: -1, cloneList: program.None, digest: -1, resubmit: -1, recirculate: -1}

// keepAll is the value of keep for a packet that is not truncated.
const keepAll = 1 << 30

// A buffer holds a received frame, followed by slack.
type buffer struct {
	b    []byte
	refs int
}

// Port returns the packet's output port.
func (pk *Packet) Port() uint16 { return pk.port }

// Priority returns the port's queue that the program selected with standard_metadata.priority; 0 if
// it did not.
func (pk *Packet) Priority() int { return pk.priority }

// Len returns the length of the received frame in bytes. Egress may still change it.
func (pk *Packet) Len() int { return pk.end }

// A varbit value is one word: its start in the frame, and its length in bytes. zeros marks a value
// that is all zeros instead.
const (
	varOffset = 32
	varZeros  = 1 << 63
)

// zeroPage holds the bytes of varbit values that are all zeros.
var zeroPage [1<<16 + slack]byte

// varbit returns the bytes of a varbit value.
func (pk *Packet) varbit(v uint64) []byte {
	n := int(uint32(v))
	if v&varZeros != 0 {
		return zeroPage[:min(n, len(zeroPage))]
	}
	off := int(v >> varOffset)
	return pk.buf.b[off : off+n]
}

// zeroed returns the varbit value of the same length with all bits zero.
func zeroed(v uint64) uint64 {
	if uint32(v) == 0 {
		return 0
	}
	return varZeros | uint64(uint32(v))
}

// varLen returns the length of a varbit value in bytes.
func varLen(v uint64) int { return int(uint32(v)) }

// rest returns the unparsed rest.
func (pk *Packet) rest() []byte { return pk.buf.b[pk.pos:pk.end] }

// kept returns the unparsed rest, truncated.
func (pk *Packet) kept() []byte { return pk.buf.b[pk.pos:min(pk.end, pk.pos+pk.keep)] }

// A pool holds unused packets and buffers.
type pool struct {
	words       int
	packets     []*Packet
	buffers     []*buffer
	made        int // total number of packets
	madeBuffers int
}

// packet returns a packet without a buffer, its words undefined.
func (po *pool) packet() *Packet {
	n := len(po.packets)
	if n == 0 {
		po.made++
		return &Packet{w: make([]uint64, po.words), inUse: true, keep: keepAll, requests: noRequests}
	}
	pk := po.packets[n-1]
	po.packets = po.packets[:n-1]
	w := pk.w
	*pk = Packet{w: w, inUse: true, keep: keepAll, requests: noRequests}
	return pk
}

// fill gives a packet a copy of a frame.
func (po *pool) fill(pk *Packet, frame []byte) {
	n := len(po.buffers)
	var b *buffer
	if n == 0 {
		po.madeBuffers++
		b = &buffer{}
	} else {
		b = po.buffers[n-1]
		po.buffers = po.buffers[:n-1]
	}
	need := len(frame) + slack
	if cap(b.b) < need {
		// Frames of one link are rarely of very different lengths
		b.b = make([]byte, max(need, 2048))
	}
	b.b = b.b[:need]
	copy(b.b, frame)
	b.refs = 1
	pk.buf, pk.pos, pk.end = b, 0, len(frame)
}

// share makes to use from's frame, too.
func (po *pool) share(to, from *Packet) {
	from.buf.refs++
	to.buf, to.pos, to.end = from.buf, from.pos, from.end
}

// drop releases a packet's frame.
func (po *pool) drop(pk *Packet) {
	b := pk.buf
	if b == nil {
		return
	}
	pk.buf = nil
	if b.refs--; b.refs == 0 {
		po.buffers = append(po.buffers, b)
	}
}

// release returns a packet to the pool. It ignores a packet that is already there.
func (po *pool) release(pk *Packet) {
	if pk == nil || !pk.inUse {
		return
	}
	pk.inUse = false
	po.drop(pk)
	po.packets = append(po.packets, pk)
}

// peek reads bits ahead of the parser, as 0 beyond the end of the frame.
func (pk *Packet) peek(bit, bits int) uint64 {
	if pk.pos+(bit+bits+7)/8 > pk.end {
		return 0
	}
	return peek(pk.buf.b[pk.pos:], bit, bits)
}
