package rocev2

import "errors"

// Errors that the errors of parsing wrap; test with errors.Is.
var (
	ErrTruncated = errors.New("rocev2: truncated packet")
	ErrOpcode    = errors.New("rocev2: unknown opcode")
	ErrFormat    = errors.New("rocev2: malformed packet")
	ErrChecksum  = errors.New("rocev2: wrong IPv4 header checksum")
	ErrFragment  = errors.New("rocev2: IPv4 fragment")
	ErrNotIPv4   = errors.New("rocev2: not an IPv4 packet")
	ErrNotUDP    = errors.New("rocev2: not a UDP packet")
)
