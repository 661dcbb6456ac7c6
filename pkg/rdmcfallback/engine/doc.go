// Package engine implements one member of a group of the fallback as a state machine: messages in
// the root's order, relayed block by block according to a schedule; failures, reported to all
// members; and an end that is clean only if all members have all messages. The sources are "RDMC: A
// Reliable RDMA Multicast for Large Objects" (DSN 2018), below DSN, and the technical report of the
// same name, below TR.
//
// # Use
//
// The owner creates an Engine with New and calls its event methods (Send, Provide, Received, Sent,
// Ready, Told, Down, Close, ...). After New, and after each event, it calls Next until there are no
// more actions, and performs each one before it calls Next again. Only one goroutine at a time may
// use an Engine.
//
// The engine never sees the bytes of messages. Its actions identify them by a Span, which the owner
// maps to memory. So the same code runs over any transport, and in a simulator with hundreds of
// members and no memory.
//
// # Messages and blocks
//
// A message of size bytes is cut into blocks of Config.BlockSize bytes, the last
// being shorter. A message that fits one block is one block, or, if the group's
// schedule needs two (see below), two halves, of which the second may be empty.
// Each block's immediate value announces the message (DSN §4.2): below 2^31 it is
// the message's size; with the top bit set the other bits are the number of
// blocks less one, and the root tells the exact size to each member in a control
// message. Receivers check every block's immediate value and length.
//
// A receiver does not know the size of the next message, but must announce a buffer for its first
// block to the member that sends it. That sender must not depend on the size. With the binomial
// pipeline in a group whose size is not a power of two it does, in exactly one case, the message of
// one block (the "one case" of TR §3.4). In such groups all messages have two blocks or more. So
// the first block of each message goes from a fixed peer to the spare block, and is copied from
// there when the application has provided the message's memory. All other blocks go directly to
// that memory.
//
// A member may work on up to Window messages at a time: it receives the blocks of
// one while it still relays blocks of others; but one of Config.Prompt bytes or
// fewer is complete before the next begins. Sends are in the order of messages
// and steps, and so are the receives that it posts, but neither waits for the
// other: a send waits for its own block and for the peer being ready, a posted
// receive for nothing. Thus the first transfer, in order of messages and steps,
// that isn't done can always be done.
//
// # Beginning
//
// Each member sends each other a greeting with the parameters that all must agree on: the members
// in their order, block size, algorithm, racks. A member that sees a difference fails the group for
// all members with ErrMismatch. When a member has all greetings, it has joined.
//
// # What all members have
//
// A root that wants to know which messages all members have says so in its greeting. Receivers then
// report how many messages are complete, whenever they have nothing else to do and that number has
// changed; the minimum is what all members have. A receiver counts a message only when it has
// relayed all of it, so it no longer depends on any peer for that message.
//
// # End
//
// The root announces the number of messages. Each member that has all of them, and has relayed all
// its blocks, reports that to the root. When all have, the root announces that it is done. Only
// that makes an end clean: no member lacks any message. A member that has reported to the root
// ignores the end of all peers except the root: if the group cannot end cleanly, the root will say
// so.
//
// # Failure
//
// A broken connection, a peer that violates the protocol, and an application that leaves fail the
// whole group. A member that detects or learns of a failure tells all members once which member is
// suspected and why, and then does nothing more. The engine has no timers; its transport must
// detect a silent peer.
//
// The package is pure: no input and output, no clock, no goroutines.
package engine
