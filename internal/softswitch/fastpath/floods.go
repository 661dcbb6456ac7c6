package fastpath

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/mcrdma/mcrdma/bmv2"
)

// floods are answers to MACs that the bridge does not know, as after an agent has cleared the switch: the kernel cannot flood, and
// drops them, nameless. So the switch itself processes all packets then, and sees whose they are, as long as such answers come, until it learns
// their MAC, or for a minute altogether: such a host may be gone. From then on it looks for them shortly, and each time later, so that
// a member which answers to no host does not end the kernel's processing.
type floods struct {
	dropped uint64 // until the last look
	learnt  bool   // a MAC, since the last look
	climbs  int    // looks since everything climbs; 0: it does not
	quiet   int    // looks of these since such an answer came last
	spent   int    // looks with everything climbing, since a MAC was learnt
	pause   int    // how many looks pass before drops count again
	rest    int    // of these
	calm    int    // looks without a drop
	met     *stranger
	first   *stranger // of those since everything climbs
}

// A stranger is a MAC that the bridge does not know, and who answers to it.
type stranger struct {
	mac  [6]byte
	from netip.Addr
}

// In looks, of which each second has one.
const (
	floodLooks = 60  // how long everything climbs, altogether
	floodQuiet = 3   // how long no answer to be flooded has come then: mostly more than a sender waits before it repeats a request
	floodCalm  = 600 // how long there was no drop when all is forgotten
)

var unknownMAC = uint32(slices.Index(bmv2.DropReasons, "unknown_mac")) //nolint:gosec // few

// look takes what the kernel has dropped until now.
func (x *floods) look(dropped uint64) {
	news, learnt, met := dropped > x.dropped, x.learnt, x.met
	x.dropped, x.learnt, x.met = dropped, false, nil
	if learnt { // what was dropped before may be for that MAC
		x.spent, x.pause, x.rest = 0, 0, 0
	}
	switch {
	case x.climbs > 0:
		x.climbs, x.spent, x.quiet = x.climbs+1, x.spent+1, x.quiet+1
		if met != nil {
			x.quiet = 0
		}
		if x.first == nil || learnt {
			x.first = met
		}
		if learnt && met == nil || x.quiet >= floodQuiet || x.spent >= floodLooks && x.climbs > floodQuiet {
			x.climbs, x.first = 0, nil
			if !learnt {
				x.pause = min(max(2*x.pause, 1), floodLooks)
				if x.spent >= floodLooks {
					x.pause = floodLooks
				}
				x.rest = x.pause
			}
		}
	case x.rest > 0:
		x.rest--
	case news && !learnt:
		x.climbs, x.quiet, x.calm = 1, 0, 0
	default:
		if x.calm++; x.calm >= floodCalm {
			x.spent, x.pause = 0, 0
		}
	}
}

// why says why packets cannot be processed in the kernel; "": they can.
func (x *floods) why() string {
	switch {
	case x.climbs == 0:
		return ""
	case x.first == nil:
		return "there was an answer to a MAC that the bridge does not know; it goes on in the kernel if no other comes"
	}
	mac := net.HardwareAddr(x.first.mac[:])
	return fmt.Sprintf("host %v answers to MAC %v, which the bridge does not know, and the kernel cannot flood; a minute at most: if %v is a host's, have it send ARP, "+
		"as \"arping\" does; if not, correct what %v has in \"ip neigh\"", x.first.from, mac, mac, x.first.from)
}

// meets notes an answer of a member that came to the switch itself.
func (f *Fast) meets(frame []byte) {
	if mac := [6]byte(frame); f.stranger(mac) {
		f.floods.met = &stranger{mac, netip.AddrFrom4([4]byte(frame[26:]))}
	}
}

// stranger says whether the switch floods to a MAC.
func (f *Fast) stranger(mac [6]byte) bool {
	n := binary.BigEndian.Uint64(append([]byte{0, 0}, mac[:]...))
	return f.plan.bridge.Exactly(n) == nil && f.plan.routerMACs.Exactly(n) == nil
}

// lookAtFloods is floods.look, for the MACs that are unknown still.
func (f *Fast) lookAtFloods() {
	if m := f.floods.met; m != nil && (f.plan == nil || !f.stranger(m.mac)) {
		f.floods.met = nil
	}
	f.floods.look(f.read("drops", unknownMAC).Packets)
}
