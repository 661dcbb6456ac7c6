// Package rdmcfallback is reliable multicast among hosts, for use where no switch can copy packets:
// the hosts relay a message's blocks to each other, by the schedules of RDMC ("RDMC: A Reliable
// RDMA Multicast for Large Objects", DSN 2018).
package rdmcfallback

import "context"

// MaxTell is the size of the largest message that Transport.Tell takes, in
// bytes.
const MaxTell = 4096

// A Transport moves blocks between this member and its peers, of one group.
// Members, and so peers, are numbered as in Config.Members; the numbers are
// those that Schedule uses, and number 0 is the root.
//
// The methods are for one goroutine, the group's; Rank and Close may be called from
// others, and more than once. None of them but Events waits for a peer. An error of
// PostRecv, Send or Tell means that this transport as a whole can't go on, or that it was
// used against the rules; EventDown reports the failure of one connection; before and after that
// event, what is sent to that peer vanishes without an error.
//
// In the steady state none of them allocates.
type Transport interface {
	// Rank returns which member this is, and of how many.
	Rank() (self, members int)
	// PostRecv says where the next block from a peer is to go, after those posted before,
	// and tells the peer that it may send one more (ready_for_block, DSN §4.2). buf belongs
	// to the transport until EventReceived, or until Close has returned. A block
	// longer than buf is an error of the peer and ends the connection: EventDown. buf may be
	// empty.
	PostRecv(peer int, buf []byte) error
	// Send sends a block, perhaps empty, to a peer, after those sent before. There may be
	// at most as many sends as there were events EventReady of the peer. imm travels with the
	// block. block belongs to the transport, which only reads it, until EventSent, or
	// until Close has returned.
	Send(peer int, imm uint32, block []byte) error
	// Tell sends a small message, of 1 to MaxTell bytes, reliably and in order, to any
	// member, not only to a neighbor in the schedule. msg is the caller's again when Tell
	// returns.
	Tell(peer int, msg []byte) error
	// Events waits until something has happened or ctx ends, and returns what
	// happened in events[:n], in the order in which it happened with each peer;
	// blocks and told messages of one peer have no order among each other, but
	// EventDown comes after all that the peer told before it ended. With n = 0 there is
	// an error: ctx's, or one that says why the transport as a whole can't go on.
	Events(ctx context.Context, events []Event) (n int, err error)
	// Close ends all connections and returns when the transport no longer uses
	// any buffer. Peers see EventDown. What was told before reaches the peers that
	// still read, unless that takes unreasonably long.
	Close() error
}

// Defaults is an optional interface of a Transport: what Config.BlockSize and Config.Ahead are where they are 0. All members
// of a group have it, or none; a wrapper that only has a Transport's methods hides it.
type Defaults interface {
	// Defaults returns the size of blocks in bytes, the same at all members, and how many more blocks may be under way than
	// one in each direction, which members may differ in.
	Defaults() (blockSize, ahead int)
}

// An EventKind says what happened at a Transport.
type EventKind uint8

// What may happen.
const (
	// EventReceived: the buffer posted longest ago for Peer holds a block of N bytes
	// that came with Imm.
	EventReceived EventKind = iota + 1
	// EventSent: the block sent longest ago to Peer is the sender's again.
	EventSent
	// EventReady: Peer can take one more block.
	EventReady
	// EventTold: Peer sent the message Msg.
	EventTold
	// EventSmall: the root put Msg with Imm into the ring at this member; see Ring.
	EventSmall
	// EventFreed: at the root, Peer freed N slots of its ring.
	EventFreed
	// EventDown: the connection to Peer ended, because of Err. It is the last event
	// of that peer.
	EventDown
)

// An Event is something that happened at a Transport.
type Event struct {
	Kind EventKind
	Peer int
	// Imm is what came with a block or a small message.
	Imm uint32
	// N is the length of a received block in bytes, or a number of slots.
	N int
	// Msg is what was told, valid until the next call of Events, or a small
	// message, valid until it is freed.
	Msg []byte
	// Err says why the connection is down; never nil with EventDown.
	Err error
}
