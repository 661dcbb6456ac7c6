package mcrdma

import (
	"context"
	"errors"
	"fmt"
	"slices"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
)

// An addition asks for further receivers.
type addition struct {
	receivers []string
	done      chan error // 1
}

// errAdding is why a formation ends that is well.
var errAdding = errors.New("receivers are to be added")

// Add takes further receivers into the group, for example in place of those that were
// removed; they are addresses or names of hosts. The group is formed anew for that,
// perhaps on another path, and operations wait meanwhile. What was complete before,
// the new ones don't have: an Added event says from which operation on they do, and
// the rest is the application's to copy.
//
// The error wraps ErrNoHost, ErrDuplicate, ErrTooMany, ErrUnreachable if one of them
// could not be taken in, ErrClosed, why the group has failed, or is ctx's; the group
// goes on without those that are not in it then. If ctx ends before, they may yet be
// taken in.
func (g *Group) Add(ctx context.Context, receivers ...string) error {
	if len(receivers) == 0 {
		return fmt.Errorf("%w: no receiver is to be added", ErrInvalid)
	}
	w := &addition{slices.Clone(receivers), make(chan error, 1)}
	g.mu.Lock()
	err := g.err
	if err == nil && g.closing {
		err = fmt.Errorf("%w: the group is being closed", ErrClosed)
	}
	for _, r := range receivers {
		if err == nil && among(g.info.GetMembers(), r) {
			err = fmt.Errorf("%w: receiver %s is in the group", ErrDuplicate, r)
		}
	}
	if err != nil {
		g.mu.Unlock()
		return err
	}
	g.adding = append(g.adding, w)
	g.fail(errAdding)
	g.mu.Unlock()
	select {
	case err := <-w.done:
		return err
	case <-g.over:
		return g.Err()
	case <-ctx.Done():
		return ctx.Err()
	}
}

// among says whether a receiver, by its address or its host's name, is a member.
func among(members []*mcrdmav1.Member, receiver string) bool {
	return slices.ContainsFunc(members, func(m *mcrdmav1.Member) bool { return m.GetAddress() == receiver || m.GetHost() == receiver })
}

// isNew says whether a member has nothing of what the group before had: it was not in it,
// or it has left since and was added again.
func isNew(m *mcrdmav1.Member, before []*mcrdmav1.Member, added []string) bool {
	return !among(before, m.GetAddress()) || slices.Contains(added, m.GetAddress()) || slices.Contains(added, m.GetHost())
}

// allNew says that of all members.
func allNew(members, before []*mcrdmav1.Member, added []string) bool {
	return !slices.ContainsFunc(members, func(m *mcrdmav1.Member) bool { return !isNew(m, before, added) })
}

// wanted are the receivers of all additions so far.
func (g *Group) wanted() (list []string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, w := range g.adding {
		list = append(list, w.receivers...)
	}
	return list
}

// refused answers those additions that these receivers are of, because the daemon
// doesn't form the group with them.
func (g *Group) refused(receivers []string, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for len(receivers) > 0 {
		w := g.adding[0]
		g.adding, receivers = g.adding[1:], receivers[len(w.receivers):]
		w.done <- err
	}
}

// joined answers the additions that these receivers are of: they are in the formation that
// has just begun, with that operation, or could not be taken into it. It returns what
// the application is to be told. g.mu is held.
func (g *Group) joined(before []*mcrdmav1.Member, asked, add []string, operation uint64) (events []Event) {
	for _, m := range g.info.GetMembers() {
		if !isNew(m, before, add) {
			continue
		}
		// That it was removed is told before that it is back.
		g.missing = slices.DeleteFunc(g.missing, func(old missing) bool {
			same := old.member.GetAddress() == m.GetAddress()
			if same {
				events = append(events, g.removal(m.GetAddress(), m.GetHost(), old.text)...)
			}
			return same
		})
		delete(g.removed, m.GetAddress())
		delete(g.lacks.first, m.GetAddress())
		events = append(events, Event{Type: Added, Address: m.GetAddress(), Host: m.GetHost(), Formation: g.info.GetFormation(), Operation: operation})
	}
	for len(asked) > 0 {
		w := g.adding[0]
		g.adding, asked = g.adding[1:], asked[len(w.receivers):]
		var err error
		for _, r := range w.receivers {
			if !among(g.info.GetMembers(), r) {
				err = errors.Join(err, fmt.Errorf("%w: receiver %s could not be taken in; its daemon, or this host's, says why", ErrUnreachable, r))
			}
		}
		w.done <- err
	}
	if len(g.adding) > 0 { // they came too late for this formation
		g.fail(errAdding)
	}
	return events
}
