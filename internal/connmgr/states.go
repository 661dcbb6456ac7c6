package connmgr

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/internal/connmgr/health"
)

// A memberState is a receiver's state as users see it.
type memberState struct {
	host   string
	state  string
	reason string
	since  time.Time
}

// Names of states, as in api/mcrdma/v1.
const (
	stateOK      = "ok"
	stateSilent  = "silent"
	stateDown    = "daemon down"
	stateRemoved = "removed"
)

// memberStates are the states of a group's receivers, also of those that were removed.
type memberStates struct {
	mu sync.Mutex
	of map[netip.Addr]memberState
}

// get returns a receiver's state; zero: there is none.
func (t *memberStates) get(a netip.Addr) memberState {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.of[a]
}

func (t *memberStates) set(a netip.Addr, s memberState) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.of[a] = s
}

// change handles a change of a receiver's host, and returns the receiver's state before and after.
// A receiver whose host is gone is about to be removed, and keeps its state until then.
func (t *memberStates) change(c health.Change, now time.Time) (s memberState, was string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	s = t.of[c.Addr]
	if was = s.state; was == stateRemoved {
		return s, was
	}
	s.since = now
	switch c.State {
	case health.OK:
		s.state, s.reason = stateOK, ""
	case health.Silent:
		s.state, s.reason = stateSilent, fmt.Sprintf("nothing is heard of its daemon for %v", c.For.Round(time.Millisecond))
	case health.Down:
		s.state, s.reason = stateDown, "its daemon does not run"
	}
	t.of[c.Addr] = s
	return s, was
}

// list returns all states, in order of the addresses.
func (t *memberStates) list() (out []*mcrdmav1.MemberState) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, a := range slices.SortedFunc(maps.Keys(t.of), netip.Addr.Compare) {
		s := t.of[a]
		out = append(out, &mcrdmav1.MemberState{Address: a.String(), Host: s.host, State: s.state, Reason: s.reason, Since: timestamppb.New(s.since)})
	}
	return out
}
