// Package softroce is an RDMA device in user space: RoCEv2 reliable connections over any network
// that carries UDP. It runs the state machines of package rc, adds memory regions, completion
// queues and timers, and reaches the network through a link.Link, which handles the IP headers and
// the ICRC.
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
// The goroutine that posts a send request also transmits it, as far as the window, the rate, and
// the device's other packets in flight allow. One goroutine for each device receives: it checks a
// batch of packets and passes each to its queue pair. After the batch, for each queue pair that got
// packets, it delivers the completions and sends the packets that are due, so that the
// acknowledgements of a batch coalesce. One goroutine for each device serves timers. A queue pair
// has one lock; many queue pairs share a region or completion queue. Nothing allocates per packet.
//
// A READ response is copied from the region packet by packet, when each is sent. The region may
// change meanwhile, so a READ need not return the content at one point in time.
//
// A packet that does not belong to a queue pair is dropped without an answer, and counted under its
// reason (see Device.Counters): bad P_Key, transport version or opcode, unknown queue pair or one
// before RTR, source other than the queue pair's peer, more payload than the path MTU.
//
// Data written by a peer is visible to the goroutine that polls a later completion. A program that
// polls memory without a completion has a data race under the Go memory model.
package softroce
