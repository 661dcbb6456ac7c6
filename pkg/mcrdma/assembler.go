package mcrdma

import (
	"fmt"
	"slices"
)

// An assembler assembles operations at a receiver from the messages of package rdmcfallback. It is
// pure, except for the receive function passed to it.
//
// A header is complete before the message after it begins, because it is small, and
// messages complete in order. So an operation's messages are complete before its
// successor's pieces begin.
type assembler struct {
	regions [][]byte // as granted
	message uint64   // messages received in this and other formations, including dropped ones
	have    uint64   // messages that the receiver has: these are not written or delivered again
	// receive returns the oldest posted receive, after waiting for one.
	receive func() ([]byte, error)

	buf      []byte // for headers
	op       header
	again    bool   // the receiver has op
	dest     []byte // of op's pieces
	spare    []byte // the dest of what it has
	off      uint64 // in dest, of the next piece
	incoming int    // pieces of op that have not begun
	waiting  int    // pieces of op that are not complete
}

// A delivery is a received message.
type delivery struct {
	header
	payload []byte // of a SEND, if it isn't in the receive already; valid until the next call
}

// begin returns where the next message goes.
func (a *assembler) begin(size int64) ([]byte, error) {
	if a.incoming == 0 {
		if size > headerLen+inlineMax {
			return nil, fmt.Errorf("%w: a header of %d bytes", errNonsense, size)
		}
		if a.buf == nil {
			a.buf = make([]byte, headerLen+inlineMax)
		}
		return a.buf[:size], nil
	}
	if a.off == 0 {
		if err := a.setDest(); err != nil {
			return nil, err
		}
	}
	left := a.op.length - a.off
	last := a.incoming == 1
	if size < 1 || uint64(size) > left || last != (uint64(size) == left) {
		return nil, fmt.Errorf("%w: a piece of %d bytes, %d pieces and %d bytes are left", errNonsense, size, a.incoming, left)
	}
	a.incoming--
	at := a.off
	a.off += uint64(size)
	return a.dest[at:a.off], nil
}

// setDest finds where op's pieces go.
func (a *assembler) setDest() (err error) {
	switch {
	case a.again:
		a.spare = slices.Grow(a.spare[:0], int(a.op.length))
		a.dest = a.spare[:a.op.length]
	case !a.op.kind.send():
		a.dest = a.region()
		if a.op.kind == OpWriteImm {
			_, err = a.receive() // so that there is a receive when the last piece is complete
		}
	default:
		if a.dest, err = a.receive(); err == nil {
			err = fits(a.op.length, a.dest)
		}
	}
	return err
}

// fits says whether a message fits a receive.
func fits(length uint64, receive []byte) error {
	if length > uint64(len(receive)) {
		return fmt.Errorf("%w: a message longer than the receive: %d bytes came, the receive has %d", ErrInvalid, length, len(receive))
	}
	return nil
}

// region returns the bytes that op, a WRITE, writes.
func (a *assembler) region() []byte {
	return a.regions[a.op.region][a.op.offset : a.op.offset+a.op.length]
}

// complete takes a message that is complete. If that completes an operation that is
// delivered to the receiver, ok is true.
func (a *assembler) complete(msg []byte) (d delivery, ok bool, err error) {
	if a.waiting > 0 {
		a.waiting--
		return delivery{header: a.op}, a.waiting == 0 && a.op.kind.message() && !a.again, nil
	}
	payload, err := a.op.parse(msg)
	if err != nil {
		return d, false, err
	}
	// A receiver that has a message has everything before it.
	a.again = a.message < a.have
	if a.op.kind.message() {
		a.message++
		if a.op.message != uint32(a.message) {
			return d, false, fmt.Errorf("%w: message %d instead of %d", errNonsense, a.op.message, a.message)
		}
	}
	if !a.op.kind.send() {
		if err := a.inside(); err != nil {
			return d, false, err
		}
	}
	if a.op.pieces > 0 {
		a.off, a.dest = 0, nil
		a.incoming, a.waiting = int(a.op.pieces), int(a.op.pieces)
		return d, false, nil
	}
	if !a.op.kind.send() {
		if !a.again {
			copy(a.region(), payload)
		}
		payload = nil
	}
	return delivery{a.op, payload}, a.op.kind.message() && !a.again, nil
}

// inside checks that op, a WRITE, is inside its region.
func (a *assembler) inside() error {
	if int(a.op.region) >= len(a.regions) {
		return fmt.Errorf("%w: region %d of %d", errNonsense, a.op.region, len(a.regions))
	}
	return inRange(a.op.offset, a.op.length, uint64(len(a.regions[a.op.region])))
}

// inRange checks that length bytes from offset on are inside size bytes.
func inRange(offset, length, size uint64) error {
	if offset > size || length > size-offset {
		return fmt.Errorf("%w: %d bytes from %d on, in a region of %d", ErrInvalid, length, offset, size)
	}
	return nil
}
