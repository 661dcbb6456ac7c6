// Package unicast is the connection between a group's sender and one of its members, beside the
// group: operations to that member alone, its counters, and small messages both ways. Between
// hosts with devices it is an RC queue pair at each end, and otherwise a TCP connection, which
// then does what the queue pairs would.
//
// Core is the state of an end, and pure. An End has it, with what the application waits for, and
// outlives connections: the sender's end makes them, one after the other.
//
// # Flow control
//
// A message takes a slot of the receiving library until the application has taken it. The receiver
// says how many messages the peer may have sent so far, in its Board, which has its counters, too. At most
// one board is under way, and the next one has the latest state: so boards cost a bounded amount, and
// never wait behind messages. Who sends a message without a slot has its connection ended.
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
// and the sender a byte more when it is ready to receive. If both have a device, the rest is on queue pairs, and
// TCP only says by its end that a process has ended. A SEND is a frame, and WRITEs and READs are the
// device's own. Otherwise these are frames, too. A frame begins with
//
//	 0  kind (8 bits), zero (8 bits), region (16 bits)
//	 4  immediate (32 bits)
//	 8  offset (64 bits); of done, how many operations are
//	16  length (64 bits), of what follows, or of a READ
package unicast
