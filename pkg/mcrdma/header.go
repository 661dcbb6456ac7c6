package mcrdma

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/mcrdma/mcrdma/pkg/qp"
)

// Where hosts relay, an operation is a header message, and then a message for each of
// its pieces. A short payload travels behind the header instead. All numbers are
// big-endian:
//
//	 0  version, 1
//	 1  kind
//	 2  region         16 bits; 0 for SENDs
//	 4  immediate      32 bits; 0 if there is none
//	 8  offset         64 bits; 0 for SENDs
//	16  length         64 bits, of the payload
//	24  pieces that follow; 0: the payload is in this message
//	25  zeros
//	28  number         32 bits: the message's number, as both sides count; 0 for WRITEs
const (
	headerVersion = 1
	headerLen     = 32
	inlineMax     = 8 << 10 // payload behind a header
)

type header struct {
	kind    Kind
	region  uint16
	imm     uint32
	offset  uint64
	length  uint64
	pieces  uint8
	message uint32
}

// errNonsense: the sender's library violated the protocol.
var errNonsense = errors.New("the sender's library violates the protocol")

// appendTo appends the header's bytes.
func (h *header) appendTo(b []byte) []byte {
	b = append(b, headerVersion, byte(h.kind))
	b = binary.BigEndian.AppendUint16(b, h.region)
	b = binary.BigEndian.AppendUint32(b, h.imm)
	b = binary.BigEndian.AppendUint64(b, h.offset)
	b = binary.BigEndian.AppendUint64(b, h.length)
	b = append(b, h.pieces, 0, 0, 0)
	return binary.BigEndian.AppendUint32(b, h.message)
}

// parse reads a header message, and returns the payload in it.
func (h *header) parse(b []byte) (payload []byte, err error) {
	if len(b) < headerLen {
		return nil, fmt.Errorf("%w: a header of %d bytes", errNonsense, len(b))
	}
	if b[0] != headerVersion {
		return nil, fmt.Errorf("%w: version %d of the header, not %d", errNonsense, b[0], headerVersion)
	}
	*h = header{
		kind:    Kind(b[1]),
		region:  binary.BigEndian.Uint16(b[2:]),
		imm:     binary.BigEndian.Uint32(b[4:]),
		offset:  binary.BigEndian.Uint64(b[8:]),
		length:  binary.BigEndian.Uint64(b[16:]),
		pieces:  b[24],
		message: binary.BigEndian.Uint32(b[28:]),
	}
	payload = b[headerLen:]
	switch {
	case h.kind > OpSendImm:
		return nil, fmt.Errorf("%w: kind %d", errNonsense, h.kind)
	case b[25]|b[26]|b[27] != 0, h.imm != 0 && !h.kind.hasImm(), h.kind.send() && (h.region != 0 || h.offset != 0),
		h.message != 0 && !h.kind.message():
		return nil, fmt.Errorf("%w: a %v has what it can't have", errNonsense, h.kind)
	case h.length > qp.MaxMessage:
		return nil, fmt.Errorf("%w: %d bytes", errNonsense, h.length)
	case h.pieces == 0 && uint64(len(payload)) != h.length:
		return nil, fmt.Errorf("%w: %d bytes of payload, not %d", errNonsense, len(payload), h.length)
	case h.pieces > 0 && len(payload) > 0:
		return nil, fmt.Errorf("%w: payload in the header and behind it", errNonsense)
	case h.pieces > MaxPieces, uint64(h.pieces) > h.length:
		return nil, fmt.Errorf("%w: %d pieces of %d bytes in all", errNonsense, h.pieces, h.length)
	}
	return payload, nil
}

// message reports whether the kind completes at the receivers, and consumes a receive.
func (k Kind) message() bool { return k != OpWrite }

func (k Kind) hasImm() bool { return k == OpWriteImm || k == OpSendImm }

func (k Kind) send() bool { return k == OpSend || k == OpSendImm }
