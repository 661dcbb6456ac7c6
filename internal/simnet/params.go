package simnet

import (
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/mcrdma/mcrdma/pkg/qp"
	"github.com/mcrdma/mcrdma/pkg/qp/rc"
	"github.com/mcrdma/mcrdma/pkg/rocev2"
)

// ErrParams is what errors about parameters wrap.
var ErrParams = errors.New("invalid parameters")

// Params are what a fabric and its hosts have in common. [Defaults] has the values that the documentation names.
type Params struct {
	HostRate, FabricRate   float64       // bits a second of links at hosts, and between switches
	HostDelay, FabricDelay time.Duration // from one end of such a link to the other

	Framing  int   // bytes that a frame takes of a link beside itself: FCS, preamble and gap
	MTU      int   // payload of a packet, as of a queue pair: 256 to 4096
	Window   int   // packets that a queue pair has under way at most; NICs have no such limit
	AckEvery int   // packets after which a queue pair asks for an acknowledgement
	Timeout  uint8 // of the ACK timer, as qp.AckTimeout has it
	Retries  uint8

	Buffer   int // bytes that a switch can hold
	PFC      bool
	PFCShift uint // data of one port may take the free bytes shifted right by this before the port is paused

	// ECN: data is marked as it leaves a switch, never if KMin bytes or fewer wait behind it, always from
	// KMax on, and in between with a probability that grows to PMax. No marks if KMax is 0.
	KMin, KMax int
	PMax       float64

	CC     rc.CCParams   // of DCQCN; LineRate is HostRate
	CNPGap time.Duration // between two CNPs of a group that a switch passes on; 0: all pass
	Late   bool          // copies are rewritten at the last switch, as where the ICRC is kept by constants
}

// Defaults are a fabric of 100 Gb/s with ECN and PFC.
func Defaults() Params {
	return Params{
		HostRate: 100e9, FabricRate: 100e9, HostDelay: 500 * time.Nanosecond, FabricDelay: 500 * time.Nanosecond,
		Framing: 4 + 20, MTU: 4096, Window: 1 << 14, AckEvery: 16, Timeout: 14, Retries: 7,
		Buffer: 12 << 20, PFC: true, PFCShift: 3,
		KMin: 50_000, KMax: 500_000, PMax: 0.01,
		CC: rc.CCParams{Burst: 1}, // hosts' timers are exact
	}
}

// Overhead is what a packet takes of a link beyond transport headers and payload: ICRC, UDP, IPv4, Ethernet, framing.
func (p *Params) Overhead() int {
	return rocev2.ICRCLen + rocev2.UDPLen + rocev2.IPv4Len + rocev2.EthernetLen + p.Framing
}

// check says what is impossible.
func (p *Params) check() error {
	rate := func(r float64) bool { return r >= 1e6 && r <= 10e12 }
	delay := func(d time.Duration) bool { return d >= 0 && d <= time.Second }
	mtu := qp.ValidMTU(p.MTU)
	switch {
	case !rate(p.HostRate) || !rate(p.FabricRate):
		return fmt.Errorf("%w: rates of %g and %g b/s; want 1 Mb/s to 10 Tb/s", ErrParams, p.HostRate, p.FabricRate)
	case !delay(p.HostDelay) || !delay(p.FabricDelay):
		return fmt.Errorf("%w: delays of %v and %v; want 0 to 1s", ErrParams, p.HostDelay, p.FabricDelay)
	case p.Framing < 0 || p.Framing > 1000:
		return fmt.Errorf("%w: framing of %d bytes; want 0 to 1000", ErrParams, p.Framing)
	case !mtu:
		return fmt.Errorf("%w: MTU of %d; want 256, 512, 1024, 2048 or 4096", ErrParams, p.MTU)
	case p.Window < 4 || p.Window > 1<<20 || p.AckEvery < 1 || p.AckEvery > p.Window:
		return fmt.Errorf("%w: window of %d packets, an acknowledgement every %d; want 4 to 2^20, and 1 to the window", ErrParams, p.Window, p.AckEvery)
	case p.Timeout > 31 || p.Retries > 7:
		return fmt.Errorf("%w: timeout %d, retries %d; want up to 31 and up to 7", ErrParams, p.Timeout, p.Retries)
	case p.Buffer < 64<<10 || p.Buffer > 1<<32 || p.PFCShift > 16:
		return fmt.Errorf("%w: buffer of %d bytes, PFC shift %d; want 64 KiB to 4 GiB, and up to 16", ErrParams, p.Buffer, p.PFCShift)
	case p.KMin < 0 || p.KMax < 0 || p.KMax > 0 && p.KMin >= p.KMax || !(p.PMax >= 0 && p.PMax <= 1) || math.IsNaN(p.PMax):
		return fmt.Errorf("%w: ECN from %d to %d bytes with a probability of %g; want Kmin below Kmax, and 0 to 1", ErrParams, p.KMin, p.KMax, p.PMax)
	case p.CNPGap < 0:
		return fmt.Errorf("%w: %v between CNPs", ErrParams, p.CNPGap)
	}
	return nil
}
