// Package rdmcfallback is reliable multicast among hosts, for networks without a switch that can
// copy packets: the hosts relay a message's blocks to each other, according to the schedules of
// RDMC ("RDMC: A Reliable RDMA Multicast for Large Objects", DSN 2018).
//
// All members join a group over a Transport: that of package tcp, or of package rdma for queue
// pairs. The root sends messages, and the others receive them:
//
//	members := []string{"h1:7000", "h2:7000", "h3:7000"} // the first is the root
//	transport, err := tcp.Connect(ctx, tcp.Options{Members: members, Self: self, Group: 1, Epoch: 1})
//	group, err := rdmcfallback.Join(ctx, rdmcfallback.Config{Members: members, Self: self, Complete: use}, transport)
//	err = group.Send(ctx, message) // at the root
//	err = group.Close(ctx)         // nil: all members have all messages
//
// Most programs use package mcrdma instead, which relays by this package where switches cannot copy.
package rdmcfallback

import "context"

// MaxTell is the maximum length of a message of Transport.Tell, in bytes.
const MaxTell = 4096

// A Transport moves blocks between this member and its peers in one group. Members and peers are
// numbered as in Config.Members and in schedules; number 0 is the root.
//
// Only the group's goroutine calls the methods, except Rank and Close, which other goroutines may
// call, more than once. Only Events waits for peers. An error of PostRecv, Send or Tell means that
// the whole transport has failed or was used incorrectly. EventDown reports the failure of one
// connection; before and after that event, data sent to that peer is discarded without an error.
//
// In steady state, no method allocates.
type Transport interface {
	// Rank returns this member's number, and the number of members.
	Rank() (self, members int)
	// PostRecv posts the buffer for the next block from a peer, after those posted before, and
	// tells the peer that it may send one more block (ready_for_block, DSN §4.2). buf belongs to
	// the transport until EventReceived, or until Close has returned. A block longer than buf is an
	// error of the peer and ends the connection: EventDown. buf may be empty.
	PostRecv(peer int, buf []byte) error
	// Send sends a block, perhaps empty, to a peer, after those sent before. The number of sends
	// must not exceed the number of EventReady events of the peer. imm is sent with the block.
	// block belongs to the transport, which only reads it, until EventSent, or until Close has
	// returned.
	Send(peer int, imm uint32, block []byte) error
	// Tell sends a small message, of 1 to MaxTell bytes, reliably and in order, to any member, not
	// only to a neighbor in the schedule. When Tell returns, the caller may reuse msg.
	Tell(peer int, msg []byte) error
	// Events waits for events or the end of ctx, and returns events in events[:n]. Those of one
	// peer are in order, except that blocks and messages of Tell have no order relative to each
	// other; EventDown comes after all messages that the peer sent by Tell before. With n = 0 there
	// is an error: ctx's, or the reason why the whole transport has failed.
	Events(ctx context.Context, events []Event) (n int, err error)
	// Close ends all connections and returns when the transport no longer uses any buffer. Peers
	// get EventDown. Earlier messages of Tell still reach peers that read them, within a limited
	// time.
	Close() error
}

// Defaults is an optional interface of a Transport, for the default values of Config.BlockSize and
// Config.Ahead. Either all members of a group have it or none. A wrapper with only a Transport's
// methods hides it.
type Defaults interface {
	// Defaults returns the block size in bytes, which is the same at all members, and how many more
	// blocks than one may be in flight in each direction, in which members may differ.
	Defaults() (blockSize, ahead int)
}

// Leaver is an optional interface of a Transport: the first part of Close, which does not wait for peers. A wrapper with
// only a Transport's methods hides it.
type Leaver interface {
	// Leave returns when the transport no longer uses any buffer. Earlier messages of Tell still reach peers that read
	// them. Close must follow, and waits for that. Only Close may be called after Leave.
	Leave()
}

// An EventKind is the kind of an event.
type EventKind uint8

// Kinds of events.
const (
	// EventReceived: the oldest buffer posted for Peer holds a block of N bytes, with immediate
	// value Imm.
	EventReceived EventKind = iota + 1
	// EventSent: the oldest block being sent to Peer belongs to the sender again.
	EventSent
	// EventReady: Peer can receive one more block.
	EventReady
	// EventTold: Peer sent the message Msg.
	EventTold
	// EventSmall: the root put Msg with Imm into this member's ring; see Ring.
	EventSmall
	// EventFreed: at the root, Peer freed N slots of its ring.
	EventFreed
	// EventDown: the connection to Peer ended, because of Err. It is the last event of that peer.
	EventDown
)

// An Event is an event of a Transport.
type Event struct {
	Kind EventKind
	Peer int
	// Imm is the immediate value of a block or a small message.
	Imm uint32
	// N is the length of a received block in bytes, or the number of freed slots.
	N int
	// Msg is a message of Tell, valid until the next call of Events, or a small message, valid
	// until it is freed.
	Msg []byte
	// Err is the reason of EventDown, never nil then.
	Err error
}
