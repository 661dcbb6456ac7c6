// Package qp is mcrdma's verbs-shaped interface to RDMA devices: devices,
// protection domains, memory regions, completion queues and reliable-connection
// queue pairs. It holds the interfaces, the value types and the rules that all
// devices share (the RC state machine, attribute checks); the devices are in
// the packages below it: softroce runs in user space over UDP, ibverbs drives
// real NICs (and the kernel's rxe) through libibverbs.
//
// A program imports the drivers that it wants for their side effect and opens
// a device by name:
//
//	import _ "github.com/mcrdma/mcrdma/pkg/qp/softroce"
//
//	dev, err := qp.Open("softroce:10.0.0.1")
//
// The package must not import P4Runtime, the daemon, or any device package.
package qp
