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

// errAdding is why a formation without a fault ends.
var errAdding = errors.New("receivers are to be added")

// Add takes further receivers into the group, for example in place of those that were
// removed; they are addresses or names of hosts. The group is formed anew for that, perhaps
// on another path, and operations wait meanwhile. The new receivers don't have what was
// complete before: an Added event says from which operation on they have data, and the
// application copies the rest.
//
// The error wraps ErrNoHost, ErrDuplicate, ErrTooMany, ErrUnreachable if one of them could
// not be added, ErrClosed, why the group has failed, or is ctx's; the group then goes on
// without those that were not added. If ctx ends first, they may still be added.
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

// isNew reports whether a member has nothing of what the members before had: it was not one
// of them, or it has left since and was added again.
func isNew(m *mcrdmav1.Member, before []*mcrdmav1.Member, added []string) bool {
	return !among(before, m.GetAddress()) || slices.Contains(added, m.GetAddress()) || slices.Contains(added, m.GetHost())
}

// allNew reports whether all members are new.
func allNew(members, before []*mcrdmav1.Member, added []string) bool {
	return !slices.ContainsFunc(members, func(m *mcrdmav1.Member) bool { return !isNew(m, before, added) })
}

// wanted returns the receivers of all additions so far.
func (g *Group) wanted() (list []string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, w := range g.adding {
		list = append(list, w.receivers...)
	}
	return list
}

// refused fails the additions that include these receivers, because the daemon doesn't form
// the group with them.
func (g *Group) refused(receivers []string, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for len(receivers) > 0 {
		w := g.adding[0]
		g.adding, receivers = g.adding[1:], receivers[len(w.receivers):]
		w.done <- err
	}
}

// joined answers the additions that include these receivers: they are in the formation that
// has just begun, with that operation, or could not be added to it. It returns the events
// for the application. g.mu is held.
func (g *Group) joined(before []*mcrdmav1.Member, asked, add []string, operation uint64) (events []Event) {
	for _, m := range g.info.GetMembers() {
		if !isNew(m, before, add) {
			continue
		}
		// The Removed event comes before the Added event.
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
