// Package link is the interface between the softroce device and the network. A Link carries the
// RoCEv2 packets of one local IPv4 address. It owns everything below the BTH, that is IPv4, UDP and
// the ICRC, which covers both; the device owns the transport. udplink attaches to the host's own
// stack; framelink has its own Ethernet, ARP and IPv4.
package link

import (
	"fmt"
	"net/netip"
	"time"
)

// A Tx is a packet to send.
type Tx struct {
	Dst netip.Addr // IPv4
	TOS uint8      // DSCP in the high six bits, ECN in the low two
	// Flow selects the UDP source port, so that ECMP spreads queue pairs and
	// keeps each on one path.
	Flow uint16
	// Parts, in order, are the UDP payload without the ICRC, which the link
	// appends: transport headers, payload pieces, padding. They are read
	// during Send only.
	Parts [][]byte
	// Len is the sum of the lengths of Parts, a multiple of 4.
	Len int
}

// An Rx is a received packet whose ICRC was right.
type Rx struct {
	Src netip.Addr
	TOS uint8
	// Data is the UDP payload without the ICRC, valid until the next Recv.
	Data []byte
}

// A Buffered link knows about how many bytes of packets it holds for Recv before
// it drops any. The device takes it for what its peers' links hold, too, and
// sizes its window by it.
type Buffered interface{ RxSpace() int }

// A Seeing link says whether it sees the IPv4 identification of what it receives, and takes
// packets with any; others take those that their like send.
type Seeing interface{ SeesIdentification() bool }

// A Polling link can poll for packets: see qp.Poller.
type Polling interface{ PollFor(d time.Duration) }

// A Link carries packets. Send may be called by many goroutines at once, Recv
// by one.
type Link interface {
	// Addr is the link's own IPv4 address.
	Addr() netip.Addr
	// MTU is the largest IPv4 packet that the link takes, bytes.
	MTU() int
	// Send hands packets to the network in order, waiting while its buffers
	// are full. Packets may be lost on the way like on any network; an error
	// concerns the link or, wrapped in a *TxError, one packet.
	Send(batch []Tx) error
	// Recv waits for packets, fills batch from its start and returns how many
	// there are, at least one. Bad packets are counted and skipped. After
	// Close it returns net.ErrClosed.
	Recv(batch []Rx) (int, error)
	// Counters adds the link's statistics to m: frames dropped by reason
	// ("rx_drop_icrc", "rx_drop_truncated", …), syscalls and the like.
	Counters(m map[string]uint64)
	// Close stops the link; a blocked Recv returns.
	Close() error
}

// A TxError says that one packet of a batch could not be handed to the network
// and why: no route to Dst, too long for the MTU, and the like. The link goes
// on; the other packets of the batch were handed over, save any that failed in
// the same way after it, which the link counts.
type TxError struct {
	Index int // in the batch
	Err   error
}

// Error implements error.
func (e *TxError) Error() string { return fmt.Sprintf("packet %d of the batch: %v", e.Index, e.Err) }

// Unwrap returns the reason.
func (e *TxError) Unwrap() error { return e.Err }
