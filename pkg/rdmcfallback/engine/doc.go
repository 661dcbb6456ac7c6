// Package engine is one member's part in a group of the fallback, as a state machine:
// messages in the root's order, relayed block by block by a schedule, failures relayed to
// all members, and an end that is clean only if all members have everything. The sources
// are "RDMC: A Reliable RDMA Multicast for Large Objects" (DSN 2018), below DSN, and the
// technical report of the same name, below TR.
//
// # Use
//
// The owner makes an Engine by New and calls its event methods (Send, Provide, Received,
// Sent, Ready, Told, Down, Close, ...). After New, and after each event, it calls Next
// until there are no more actions, and carries each out before it asks for the next. Only
// one goroutine at a time uses an Engine.
//
// The engine never sees a message's bytes. Its actions name them as a Span, and
// the owner knows where that is. So the same code runs over any transport, and in
// a simulator with hundreds of members and no memory.
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
// A receiver doesn't know the size of the next message, but has to say where its first
// block may go and from whom it comes. That sender must not depend on the size. With the
// binomial pipeline in a group whose size isn't a power of two it does, in exactly one
// case, the message of one block (the "one case" of TR §3.4). In such groups all messages
// have two blocks or more. So the first block of each message goes from one peer to the
// spare block, and is copied from there when the application has said where the message
// goes. All other blocks go there directly.
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
// Each member greets each other with what all must agree on: the members in their order,
// block size, algorithm, racks. A member that sees a difference fails the group for all
// members with ErrMismatch. When a member has all greetings it is joined.
//
// # What all members have
//
// A root that wants to know this says so in its greeting. Receivers then tell it how many
// messages are complete there, whenever they have nothing else to do and that number has
// changed; the least is what all members have. Since a receiver counts a message only when
// it has relayed all of it, it needs no more of the message from any peer.
//
// # End
//
// The root tells how many messages there are. Each member that has them all, and has
// relayed all that it had to, tells the root so. When all have, the root says that it is
// done, and only that makes an end clean: no member lacks anything. A member that has told
// the root so ignores the end of any peer but the root: if the group can't end cleanly, the
// root will say so.
//
// # Failure
//
// A connection that breaks, a peer that breaks the rules, and an application that doesn't
// want to go on fail the whole group. A member that notices or learns of a failure tells
// all members, once, which member is suspected and why, and from then on does nothing more.
// The engine keeps no time; detecting a silent peer is its transport's duty.
//
// The package is pure: no input and output, no clock, no goroutines.
package engine
