// Package unicast is the connection between a group's sender and one of its members, separate from
// the group: operations to that member alone, its counters, and small messages in both directions.
// Between hosts with devices it is an RC queue pair at each end; otherwise it is a TCP connection
// that behaves like them.
//
// Core is the state of an end, and pure. An End has a Core and the application's pending calls. It
// outlives connections; the sender's end makes them, one after another.
//
// # Flow control
//
// A message occupies a slot of the receiving library until the application receives it. The
// receiver's Board says how many messages the peer may have sent so far, and has the receiver's
// counters, too. At most one board is in flight, and the next one has the latest state: so the cost
// of boards is bounded, and they never wait behind messages. A peer that sends a message without a
// free slot loses its connection.
//
// # Wire format
//
// All numbers are big-endian. A connection begins on TCP: both send a hello, the sender first:
//
//	 0  "MCUNI", version (8 bits)
//	 6  the secret that the member has given to the sender through the daemons; zeros from the member
//	22  queue pair's number, its first PSN, largest path MTU (32 bits each); 0: no device
//	34  exponent of the ACK timeout (8 bits), from the sender
//	35  number of regions (32 bits), from the member, and behind the hello for each: its address (64 bits),
//	    length (64), and remote key (32)
//
// The sender sends one more byte when it is ready to receive. If both have a device, the rest uses
// queue pairs, and the end of the TCP connection only shows that a process has ended: a SEND is a
// frame, and WRITEs and READs are the device's. Otherwise WRITEs and READs are frames, too. A frame
// begins with
//
//	 0  kind (8 bits), zero (8 bits), region (16 bits)
//	 4  immediate (32 bits)
//	 8  offset (64 bits); of done, how many operations are
//	16  length (64 bits), of what follows, or of a READ
package unicast
