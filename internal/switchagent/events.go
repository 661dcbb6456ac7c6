package switchagent

import (
	"net/netip"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
)

// A groupEvent is what happens to a group of a source.
type groupEvent struct {
	source netip.Addr
	*mcrdmav1.WatchResponse
}

// tell tells watchers what happens to a group.
func (a *Agent) tell(t mcrdmav1.WatchResponse_Type, source netip.Addr, g *mcrdmav1.GroupStatus) {
	a.events.Tell(groupEvent{source, &mcrdmav1.WatchResponse{Type: t, Group: g}})
}
