package store

import (
	"errors"
	"fmt"
)

// Errors that those of this package wrap.
var (
	ErrLocked  = errors.New("another process uses the state file")
	ErrVersion = errors.New("the state file was written by a newer version")
	ErrCorrupt = errors.New("the state file is damaged")
	ErrClosed  = errors.New("the store is closed")
	ErrFailed  = errors.New("the state file could not be written")
	ErrInvalid = errors.New("invalid use of the store")
)

func corrupt(format string, args ...any) error {
	return fmt.Errorf("%w (%s): move it away and start without it; groups that only it knew end, or are re-formed. Do not restore an older copy",
		ErrCorrupt, fmt.Sprintf(format, args...))
}
