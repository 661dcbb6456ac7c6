// Package rocev2 is the wire format of RoCEv2, RDMA over UDP and IPv4: Ethernet,
// IPv4 and UDP framing, the InfiniBand transport headers of reliable connections
// (BTH, RETH, AETH, immediate data) and the congestion notification packet, the
// invariant CRC, 24-bit sequence number arithmetic, and the
// tables of credit and RNR timer codes.
//
// Everything is a pure function over bytes. Headers are plain structs with
// AppendTo and Parse methods; nothing allocates except to report an error or to
// grow the slice that it appends to, and nothing is shared, so values may be used
// by any goroutine that owns them. Bytes from the network never cause a panic.
//
// A packet is, from the outside in:
//
//	Ethernet | IPv4 | UDP (port 4791) | BTH and extended headers | payload | padding | ICRC
//
// To read one: Ethernet.Parse, ParseIPv4UDP, VerifyICRC over the IPv4 packet,
// then Headers.Parse over the UDP payload without its last four bytes. To write
// one: the AppendTo methods in the same order, four bytes of room, and PutICRC.
// Senders that gather the payload from several places use ICRCState instead, and
// what rewrites packets in flight without looking at the payload, NeutralOf.
//
// Clauses are those of the InfiniBand Architecture Specification (IBTA), volume 1,
// release 1.2.1, and its annex A17, RoCEv2.
package rocev2
