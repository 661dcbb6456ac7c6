package mcrdma

import (
	"fmt"

	"github.com/mcrdma/mcrdma/pkg/qp"
)

// A Kind is what an operation does.
type Kind uint8

// The kinds.
const (
	OpWrite Kind = iota
	OpWriteImm
	OpSend
	OpSendImm
	OpRead // of one member: see Unicast.Read
)

// String returns the name of verbs.
func (k Kind) String() string { return qp.Opcode(k).String() }

// At is a place in a region at each receiver.
type At struct {
	Region int    // index of GroupConfig.Regions
	Offset uint64 // bytes
}

// An Op is an operation for Group.Submit or Unicast.Submit. From then on it belongs to the group,
// with the bytes of its Pieces, until Done is called; then it may be submitted again.
type Op struct {
	Kind   Kind
	At     At      // for OpWrite, OpWriteImm and OpRead
	Imm    uint32  // for OpWriteImm and OpSendImm
	Pieces []Piece // the data to send; OpRead fills them
	// Deferred saves an acknowledgement: a device may complete the operation with a later one, or some
	// milliseconds later. It arrives as soon as others.
	Deferred bool
	// Done is called when every member has the operation, or with Err set if the group failed or
	// was closed before that. One goroutine calls the Done functions, in the order of Submit, so
	// Done must not wait for other operations, nor close the group. It may call Submit without
	// waiting, in place of the operation that is done, if no other goroutine calls Submit.
	Done func(*Op)
	// Number is set by Submit: operations are counted from 0, in the order of submission.
	Number uint64
	// Err and View are set before Done is called. View is the number of the view whose members
	// have the operation, except those that were added after it: see View.
	Err  error
	View uint32

	size uint64
}

func errPieces(n, limit int) error {
	return fmt.Errorf("%w operation: %d pieces, at most %d", ErrInvalid, n, limit)
}

// check says what is wrong with an operation, and sets its size. Its kind is at most last: OpRead for
// one member.
func (op *Op) check(regions []Region, maxPieces int, last Kind) error {
	switch {
	case op.Kind == OpRead && last < OpRead:
		return fmt.Errorf("%w operation: a group has many members, and each would answer a READ: Group.Unicast reads from one", ErrInvalid)
	case op.Kind > last:
		return fmt.Errorf("%w operation: no kind %d", ErrInvalid, op.Kind)
	case op.Done == nil:
		return fmt.Errorf("%w operation: it needs a Done", ErrInvalid)
	case len(op.Pieces) > maxPieces:
		return errPieces(len(op.Pieces), maxPieces)
	}
	op.size = 0
	for i := range op.Pieces {
		op.size += uint64(op.Pieces[i].n)
	}
	if op.size > qp.MaxMessage {
		return fmt.Errorf("%w: a message of %d bytes; at most %d", ErrInvalid, op.size, qp.MaxMessage)
	}
	if op.Kind.send() {
		if last == OpRead && op.size > MaxUnicastMessage {
			return fmt.Errorf("%w: a message of %d bytes to one member; at most %d: write it", ErrInvalid, op.size, MaxUnicastMessage)
		}
		return nil
	}
	if op.At.Region < 0 || op.At.Region >= len(regions) {
		return fmt.Errorf("%w: region %d; the group has %d", ErrInvalid, op.At.Region, len(regions))
	}
	return inRange(op.At.Offset, op.size, regions[op.At.Region].Length)
}
