package pipeline

import "errors"

// Errors of the control plane's methods. Their errors wrap one of these and name the object and the
// fault.
var (
	ErrExists   = errors.New("exists already")
	ErrNotFound = errors.New("not found")
	ErrFull     = errors.New("no room")
	ErrInvalid  = errors.New("invalid")
	ErrConst    = errors.New("constant")
	ErrInUse    = errors.New("in use")
)
