package switchagent

import (
	"net/netip"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/internal/switchagent/groups"
)

// A groupEvent is an event of a source's group.
type groupEvent struct {
	source netip.Addr
	*mcrdmav1.WatchResponse
}

// tell sends an event of a group to watchers.
func (a *Agent) tell(t mcrdmav1.WatchResponse_Type, g groups.View) {
	a.events.Tell(groupEvent{g.Source, &mcrdmav1.WatchResponse{Type: t, Group: a.describe(g)}})
}
