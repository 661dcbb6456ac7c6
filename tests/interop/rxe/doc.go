// Package rxe tests that the devices of pkg/qp work with the Linux kernel's
// own RoCEv2 stack, soft-RoCE (rdma_rxe), over a network that may lose and
// corrupt packets. The kernel runs in QEMU guests, one per endpoint, so that
// no RDMA hardware, kernel module or KVM is needed on the machine:
//
//	go test -tags interop -v -timeout 20m ./tests/interop/rxe
//
// A guest's kernel, Debian's, is also where the data plane's programs for the kernel
// (package bpf) are loaded and tested: in bookworm it is 6.1, the oldest that they
// are for.
//
// The tests need root (for a private network namespace with a tap) and a
// Debian system whose apt can download packages: the kernel and the RDMA tools
// are downloaded and unpacked into a cache directory, not installed. Only
// qemu-system-x86 and a C compiler must be there; root gets the former by
// apt-get. What is missing makes the tests skip with the reason, or fail if
// MCRDMA_MUST_RUN=1 is set.
//
// The packages below hold the parts: vm boots the guests and joins them by a
// software switch, guest is their init, peer the endpoint program that runs on
// either device, guestexec and peerproto what is spoken with the last two.
package rxe
