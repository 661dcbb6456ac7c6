// Package softroce is an RDMA device in user space: RoCEv2 reliable connections
// over anything that carries UDP. It runs the state machines of package rc,
// keeps memory regions, completion queues and timers around them, and talks to
// the network through a link.Link, which has the IP headers and the ICRC.
//
// The driver registers as "softroce". Device names:
//
//	softroce:10.0.0.1                     the host's own stack, package udplink
//	softroce:10.0.0.1?rx=udp&gso=off      with options, see Open
//	softroce:10.0.0.1/24,tunnel=…         a network of its own, package framelink
//
// New makes a device on any other link.Link.
//
// # How it works
//
// A send request is transmitted by the goroutine that posts it, as far as
// window and rate allow, and what other queue pairs have on their way. One goroutine for each device receives: it checks a
// batch of packets, hands each to its queue pair, and then for each queue pair
// that got any takes out the completions and sends what has become due, so that
// the acknowledgements of a batch coalesce. One goroutine for each device
// serves timers. A queue pair has one lock; a region or completion queue is
// shared by many. Nothing allocates per packet.
//
// A READ response is a copy of the region, made when it is sent, packet by packet: the
// region may change meanwhile, so a READ need not find what a region held at one time.
//
// A packet that does not belong to a queue pair is dropped, counted under its
// reason (see Device.Counters) and answered with silence: bad P_Key, transport
// version or opcode, unknown queue pair or one before RTR, source other than
// the queue pair's peer, more payload than the path MTU.
//
// Data written by a peer is visible to the goroutine that polls a later
// completion. A program that watches memory without a completion must know what
// the Go memory model says about that.
package softroce
