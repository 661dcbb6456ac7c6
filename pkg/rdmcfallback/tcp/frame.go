package tcp

import (
	"encoding/binary"
	"fmt"
	"io"

	"github.com/mcrdma/mcrdma/pkg/rdmcfallback"
)

const (
	blockMagic   = 0x424c4b31 // "BLK1"
	smallMagic   = 0x534d4c31 // "SML1"
	blockHeader  = 16         // of a small message, too
	countBytes   = 4
	frameHeader  = 4
	abortMinimum = 1 // bytes: the code
)

// Kinds of messages on a control connection.
const (
	frameTold  = 1 + iota // a message of Transport.Tell
	frameMet              // bootstrap: the sender has met all members
	frameAbort            // bootstrap: the sender gives up: code and text
	frameAlive            // the sender is alive
)

func putBlockHeader(b []byte, magic, imm uint32, n int, number uint32) {
	binary.BigEndian.PutUint32(b, magic)
	binary.BigEndian.PutUint32(b[4:], imm)
	binary.BigEndian.PutUint32(b[8:], uint32(n))
	binary.BigEndian.PutUint32(b[12:], number)
}

// parseBlockHeader parses the header of the block or small message with the given number, which
// must fit into room bytes.
func parseBlockHeader(b []byte, magic, number uint32, room int) (imm uint32, n int, err error) {
	size := binary.BigEndian.Uint32(b[8:])
	switch {
	case binary.BigEndian.Uint32(b) != magic:
		return 0, 0, fmt.Errorf("%w: %x where a block's header should begin", ErrProtocol, b[:4])
	case binary.BigEndian.Uint32(b[12:]) != number:
		return 0, 0, fmt.Errorf("%w: block %d follows block %d", ErrProtocol, binary.BigEndian.Uint32(b[12:]), number-1)
	case uint64(size) > uint64(room):
		return 0, 0, fmt.Errorf("%w: a block of %d bytes for a buffer of %d", ErrProtocol, size, room)
	}
	return binary.BigEndian.Uint32(b[4:]), int(size), nil
}

// readCounts reads the total number of buffers posted, or slots freed, until the connection ends,
// and passes on each increase. state returns the number known before, and the maximum increase.
func readCounts(conn io.Reader, what string, state func() (known, room uint32), more func(n uint32)) error {
	buf, have := make([]byte, 64*countBytes), 0
	for {
		n, err := conn.Read(buf[have:])
		if err != nil {
			return err
		}
		have += n
		used := 0
		for ; have-used >= countBytes; used += countBytes {
			known, room := state()
			now := binary.BigEndian.Uint32(buf[used:])
			if now == known || now-known > room {
				return fmt.Errorf("%w: %d %s, after %d before; there can be %d more", ErrProtocol, now, what, known, room)
			}
			more(now - known)
		}
		have = copy(buf, buf[used:have])
	}
}

func putFrameHeader(b []byte, kind uint8, n int) {
	b[0], b[1] = kind, 0
	binary.BigEndian.PutUint16(b[2:], uint16(n))
}

func parseFrameHeader(b []byte) (kind uint8, n int, err error) {
	kind, n = b[0], int(binary.BigEndian.Uint16(b[2:]))
	switch {
	case b[1] != 0,
		kind == frameTold && (n < 1 || n > rdmcfallback.MaxTell),
		(kind == frameMet || kind == frameAlive) && n != 0,
		kind == frameAbort && (n < abortMinimum || n > abortMinimum+maxReason),
		kind < frameTold || kind > frameAlive:
		return 0, 0, fmt.Errorf("%w: a message of kind %d with %d bytes (%x)", ErrProtocol, kind, n, b[:frameHeader])
	}
	return kind, n, nil
}
