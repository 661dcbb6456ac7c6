// Package rocev2 implements the wire format of RoCEv2, RDMA over UDP and IPv4: Ethernet, IPv4 and
// UDP framing, the InfiniBand transport headers of reliable connections (BTH, RETH, AETH, immediate
// data), the congestion notification packet, the invariant CRC, 24-bit sequence number arithmetic,
// and the tables of credit and RNR timer codes.
//
// All functions are pure functions over bytes. Headers are plain structs with AppendTo and Parse
// methods. Functions allocate only to report an error or to grow the slice that they append to.
// Nothing is shared, so any goroutine may use the values that it owns. Bytes from the network never
// cause a panic.
//
// The layers of a packet, outermost first:
//
//	Ethernet | IPv4 | UDP (port 4791) | BTH and extended headers | payload | padding | ICRC
//
// To read one: Ethernet.Parse, ParseIPv4UDP, VerifyICRC over the IPv4 packet, then Headers.Parse
// over the UDP payload without its last four bytes. To write one: the AppendTo methods in the same
// order, four bytes of room, and PutICRC. Senders that gather the payload from several places use
// ICRCState instead. Code that rewrites headers in flight without reading the payload uses
// NeutralOf.
//
// Section numbers are those of the InfiniBand Architecture Specification (IBTA), volume 1, release
// 1.2.1, and its annex A17, RoCEv2.
package rocev2
