//go:build !linux

package tcp

import "time"

// setDeadAfter does nothing: the control connections detect dead peers.
func setDeadAfter(stream, time.Duration) error { return nil }

// setUnsent does nothing: the kernel determines how much a connection buffers.
func setUnsent(stream, int) error { return nil }

// tryWrite writes nothing: the backlog's goroutine writes all.
func tryWrite(uintptr, []byte) (int, error) { return 0, nil }
