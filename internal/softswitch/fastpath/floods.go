package fastpath

import (
	"slices"

	"github.com/mcrdma/mcrdma/bmv2"
)

// floods are answers to MACs that the bridge does not know, as after an agent has cleared the switch: the kernel cannot flood, and
// drops them. So the switch itself processes all packets then, until it learns a MAC, or for a while: such a host may be gone.
type floods struct {
	dropped uint64 // until the last look
	learnt  bool   // a MAC, since the last look: what was dropped before may be for that one
	left    int    // looks
}

// floodLooks is how long that while is, in looks, of which each second has one.
const floodLooks = 60

var unknownMAC = uint32(slices.Index(bmv2.DropReasons, "unknown_mac")) //nolint:gosec // few

// look takes what the kernel has dropped until now.
func (x *floods) look(dropped uint64) {
	switch {
	case dropped > x.dropped && !x.learnt:
		x.left = floodLooks
	case x.left > 0:
		x.left--
	}
	x.dropped, x.learnt = dropped, false
}

// why says why packets cannot be processed in the kernel; "": they can.
func (x *floods) why() string {
	if x.left > 0 {
		return "there are answers to a MAC that the bridge does not know"
	}
	return ""
}
