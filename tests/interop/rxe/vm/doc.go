// Package vm boots small QEMU guests with a stock Debian kernel and its
// soft-RoCE device, and joins them and a tap in a private network namespace of
// the host by a software switch that can lose and corrupt RoCEv2 frames.
//
// Nothing outlives the process: namespace and tap go with its file
// descriptors, and QEMU is killed by the kernel when its parent dies.
//
// Only tests below tests/interop use it.
package vm
