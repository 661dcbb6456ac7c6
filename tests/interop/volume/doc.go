// Package volume tests that the Linux kernel, in QEMU guests, can use a replicated volume as a disk
// while hosts of the volume die: its own NBD client with file systems on it, and a whole distribution
// that has its root file system there; and that libnbd's own tests find what they want of a server:
//
//	go test -tags interop -v -timeout 20m ./tests/interop/volume
//
// The volume is that of examples/volume, in the guests' network namespace. What the tests need, and
// what happens if it is not there, package tests/interop/rxe says, which has the guests.
package volume
