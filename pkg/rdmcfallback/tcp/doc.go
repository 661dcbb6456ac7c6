// Package tcp is the transport of package rdmcfallback over TCP, for hosts without RDMA, and the
// bootstrap of a group: its members find each other, check that they agree on the group, and can
// exchange data such as the keys of RDMA queue pairs. This bootstrap also serves transports over
// other networks (DSN 2018, §2 and §4.2).
//
// # Connections
//
// Every member listens at its address. Between each two members there is one control connection,
// which the member with the higher number opens. Connect returns when all members have met all
// others, or fails at every member with the reason. The control connections carry control messages,
// and their end indicates a failure.
//
// Blocks travel on connections of their own, so that a big block never delays control messages. The
// member that first posts a buffer for a peer's blocks opens a connection to that peer, for blocks
// in this one direction; the opposite direction of this connection carries ready_for_block. So
// members that are not neighbors in the schedule have no such connection, and blocks never delay
// readiness, even if both peers send at once.
//
// A block is read directly into the posted buffer, and written directly from the sender's memory:
// only the kernel copies. [rdmcfallback.EventSent] means that the kernel has accepted the block and
// has passed almost all of it to the network. That is late enough for a sender that sends one block
// after the other to keep the order of the schedule on the wire.
//
// Small messages travel on one more connection from the root to each receiver, which the root opens
// when it puts the first one into the receiver's ring. The receiver reads them into free slots, and
// reports freed slots to the root on the same connection.
//
// # Failures
//
// If a process dies, members notice at once, because its kernel ends its connections. Members tell
// each other that they are alive, so they detect a dead or disconnected host, or a stopped process,
// within little more than Options.DeadAfter. A member with a busy application is not considered
// silent. A peer that violates the protocol is disconnected, and EventDown has the details.
//
// # Wire format
//
// All numbers are big-endian. A connection begins with a greeting from each side, the dialer's
// first: "RDMC/TCP", the version (16 bits), the length of the rest (32 bits), and the rest, a JSON
// object. It has its kind and, for a rejection, a code and a reason, or an abort's message.
// Otherwise it has the group, the epoch, the numbers of sender and addressee, their runs (random
// numbers that distinguish a process from its successor; the addressee's is 0 if unknown), and for
// a control connection the members' addresses and the opaque hello.
//
// On a control connection, messages follow: kind (8 bits), a zero byte, length (16 bits), bytes. On
// a connection for blocks, each block has a header: "BLK1", the immediate value, the length, the
// block's number on this connection (32 bits each). In the opposite direction, the total number of
// buffers posted (32 bits) is sent whenever it changes. On a connection for small messages, these
// have the same header, except that it begins with "SML1"; in the opposite direction, the total
// number of slots freed is sent. All these numbers start at 0 and wrap.
//
// There is neither encryption nor authentication: as with RDMA, use groups only in networks whose
// hosts trust each other.
package tcp
