// Package routing provides a switch's unicast routes: the next-hop set of every prefix, the
// neighbors to which the next hops resolve, and the changes of both.
//
// A [Source] is one source of this information. The packages below implement it for a topology file
// (static), the kernel's tables (kernel) and BGP (bgp), all with [Table], which holds the current
// state and notifies watchers of changes. Consumers import this package only; its API has no type
// of a routing library.
//
// Next hops are sets, because packet replication must know whether two destinations share all their
// equal-cost paths or only some.
package routing

import (
	"cmp"
	"errors"
	"net/netip"
	"slices"
	"strings"

	"github.com/mcrdma/mcrdma/internal/switchspec"
)

// ErrClosed is returned by [Watch.Next] once the table has been closed.
var ErrClosed = errors.New("routing: source is closed")

// A Source is a source of routes.
type Source interface {
	// Lookup returns the route with the longest prefix that contains dst, and whether there is one.
	// The route's set may be empty: then dst is known to be unreachable.
	Lookup(dst netip.Addr) (Route, bool)
	// Watch returns a watch that first reports the current state, then changes.
	Watch() *Watch
	// Close stops the source and its watches, and frees its resources.
	Close() error
}

// A NextHop is a next hop of a switch. It can be compared with ==.
type NextHop struct {
	// Addr is the neighbor's address. It is invalid if the destination itself is on the link: then
	// the neighbor's address is the destination's.
	Addr netip.Addr
	// Port is the source's name of the port: the data-plane port number in decimal (static) or an
	// interface name (kernel). It is empty if the source only knows addresses (bgp): then the port
	// is that of Addr.
	Port string
}

// Compare orders next hops by address, then by port.
func (h NextHop) Compare(o NextHop) int {
	return cmp.Or(h.Addr.Compare(o.Addr), cmp.Compare(h.Port, o.Port))
}

// String returns "address via port", or the part of it that is known.
func (h NextHop) String() string {
	switch {
	case !h.Addr.IsValid():
		return "on-link via " + h.Port
	case h.Port == "":
		return h.Addr.String()
	}
	return h.Addr.String() + " via " + h.Port
}

// Hops is a set of next hops of equal cost, sorted and without duplicates, as [NewHops] returns it.
// Sets are shared and never modified.
type Hops []NextHop

// NewHops returns the set of the given next hops.
func NewHops(hops ...NextHop) Hops {
	if len(hops) == 0 {
		return nil
	}
	s := slices.Clone(hops)
	slices.SortFunc(s, NextHop.Compare)
	return slices.Compact(s)
}

// Equal reports whether s and o hold the same next hops.
func (s Hops) Equal(o Hops) bool { return slices.Equal(s, o) }

// String returns the set in braces.
func (s Hops) String() string {
	parts := make([]string, len(s))
	for i, h := range s {
		parts[i] = h.String()
	}
	return "{" + strings.Join(parts, ", ") + "}"
}

// A Route is a prefix with its next hops. The prefix is masked. An empty set means that the prefix
// is known to be unreachable (for example a blackhole route), which hides shorter prefixes; that
// differs from having no route.
type Route struct {
	Prefix netip.Prefix
	Hops   Hops
}

// String returns "prefix → {hops}".
func (r Route) String() string { return r.Prefix.String() + " → " + r.Hops.String() }

// A NeighborKey identifies a neighbor: an address on a port.
type NeighborKey struct {
	Addr netip.Addr
	Port string // as in NextHop
}

// A Neighbor is what a next hop resolves to.
type Neighbor struct {
	NeighborKey
	MAC MAC
}

// A MAC is an Ethernet address. It can be compared with ==; the zero value means unknown.
type MAC = switchspec.MAC

// ParseMAC parses six pairs of hexadecimal digits, separated by colons.
func ParseMAC(s string) (m MAC, err error) {
	err = m.UnmarshalText([]byte(s))
	return m, err
}

// A Delta is a change from one state of a source to the next.
type Delta struct {
	Routes    []Route        // new, or with a changed set
	Withdrawn []netip.Prefix // no longer in the source
	Neighbors []Neighbor     // new, or with a changed MAC
	Lost      []NeighborKey  // no longer in the source
}

// Empty reports whether d contains no change.
func (d Delta) Empty() bool {
	return len(d.Routes)+len(d.Withdrawn)+len(d.Neighbors)+len(d.Lost) == 0
}

// sort makes the order of d independent of map iteration.
func (d Delta) sort() {
	slices.SortFunc(d.Routes, func(a, b Route) int { return comparePrefixes(a.Prefix, b.Prefix) })
	slices.SortFunc(d.Withdrawn, comparePrefixes)
	slices.SortFunc(d.Neighbors, func(a, b Neighbor) int { return compareKeys(a.NeighborKey, b.NeighborKey) })
	slices.SortFunc(d.Lost, compareKeys)
}

func comparePrefixes(a, b netip.Prefix) int {
	return cmp.Or(a.Addr().Compare(b.Addr()), cmp.Compare(a.Bits(), b.Bits()))
}

func compareKeys(a, b NeighborKey) int {
	return cmp.Or(a.Addr.Compare(b.Addr), cmp.Compare(a.Port, b.Port))
}
