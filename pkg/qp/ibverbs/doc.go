// Package ibverbs is the qp device on top of libibverbs: RDMA network cards,
// and the kernel's soft-RoCE. Importing it registers the driver "ibverbs":
//
//	dev, err := qp.Open("ibverbs:mlx5_0")
//	dev, err := qp.Open("ibverbs:rxe0?port=1&gid=3")
//
// The part before the question mark is the device's name as ibv_devices shows
// it, and may be left out if there is only one. The port is 1 unless given.
// The GID index is that of the port's first RoCEv2 GID with an IPv4 address
// unless given.
//
// The device is built with cgo if the build tag "ibverbs" is set, which needs
// libibverbs' header and library (Debian: libibverbs-dev). Otherwise Open
// returns an error that says so.
//
// MaxRdAtomic and MaxDestRdAtomic of 0 become 1, which some devices require; the kernel's soft-RoCE
// rounds them up to powers of two.
package ibverbs
