// Package tcp is the transport of package rdmcfallback over TCP, for hosts without RDMA,
// and the bootstrap of a group: its members find each other, check that they mean the same
// group, and can exchange what they need, such as the keys of RDMA queue pairs. This
// transport also bootstraps transports over anything else (DSN 2018, §2 and §4.2).
//
// # Connections
//
// Every member listens at its address. Between each two members there is one control
// connection, which the member with the higher number makes. Connect returns when all
// members have met all others, or fails at every member with the reason. The control
// connections carry control messages, and their end is how a failure is noticed.
//
// Blocks travel on connections of their own, so that a big block never delays control
// messages. The member that first posts a buffer for a peer's blocks makes a connection to
// that peer, for blocks in this one direction; the opposite direction of this connection
// carries ready_for_block. So members that are not neighbors in the schedule have no such
// connection, and blocks, even where both peers send at once, never delay readiness.
//
// A block is read straight into the buffer that was posted, and written straight
// from the sender's memory: only the kernel copies. EventSent means that the kernel
// has the block and has passed all but a little of it on to the network.
// [rdmcfallback.EventSent] is therefore late enough for a sender that sends one block
// after the other to keep the order of the schedule on the wire.
//
// Small messages travel on one more connection from the root to each receiver,
// which the root makes when it puts the first one into the receiver's ring. The
// receiver reads them into the slots, as long as there are free ones, and tells
// the root on the same connection when it frees some.
//
// # Failures
//
// Members notice a process that dies at once, because its kernel ends its connections.
// Members tell each other that they are alive; they notice a host that dies or is cut off,
// and a process that is stopped, by its silence, within little more than Options.DeadAfter.
// A member whose application is busy isn't silent. A peer that breaks the protocol is
// disconnected, and EventDown says what it did.
//
// # Wire format
//
// All numbers are big-endian. A connection begins with a greeting from each side, the
// dialer's first: "RDMC/TCP", the version (16 bits), the length of the rest (32 bits), and
// the rest, a JSON object: its kind and, for a rejection, a code and a reason, or an abort's
// message; else the group, the epoch, the sender's and the addressee's numbers, their runs
// (random numbers that tell a process from its successor; the addressee's is 0 where it
// isn't known), and for a control connection the members' addresses and the opaque hello.
//
// On a control connection, messages follow: kind (8 bits), a zero, length (16
// bits), bytes. On a connection for blocks, each block has a header: "BLK1", the
// immediate value, the length, the block's number on this connection (32 bits
// each); against it flows, as often as it changes, the number of buffers posted
// so far (32 bits). On a connection for small messages, they come with the same
// header, but for its beginning, "SML1"; against them flows the number of slots
// freed so far. Numbers of blocks and small messages and these two begin at 0 and
// wrap.
//
// There is neither encryption nor authentication: as with RDMA, use groups only in networks
// whose hosts trust each other.
package tcp
