// Package multicast tests that groups made by the daemons and replicated by switches
// work with the Linux kernel's own RoCEv2 stack, soft-RoCE (rdma_rxe), as members:
// as receivers, whose packets switches have rewritten, and as the sender, whose
// answers switches have merged. The kernels are those of a distribution, unmodified:
//
//	go test -tags interop -v -timeout 20m ./tests/interop/multicast
//
// The lab is that of tests/e2e/lab: two racks with embedded switches, which have the kernel copy
// and merge unless a test has them corrupt packets, their agents, and daemons that trust each other
// by certificates. QEMU guests take the places of hosts in it, each with its kernel, the daemon and
// the test application of tests/e2e/member on pkg/qp/ibverbs inside. Package tests/interop/rxe has
// the guests, and describes the requirements of the tests, and what happens if they are not met.
package multicast
