//go:build !linux

package tcp

import "time"

// setDeadAfter leaves it to the control connections to find dead peers.
func setDeadAfter(stream, time.Duration) error { return nil }

// setUnsent leaves it to the kernel how much a connection holds.
func setUnsent(stream, int) error { return nil }

// tryWrite leaves writing to the backlog's goroutine.
func tryWrite(uintptr, []byte) (int, error) { return 0, nil }
