// Package ports receives and sends the Ethernet frames of the embedded switch, in batches: by a
// packet socket on a network interface (OpenInterface), or through a UDP tunnel (OpenTunnel).
//
//	p, err := ports.OpenInterface("veth0", ports.Options{})
//	n, err := p.Recv(bufs) // waits for at least one frame
//	sent := p.Send(frames) // drops what cannot be sent
//
// A frame consists of destination MAC, source MAC, EtherType and payload, without preamble and
// frame check sequence. Every truncated or dropped frame is counted; see Stats.
package ports

import (
	"errors"
	"sync/atomic"
)

// Errors that the errors of this package wrap, besides net.ErrClosed and those of the operating
// system.
var (
	// ErrConfig reports invalid options.
	ErrConfig = errors.New("bad configuration")
	// ErrGone reports that the interface was removed.
	ErrGone = errors.New("the interface was removed")
)

// HeaderLen is the length of an Ethernet header without tags: the shortest frame.
const HeaderLen = 14

// MaxBatch is the maximum number of frames returned by one Recv.
const MaxBatch = 64

// A Port is one port of the switch.
type Port interface {
	// Name returns what the port is attached to.
	Name() string
	// Recv waits for frames, copies each into one element of bufs (up to its capacity), sets the
	// element's length, and returns the number of frames, at least one. A frame that does not fit
	// is dropped and counted. Only one goroutine at a time may call Recv. The error wraps
	// net.ErrClosed after Close, ErrGone, or an error of the operating system; it is final.
	Recv(bufs [][]byte) (n int, err error)
	// Send sends frames in order and returns how many were sent. It never waits for the other end:
	// a frame that cannot be sent is dropped and counted. It does not keep frames. Only one
	// goroutine at a time may call Send.
	Send(frames [][]byte) int
	// Up reports whether the port can currently carry frames.
	Up() bool
	// Stats returns the counters since the port was opened.
	Stats() Stats
	// Close closes the port. A blocked Recv returns; Send then drops frames.
	Close() error
}

// Stats are a port's counters. Bytes are those of whole frames, including tags.
type Stats struct {
	RxPackets, RxBytes uint64
	TxPackets, TxBytes uint64
	// Drops counts the frames lost at this port, by the Reason's String. Reasons without drops are
	// absent.
	Drops map[string]uint64
}

// Options are the options of all kinds of ports. The zero value works.
type Options struct {
	// Buffer is the size of the operating system's buffer in bytes, in each direction; 0 means
	// DefaultBuffer. A packet socket's ring is allocated at once.
	Buffer int
	// Hint, if not nil, gets messages for the operator on how to avoid this port's drops, at most
	// one for each reason. It is called from Recv or Send and must not block.
	Hint func(string)
}

// DefaultBuffer holds about 4000 frames of 1500 bytes: 25 ms at 150,000 frames per second.
const DefaultBuffer = 8 << 20

// maxBuffer prevents a typing error from using all memory.
const maxBuffer = 1 << 30

func (o Options) buffer() int {
	if o.Buffer <= 0 {
		return DefaultBuffer
	}
	return min(o.Buffer, maxBuffer)
}

// A Reason is the reason of a drop.
type Reason int

// Reasons.
const (
	RxFull      Reason = iota // the switch did not read frames fast enough
	RxSegmented               // several frames in one, by segmentation offload or GRO
	RxTooLong                 // longer than the MTU or the buffer
	RxRunt                    // shorter than an Ethernet header
	RxStranger                // a datagram that is not from the tunnel's peer
	TxFull                    // the output buffer is full
	TxDown                    // the interface is down or removed, or the port closed
	TxTooLong                 // longer than the MTU
	TxRunt                    // shorter than an Ethernet header
	TxPeer                    // the tunnel's peer cannot be reached
	TxError                   // another error of the operating system
	numReasons
)

var reasonNames = [numReasons]string{"rx_full", "rx_segmented", "rx_too_long", "rx_runt", "rx_stranger",
	"tx_full", "tx_down", "tx_too_long", "tx_runt", "tx_peer", "tx_error"}

// String returns the reason's key in Stats.Drops.
func (r Reason) String() string { return reasonNames[r] }

// counters are the data of Stats, and the Hint function for drops.
type counters struct {
	rxPackets, rxBytes atomic.Uint64
	txPackets, txBytes atomic.Uint64
	drops              [numReasons]atomic.Uint64
	hint               func(string)
	hinted             [numReasons]atomic.Bool
}

func (c *counters) received(n, bytes int) {
	c.rxPackets.Add(uint64(n))
	c.rxBytes.Add(uint64(bytes))
}

func (c *counters) sent(frames [][]byte) {
	bytes := 0
	for _, f := range frames {
		bytes += len(f)
	}
	c.txPackets.Add(uint64(len(frames)))
	c.txBytes.Add(uint64(bytes))
}

func (c *counters) drop(r Reason, n int) { c.drops[r].Add(uint64(n)) }

// advise passes the text for r to the Hint, once.
func (c *counters) advise(r Reason, text func() string) {
	if c.hint != nil && c.hinted[r].CompareAndSwap(false, true) {
		c.hint(text())
	}
}

func (c *counters) stats() Stats {
	s := Stats{
		RxPackets: c.rxPackets.Load(), RxBytes: c.rxBytes.Load(),
		TxPackets: c.txPackets.Load(), TxBytes: c.txBytes.Load(),
		Drops: map[string]uint64{},
	}
	for r := range numReasons {
		if n := c.drops[r].Load(); n > 0 {
			s.Drops[r.String()] = n
		}
	}
	return s
}
