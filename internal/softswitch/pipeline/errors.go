package pipeline

import "errors"

// Errors of the control plane's view of a pipeline. What its methods return
// wraps one of them and names the object, and what is wrong with it.
var (
	ErrExists   = errors.New("exists already")
	ErrNotFound = errors.New("not found")
	ErrFull     = errors.New("no room")
	ErrInvalid  = errors.New("invalid")
	ErrConst    = errors.New("constant")
	ErrInUse    = errors.New("in use")
)
