package qp

import (
	"errors"
	"fmt"
)

// Errors that the methods of this package's interfaces wrap; test with
// errors.Is.
var (
	ErrClosed    = errors.New("qp: closed")
	ErrBusy      = errors.New("qp: still in use")
	ErrState     = errors.New("qp: wrong queue pair state")
	ErrAttr      = errors.New("qp: bad attribute")
	ErrQueueFull = errors.New("qp: queue full")
	ErrOpcode    = errors.New("qp: operation not supported")
	ErrSGE       = errors.New("qp: bad gather or scatter list")
	ErrOverrun   = errors.New("qp: completion queue overrun")
	ErrDevice    = errors.New("qp: no such device")
	ErrAddrInUse = errors.New("qp: address in use")
	ErrLimit     = errors.New("qp: limit reached")
)

// CheckOpcode reports whether op can be posted. On a multicast queue pair READ
// and atomics have no meaning (N receivers would each answer; MC-RDMA §IV-A), and
// atomics are not offered on the others.
func CheckOpcode(op Opcode, multicast bool) error {
	switch {
	case op <= OpSendImm, op == OpRead && !multicast:
		return nil
	case op > OpFetchAdd:
		return fmt.Errorf("%w: opcode %d is unknown", ErrOpcode, uint8(op))
	case multicast:
		return fmt.Errorf("%w: %v on a multicast queue pair: every receiver would answer with its own data; "+
			"read from one replica over a unicast queue pair", ErrOpcode, op)
	}
	return fmt.Errorf("%w: %v: this device offers SEND, WRITE and READ only", ErrOpcode, op)
}
