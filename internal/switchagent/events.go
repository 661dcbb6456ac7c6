package switchagent

import (
	"net/netip"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
)

// A groupEvent is an event of a source's group.
type groupEvent struct {
	source netip.Addr
	*mcrdmav1.WatchResponse
}

// tell sends an event of a group to watchers.
func (a *Agent) tell(t mcrdmav1.WatchResponse_Type, source netip.Addr, g *mcrdmav1.GroupStatus) {
	a.events.Tell(groupEvent{source, &mcrdmav1.WatchResponse{Type: t, Group: g}})
}
