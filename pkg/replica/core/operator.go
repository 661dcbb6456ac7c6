package core

import (
	"errors"
	"fmt"
	"slices"
)

// Errors of changes that the operator asks for.
var (
	// ErrLast: the acting set would be empty.
	ErrLast = errors.New("no other host is in the acting set")
	// ErrActing: the acting set does not have the host, or is too small.
	ErrActing = errors.New("not in the acting set")
	// ErrPlace: the host to be replaced has no place, or the new host already has one.
	ErrPlace = errors.New("no place to give")
)

// These are the operator's changes of a map, which are written by compare-and-swap like any other.
// All but Only keep A1 to A3.

// next is the map that follows, with the same acting set.
func (m *Map) next() Map {
	n := *m
	n.Epoch++
	n.Acting = slices.Clone(m.Acting)
	return n
}

// Promoted makes another acting member the primary. It serves when the old primary knows, or was
// silent for Grace: the old one stays in the acting set, and by then has no lease from it.
func (m *Map) Promoted(id ID) (Map, error) {
	n := m.next()
	i := slices.IndexFunc(m.Acting, func(x Member) bool { return x.ID == id })
	switch {
	case i < 0:
		return Map{}, fmt.Errorf("%w: it does not have everything yet", ErrActing)
	case m.Since == 0:
		return Map{}, fmt.Errorf("%w: there is no primary yet: the hosts agree on one when enough of them are back", ErrActing)
	}
	n.Primary, n.Since = m.Acting[i], n.Epoch
	return n, nil
}

// Without removes a host from the acting set, in which others must be left. No flushed write is
// lost, and no acknowledged one if a remaining member has not restarted. If the host was the
// primary, the map then has none: members that have not restarted wait for Grace, after which the
// host has no leases.
func (m *Map) Without(id ID) (Map, error) {
	n := m.next()
	n.Acting = slices.DeleteFunc(n.Acting, func(x Member) bool { return x.ID == id })
	if len(n.Acting) == 0 {
		return Map{}, fmt.Errorf("%w than host %d", ErrLast, id)
	}
	if m.Primary.ID == id {
		n.Primary, n.Since = Member{}, 0
	}
	return n, nil
}

// Only makes the volume go on with the data of one member, acting or not: what it lacks is lost.
// The hosts of the old acting set must not be running, because their primary would serve until it
// knows.
func (m *Map) Only(x Member) Map {
	n := m.next()
	n.Acting, n.Primary, n.Since = []Member{x}, Member{}, 0
	return n
}

// Replaced gives the place of a host to another one, which gets a copy. If the host is in the
// acting set, it is removed as by Without or, if only is not zero, the rest is given up as by Only.
func (m *Map) Replaced(lost, by ID, only Member) (n Map, err error) {
	i := slices.Index(m.Up, lost)
	if i < 0 || slices.Contains(m.Up, by) {
		return Map{}, fmt.Errorf("%w: of hosts %v, %d is to be replaced by %d", ErrPlace, m.Up, lost, by)
	}
	switch n = m.next(); {
	case only != Member{}:
		n = m.Only(only)
	case m.Unused():
		if k := slices.Index(n.Acting, Member{ID: lost}); k >= 0 {
			n.Acting[k].ID = by
		}
	case m.Holds(lost):
		n, err = m.Without(lost)
	}
	n.Up = slices.Clone(m.Up)
	n.Up[i] = by
	n.Former = make([]ID, len(n.Up))
	copy(n.Former, m.Former)
	n.Former[i] = lost
	return n, err
}

// Has reports that a host has the place of another already: an earlier call made the change.
func (m *Map) Has(by, lost ID) bool {
	i := slices.Index(m.Up, by)
	return i >= 0 && i < len(m.Former) && m.Former[i] == lost
}

// Unused reports that the volume has never had a primary, and so has no data.
func (m *Map) Unused() bool {
	return m.Since == 0 && !slices.ContainsFunc(m.Acting, func(x Member) bool { return x.Incarnation != 0 })
}

// Needs sets the number of acting members below which the volume waits. The acting set must have as
// many.
func (m *Map) Needs(minSize int) (Map, error) {
	if minSize < 1 || minSize > len(m.Acting) {
		return Map{}, fmt.Errorf("min_size %d: so many hosts are %w, which has %d: want 1 to %[3]d", minSize, ErrActing, len(m.Acting))
	}
	n := m.next()
	n.MinSize = minSize
	return n, nil
}
