package nbd

import (
	"encoding/binary"
	"fmt"
	"strings"
)

// Parsing and encoding of the transmission phase: "Request message", "Simple reply message",
// "Structured reply chunk message" and "Request types" of the protocol.

const (
	requestMagic    = 0x25609513
	simpleMagic     = 0x67446698
	structuredMagic = 0x668e33ef

	requestLen = 28 // header of a request
	simpleLen  = 16 // header of a simple reply
	chunkLen   = 20 // header of a structured reply's chunk
	dataLen    = chunkLen + 8
)

const (
	cmdRead        = 0
	cmdWrite       = 1
	cmdDisc        = 2
	cmdFlush       = 3
	cmdTrim        = 4
	cmdWriteZeroes = 6
	cmdBlockStatus = 7
)

// Command flags.
const (
	flagFUA      = 1 << 0
	flagNoHole   = 1 << 1
	flagDF       = 1 << 2 // always obeyed: a READ is answered with one chunk
	flagReqOne   = 1 << 3
	flagFastZero = 1 << 4
)

// Structured reply types and flags.
const (
	replyNone        = 0
	replyOffsetData  = 1
	replyBlockStatus = 5
	replyError       = 1<<15 + 1

	replyDone = 1 << 0
)

const (
	stateHole = 1 << 0
	stateZero = 1 << 1
)

// MaxPayload is the longest READ or WRITE, in bytes. A longer WRITE ends the connection.
const MaxPayload = 32 << 20

// maxExtents bounds the reply to one BLOCK_STATUS; clients continue from where it ends.
const maxExtents = 4096

// maxText bounds the text of an error in a reply.
const maxText = 1024

// allocation is the ID of the metadata context base:allocation.
const allocation = 1

type request struct {
	flags  uint16
	cmd    uint16
	cookie uint64
	offset uint64
	length uint32
}

// parseRequest reads a header of requestLen bytes.
func parseRequest(b []byte) (request, error) {
	if magic := binary.BigEndian.Uint32(b); magic != requestMagic {
		return request{}, violation(fmt.Sprintf("a request begins with %#x instead of %#x", magic, requestMagic))
	}
	return request{
		flags:  binary.BigEndian.Uint16(b[4:]),
		cmd:    binary.BigEndian.Uint16(b[6:]),
		cookie: binary.BigEndian.Uint64(b[8:]),
		offset: binary.BigEndian.Uint64(b[16:]),
		length: binary.BigEndian.Uint32(b[24:]),
	}, nil
}

// A violation is a protocol error of the client that ends the connection.
type violation string

func (v violation) Error() string { return "against the protocol: " + string(v) }

// limits are the limits for the requests of one connection.
type limits struct {
	Info
	structured bool // structured replies are negotiated
	status     bool // base:allocation is negotiated
}

// check returns nil if the request may be executed. Its errors wrap the Errno that the protocol
// requires.
func (l *limits) check(r request) error {
	allowed, beyond := uint16(flagFUA), EINVAL
	switch r.cmd {
	case cmdRead:
		if l.structured {
			allowed |= flagDF
		}
	case cmdWrite:
		beyond = ENOSPC
	case cmdTrim:
	case cmdWriteZeroes:
		beyond = ENOSPC
		allowed |= flagNoHole | flagFastZero
	case cmdBlockStatus:
		allowed |= flagReqOne
		if !l.status {
			return fmt.Errorf("BLOCK_STATUS without base:allocation in the handshake: %w", EINVAL)
		}
	case cmdFlush:
		if r.offset != 0 || r.length != 0 {
			return fmt.Errorf("a FLUSH with an offset or a length: %w", EINVAL)
		}
	default:
		return fmt.Errorf("command %d, which is not offered: %w", r.cmd, EINVAL)
	}
	if extra := r.flags &^ allowed; extra != 0 {
		return fmt.Errorf("command %d with flags %#x: %w", r.cmd, extra, EINVAL)
	}
	if r.offset > uint64(l.Size) || uint64(r.length) > uint64(l.Size)-r.offset {
		return fmt.Errorf("%d bytes at %d of an export of %d: %w", r.length, r.offset, l.Size, beyond)
	}
	if mask := uint64(l.MinBlock) - 1; (r.offset|uint64(r.length))&mask != 0 {
		return fmt.Errorf("%d bytes at %d, in blocks of %d: %w", r.length, r.offset, l.MinBlock, EINVAL)
	}
	if r.cmd == cmdRead && r.length > MaxPayload {
		e := EINVAL
		if l.structured {
			e = EOVERFLOW
		}
		return fmt.Errorf("%d bytes; at most %d: %w", r.length, MaxPayload, e)
	}
	if r.cmd == cmdBlockStatus && r.length == 0 {
		return fmt.Errorf("BLOCK_STATUS of 0 bytes: %w", EINVAL)
	}
	return nil
}

