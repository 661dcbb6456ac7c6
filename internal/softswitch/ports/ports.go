// Package ports moves Ethernet frames in and out of the embedded switch, many at
// a time: by a packet socket on a network interface (OpenInterface), or by a UDP
// tunnel (OpenTunnel).
//
//	p, err := ports.OpenInterface("veth0", ports.Options{})
//	n, err := p.Recv(bufs) // waits for at least one frame
//	sent := p.Send(frames) // drops what cannot leave
//
// A frame is destination MAC, source MAC, EtherType and payload: no preamble, no
// frame check sequence. Nothing is cut or dropped without being counted; see
// Stats.
package ports

import (
	"errors"
	"sync/atomic"
)

// Errors that those of this package wrap, besides net.ErrClosed and those of
// the operating system.
var (
	// ErrConfig reports options that are impossible.
	ErrConfig = errors.New("bad configuration")
	// ErrGone tells that the interface was removed.
	ErrGone = errors.New("the interface was removed")
)

// HeaderLen is the length of an Ethernet header without tags: the shortest frame.
const HeaderLen = 14

// MaxBatch is the most frames that one Recv returns, whatever room it is given.
const MaxBatch = 64

// A Port is one port of the switch.
type Port interface {
	// Name says what the port is attached to.
	Name() string
	// Recv waits for frames, copies each into the room of one element of bufs
	// (its capacity), sets the element's length, and returns how many there
	// are, at least one. A frame that the room is too small for is dropped and
	// counted. One goroutine calls Recv at a time. The error wraps
	// net.ErrClosed after Close, ErrGone, or what the operating system says; it
	// is final.
	Recv(bufs [][]byte) (n int, err error)
	// Send sends frames in order and returns how many went. It never waits for
	// the other end: a frame that cannot leave is dropped and counted. It does
	// not keep frames. One goroutine calls Send at a time.
	Send(frames [][]byte) int
	// Up reports whether the port can carry frames at present.
	Up() bool
	// Stats returns what was counted since the port was opened.
	Stats() Stats
	// Close ends the port. A blocked Recv returns; Send then drops.
	Close() error
}

// Stats are a port's counters. Bytes are whole frames, tags included.
type Stats struct {
	RxPackets, RxBytes uint64
	TxPackets, TxBytes uint64
	// Drops counts the frames that were lost at this port, by reason. Reasons
	// that never occurred are absent; String of the Reasons names them.
	Drops map[string]uint64
}

// Options are what all kinds of ports understand. The zero value works.
type Options struct {
	// Buffer is how many bytes of frames wait in the operating system, each
	// way; 0 means DefaultBuffer. A packet socket's ring is allocated at once.
	Buffer int
	// Hint, if not nil, gets a text for the operator: what to do about the
	// frames that this port drops, at most once for each reason. It is called
	// from Recv or Send and must not block.
	Hint func(string)
}

// DefaultBuffer holds about 4000 frames of 1500 bytes: 25 ms at 150,000 a second.
const DefaultBuffer = 8 << 20

// maxBuffer keeps a typing error from taking all memory.
const maxBuffer = 1 << 30

func (o Options) buffer() int {
	if o.Buffer <= 0 {
		return DefaultBuffer
	}
	return min(o.Buffer, maxBuffer)
}

// A Reason is why a frame was dropped.
type Reason int

// Reasons.
const (
	RxFull      Reason = iota // the switch did not fetch frames fast enough
	RxSegmented               // several frames in one, by segmentation offload or GRO
	RxTooLong                 // longer than the MTU or the room allows
	RxRunt                    // shorter than an Ethernet header
	RxStranger                // a datagram that is not from the tunnel's peer
	TxFull                    // the way out is full
	TxDown                    // the interface is down or removed, or the port closed
	TxTooLong                 // longer than the MTU
	TxRunt                    // shorter than an Ethernet header
	TxPeer                    // the tunnel's peer cannot be reached
	TxError                   // whatever else the operating system refuses
	numReasons
)

var reasonNames = [numReasons]string{"rx_full", "rx_segmented", "rx_too_long", "rx_runt", "rx_stranger",
	"tx_full", "tx_down", "tx_too_long", "tx_runt", "tx_peer", "tx_error"}

// String returns the reason as it stands in Stats.Drops.
func (r Reason) String() string { return reasonNames[r] }

// counters are what Stats is made of, and the Hint function for drops.
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

// advise gives the hint about r that text returns, the first time.
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
