// Package volume tests that the Linux kernel, in QEMU guests, can use a replicated volume as a disk
// while hosts of the volume die: its own NBD client with file systems on it, and a whole
// distribution with its root file system there; and that libnbd's own tests pass:
//
//	go test -tags interop -v -timeout 20m ./tests/interop/volume
//
// The volume is that of examples/volume, in the guests' network namespace. Package
// tests/interop/rxe has the guests, and describes the requirements of the tests, and what happens
// if they are not met.
package volume
