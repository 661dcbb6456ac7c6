package switchagent

import (
	"fmt"
	"slices"
	"strings"

	"github.com/mcrdma/mcrdma/internal/switchagent/config"
	"github.com/mcrdma/mcrdma/internal/switchspec"
	"github.com/mcrdma/mcrdma/pkg/bifurcation"
	"github.com/mcrdma/mcrdma/pkg/rocev2"
)

// icrcModes are the switch's modes. In mode neutral it recomputes the ICRC where a copy has no
// constant.
var icrcModes = map[string]switchspec.ICRC{config.ICRCAuto: switchspec.ICRCNeutral, config.ICRCNeutral: switchspec.ICRCNeutral,
	config.ICRCRecompute: switchspec.ICRCRecompute, config.ICRCOff: switchspec.ICRCOff}

// keepsICRC reports whether constants keep the ICRC of copies to these receivers right, and if not,
// why. A receiver whose device does not see the identification affects all copies, because packets
// may have been changed before they arrive here; a region at another address affects the WRITEs
// that begin in it.
func (a *Agent) keepsICRC(receivers []bifurcation.Receiver) (keeps bool, whyNot string) {
	if icrcModes[a.cfg.ICRC] != switchspec.ICRCNeutral {
		return false, ""
	}
	var blind, moved []string
	for _, r := range receivers {
		switch {
		case !r.SeesIdentification:
			blind = append(blind, r.Addr.String())
		case slices.ContainsFunc(r.Regions, func(m bifurcation.Region) bool { return m.ReceiverVA != m.VA }):
			moved = append(moved, r.Addr.String())
		}
	}
	switch {
	case len(blind) > 0:
		return false, fmt.Sprintf("the device of %s does not see the IPv4 identification", strings.Join(blind, ", "))
	case len(moved) > 0:
		return true, fmt.Sprintf("memory of %s is not registered at the address that the sender's packets carry", strings.Join(moved, ", "))
	}
	return true, ""
}

// takesWrites reports whether there may be WRITEs, whose packets with a RETH get a different source
// port than those without.
func takesWrites(receivers []bifurcation.Receiver) bool {
	return slices.ContainsFunc(receivers, func(r bifurcation.Receiver) bool { return len(r.Regions) > 0 })
}

// neutral is the constant that cancels a change.
func neutral(c bifurcation.Change) uint32 {
	var h rocev2.HeaderChange
	if c.Dst.IsValid() {
		old, now := c.Dst.As4(), c.NewDst.As4()
		for i := range h.Dst {
			h.Dst[i] = old[i] ^ now[i]
		}
	}
	h.QPN, h.RKey = rocev2.QPN(c.QPN^c.NewQPN), c.RKey^c.NewRKey
	return uint32(rocev2.NeutralOf(h))
}
