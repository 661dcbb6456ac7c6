//go:build !linux

package ports

import (
	"fmt"
	"runtime"
)

// An Interface is a port on a network interface; there is none on this
// operating system.
type Interface struct{ Port }

// OpenInterface returns an error that wraps ErrUnsupported.
func OpenInterface(name string, _ Options) (*Interface, error) {
	return nil, fmt.Errorf("ports: interface %s: %w: packet sockets are Linux's, this is %s; a UDP tunnel works everywhere",
		name, ErrUnsupported, runtime.GOOS)
}