// weight returns the memory that a request needs, in bytes.
func (r request) weight() int {
	switch r.cmd {
	case cmdRead, cmdWrite:
		return int(min(r.length, MaxPayload))
	case cmdBlockStatus:
		return 8 * maxExtents
	}
	return 0
}

func appendSimple(b []byte, e Errno, cookie uint64) []byte {
	b = binary.BigEndian.AppendUint32(b, simpleMagic)
	b = binary.BigEndian.AppendUint32(b, uint32(e))
	return binary.BigEndian.AppendUint64(b, cookie)
}

// appendChunk appends the header of a reply's only chunk.
func appendChunk(b []byte, kind uint16, cookie uint64, length int) []byte {
	b = binary.BigEndian.AppendUint32(b, structuredMagic)
	b = binary.BigEndian.AppendUint16(b, replyDone)
	b = binary.BigEndian.AppendUint16(b, kind)
	b = binary.BigEndian.AppendUint64(b, cookie)
	return binary.BigEndian.AppendUint32(b, uint32(length))
}

// appendStatus appends the reply to a request that returns no data.
func appendStatus(b []byte, structured bool, r request, e Errno, text string) []byte {
	if !structured || e == 0 && r.cmd != cmdRead {
		return appendSimple(b, e, r.cookie)
	}
	if e == 0 {
		return appendChunk(b, replyNone, r.cookie, 0)
	}
	text = clean(text, maxText)
	b = appendChunk(b, replyError, r.cookie, 6+len(text))
	b = binary.BigEndian.AppendUint32(b, uint32(e))
	b = binary.BigEndian.AppendUint16(b, uint16(len(text)))
	return append(b, text...)
}

// appendData appends the header of a reply to READ.
func appendData(b []byte, structured bool, r request) []byte {
	if !structured {
		return appendSimple(b, 0, r.cookie)
	}
	b = appendChunk(b, replyOffsetData, r.cookie, 8+int(r.length))
	return binary.BigEndian.AppendUint64(b, r.offset)
}

// appendExtents appends the reply to a BLOCK_STATUS: at most maxExtents extents, one with REQ_ONE,
// and none beyond the requested range. It merges adjacent extents of the same kind. Without extents
// it appends nothing.
func appendExtents(b []byte, r request, extents []Extent) []byte {
	limit := maxExtents
	if r.flags&flagReqOne != 0 {
		limit = 1
	}
	start := len(b)
	b = append(b, make([]byte, chunkLen)...)
	b = binary.BigEndian.AppendUint32(b, allocation)
	left, last := int64(r.length), -1 // last is where the last extent begins in b
	for _, e := range extents {
		n := min(e.Length, left)
		if n <= 0 {
			break
		}
		var state uint32
		if e.Hole {
			state |= stateHole
		}
		if e.Zero {
			state |= stateZero
		}
		if last >= 0 && binary.BigEndian.Uint32(b[last+4:]) == state {
			binary.BigEndian.PutUint32(b[last:], binary.BigEndian.Uint32(b[last:])+uint32(n))
		} else if limit > 0 {
			limit--
			last = len(b)
			b = binary.BigEndian.AppendUint32(b, uint32(n))
			b = binary.BigEndian.AppendUint32(b, state)
		} else {
			break
		}
		left -= n
	}
	if last < 0 {
		return b[:start]
	}
	appendChunk(b[:start], replyBlockStatus, r.cookie, len(b)-start-chunkLen)
	return b
}

// clean makes a valid string of the protocol: UTF-8 without NUL, of at most limit bytes.
func clean(s string, limit int) string {
	s = strings.ReplaceAll(s, "\x00", "")
	return strings.ToValidUTF8(s[:min(len(s), limit)], "")
}
