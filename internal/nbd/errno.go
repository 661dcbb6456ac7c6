package nbd

import (
	"context"
	"errors"
	"syscall"
)

// An Errno is an error as clients see it: the protocol's numbers, most of them Linux's.
// Other errors of an Export become the Errno of a syscall.Errno that they wrap (EDQUOT and
// EFBIG: ENOSPC), ESHUTDOWN if they wrap context.Canceled, or else EIO. The client
// also gets the error's text, if it understands structured replies.
type Errno uint32

// The errors that the protocol knows.
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
	switch e {
	case EPERM:
		return "operation not permitted"
	case EIO:
		return "input/output error"
	case ENOMEM:
		return "out of memory"
	case EINVAL:
		return "invalid argument"
	case ENOSPC:
		return "no space left"
	case EOVERFLOW:
		return "value too large"
	case ENOTSUP:
		return "not supported"
	case ESHUTDOWN:
		return "shutting down"
	}
	return "unknown error"
}

// errnoOf is the Errno that a client gets for an error; see there.
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
