package qp

import "errors"

// Errors that the methods of this package's interfaces wrap; test with
// errors.Is. The text says more.
var (
	// ErrClosed: the object, or what it belongs to, is closed.
	ErrClosed = errors.New("qp: closed")
	// ErrBusy: others still use it: close them first.
	ErrBusy = errors.New("qp: still in use")
	// ErrState: the queue pair's state does not allow it.
	ErrState = errors.New("qp: wrong queue pair state")
	// ErrAttr: an attribute is missing, not allowed in this transition, or out of range.
	ErrAttr = errors.New("qp: bad attribute")
	// ErrQueueFull: as many requests are posted as Init allows: poll completions first.
	ErrQueueFull = errors.New("qp: queue full")
	// ErrOpcode: the device, or a multicast group's sender, cannot do the operation.
	ErrOpcode = errors.New("qp: operation not supported")
	// ErrSGE: too many pieces, or one outside of its region, of another protection domain or without the rights.
	ErrSGE = errors.New("qp: bad gather or scatter list")
	// ErrOverrun: more requests completed than the completion queue has room for.
	ErrOverrun = errors.New("qp: completion queue overrun")
	// ErrDevice: the program does not import the driver, or the driver has no such device.
	ErrDevice = errors.New("qp: no such device")
	// ErrAddrInUse: another process has the device's address.
	ErrAddrInUse = errors.New("qp: address in use")
	// ErrLimit: the device has no more of it, or the process may not lock more memory.
	ErrLimit = errors.New("qp: limit reached")
)
