package replica

import (
	"strings"
	"sync/atomic"
	"time"

	"github.com/mcrdma/mcrdma/pkg/mcrdma"
	"github.com/mcrdma/mcrdma/pkg/replica/core"
)

// Status is the status of a volume at this host.
type Status struct {
	core.Status
	Failure error        // why this host's copy has ended, and what to do about it; nil: it has not
	Group   *mcrdma.Info // of the group that this node leads; nil: there is none
	Copied  uint64       // bytes of the volume that have been copied to this host, while Backfilling
	// Oldest is the age of the oldest unanswered request of this host's clients; 0: there is none.
	Oldest time.Duration
	Waits  string // why requests wait, if this host knows: it is the primary, or there is none
}

// Status returns the present status.
func (v *Volume) Status() Status {
	var s Status
	var group *mcrdma.Group
	select {
	case <-v.loop.await(func() {
		if s = v.last; v.loop.lead != nil {
			group = v.loop.lead.group
		}
		s.Waits = v.waits()
	}):
	case <-v.loop.stopped:
		return v.last
	}
	if group != nil {
		i := group.Info()
		s.Group = &i
	}
	s.Copied, s.Oldest = v.loop.disk.copied.Load(), v.pending.oldest()
	return s
}

// waits returns why requests wait at this primary, or why there is none. It is called in the loop.
func (v *Volume) waits() string {
	l := v.loop
	if l.failure != nil || l.node.State() >= core.Fencing && len(l.calls.waiting)+len(l.calls.writes)+len(l.calls.flushes) == 0 {
		return ""
	}
	why, hosts := l.node.Waits(now())
	if why == "" && l.lead != nil {
		why, hosts = l.lead.waits()
	}
	if len(hosts) > 0 {
		why += ": " + strings.Join(each(hosts, func(id core.ID) string {
			if x := v.peers.get(id); x != nil {
				return x.host.Name
			}
			return v.peers.own.Name
		}), ", ")
	}
	return why
}

func hostsOf(list []core.Member) []core.ID {
	return each(list, func(m core.Member) core.ID { return m.ID })
}

// counters count what was refused.
type counters struct {
	badEntries  atomic.Uint64 // in the ring
	badMessages atomic.Uint64
	liars       atomic.Uint64 // messages in another host's name
}
