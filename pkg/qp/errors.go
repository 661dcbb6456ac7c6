package qp

import "errors"

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
