package nbd

import (
	"context"
	"errors"
	"syscall"
)

// An Errno is an error number of the protocol; most are Linux's. Other errors of an Export are
// mapped: a wrapped syscall.Errno to its Errno (EDQUOT and EFBIG to ENOSPC), context.Canceled to
// ESHUTDOWN, and the rest to EIO. A client that negotiated structured replies also gets the error's
// text.
type Errno uint32

// The protocol's errors.
const (
	EPERM     Errno = 1
	EIO       Errno = 5
	ENOMEM    Errno = 12
	EINVAL    Errno = 22
	ENOSPC    Errno = 28
	EOVERFLOW Errno = 75
	ENOTSUP   Errno = 95
	ESHUTDOWN Errno = 108
)

func (e Errno) Error() string {
	if e == ESHUTDOWN { // Linux speaks of transport endpoints
		return "shutting down"
	}
	return syscall.Errno(e).Error()
}

// errnoOf returns the Errno to send for an error, as described there.
func errnoOf(err error) Errno {
	if err == nil {
		return 0
	}
	var own Errno
	var system syscall.Errno
	switch {
	case errors.As(err, &own) && own != 0:
		return own
	case errors.As(err, &system):
		switch system {
		case syscall.EDQUOT, syscall.EFBIG, syscall.ENOSPC:
			return ENOSPC
		case syscall.EPERM, syscall.EACCES, syscall.EROFS:
			return EPERM
		case syscall.ENOMEM, syscall.EINVAL, syscall.EOVERFLOW, syscall.EOPNOTSUPP:
			return Errno(system)
		}
	case errors.Is(err, context.Canceled):
		return ESHUTDOWN
	}
	return EIO
}
