// Package simnet runs the production state machines in a packet-level simulation of a fabric: the
// queue pairs of pkg/qp/rc with their DCQCN, the rules of pkg/bifurcation and the merging of
// pkg/ackmerge, in a network of links, shared buffers, ECN and PFC.
//
// # How it works
//
// A [Sim] keeps events in virtual time, in picoseconds, in a heap, and distant timers in another.
// The same seed gives the same run. A host pulls packets from its queue pairs one at a time, in
// turns, whenever its link is free. A switch stores each packet until all of it has arrived,
// chooses among equal-cost paths by a hash of addresses and source port, copies a group's packets
// by the rules of [bifurcation.Plan], and merges answers as they leave for the sender. Packets
// carry headers and lengths; their content is zeros, which the machines do copy.
//
// The package uses no clock and does no I/O. Nothing allocates per packet. A Sim is used by one
// goroutine; several Sims may run in parallel.
//
// # Files
//
// switch.go has the buffer, PFC and forwarding; host.go queue pairs; fabric.go nodes and ports;
// run.go, heap.go and clock.go events; group.go groups.
//
// # Simplifications
//
// ACK, NAK and CNP have a separate class with priority, which PFC does not pause, as in the P4
// program. Pause frames take no bandwidth. Hosts take no time to process a packet, unless the
// link's delay includes it. In a switch, only the buffer and the links delay packets.
package simnet
