// Package simnet runs the production machines in a packet-level simulation of a fabric: the queue
// pairs of pkg/qp/rc with their DCQCN, the rules of pkg/bifurcation and the merging of
// pkg/ackmerge, in a network of links, shared buffers, ECN and PFC.
//
// # How it works
//
// A [Sim] has events in virtual time, in picoseconds, in a heap, and timers that are not soon in another. The same seed gives the same
// run. A host pulls packets out of its queue pairs one at a time, in turns, whenever its link is
// free. A switch keeps each packet until all of it has arrived, chooses among equal paths by
// a hash of addresses and source port, copies a group's packets by the rules that [bifurcation.Plan]
// gives the switch, and merges answers as they leave for the sender. Packets carry headers and
// lengths; content is zeros, and is moved, since the machines do that.
//
// It has no clock of its own and opens nothing. Nothing allocates per packet. A Sim is used by one goroutine; several run side by side.
//
// # Files
//
// switch.go has the buffer, PFC and forwarding; host.go queue pairs; fabric.go nodes and ports;
// run.go, heap.go and clock.go events; group.go groups.
//
// # What it simplifies
//
// ACK, NAK and CNP have a class of their own that is sent first, and that PFC does not pause, as
// in the P4 program. Pause frames take no bandwidth. Hosts take no time to process a packet, unless
// the link's delay has it. Of a switch, only its buffer and its links delay packets.
package simnet
