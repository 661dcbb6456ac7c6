package rocev2

import "errors"

// Errors that parsing wraps; test with errors.Is.
var (
	ErrTruncated = errors.New("rocev2: truncated packet")
	ErrOpcode    = errors.New("rocev2: unknown opcode")
	ErrFormat    = errors.New("rocev2: malformed packet")
)
