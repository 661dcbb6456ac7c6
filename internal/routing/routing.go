// Package routing tells where a switch sends unicast packets: the next-hop set of every prefix, the
// neighbors behind the next hops, and the changes of both.
//
// A [Source] is one source of this information. The packages below implement it for a topology file
// (static), the kernel's tables (kernel) and BGP (bgp), all on top of [Table], which holds the
// current state and tells watchers what changed. Consumers import this package only; no type of a
// routing library appears in it.
//
// Next hops are sets, because packet replication must know whether two destinations share all their
// equal-cost paths or only some.
package routing

import (
	"cmp"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// ErrClosed is returned by [Watch.Next] once the table has been closed.
var ErrClosed = errors.New("routing: source is closed")

// A Source is where routes come from.
type Source interface {
	// Lookup returns the route with the longest prefix that contains dst, and
	// whether there is one. The set of a found route may be empty: then dst is
	// known to be unreachable.
	Lookup(dst netip.Addr) (Route, bool)
	// Watch begins with everything there is and goes on with what changes.
	Watch() *Watch
	// Close ends the source and its watches, and frees what it holds.
	Close() error
}

// A NextHop is one way out of a switch. It can be compared with ==.
type NextHop struct {
	// Addr is the neighbor's address. It is invalid if the destination itself
	// is on the link: the neighbor's address is then the destination's.
	Addr netip.Addr
	// Port is the port as the source calls it: the data-plane port number in
	// decimal (static) or an interface name (kernel). It is empty where the
	// source knows addresses only (bgp): the port is then that of Addr.
	Port string
}

// Compare orders next hops by address, then by port.
func (h NextHop) Compare(o NextHop) int {
	return cmp.Or(h.Addr.Compare(o.Addr), cmp.Compare(h.Port, o.Port))
}

// String returns "address via port", as much of it as is known.
func (h NextHop) String() string {
	switch {
	case !h.Addr.IsValid():
		return "on-link via " + h.Port
	case h.Port == "":
		return h.Addr.String()
	}
	return h.Addr.String() + " via " + h.Port
}

// Hops is a set of next hops of equal cost: sorted and without duplicates, as
// [NewHops] returns it. Sets are shared and never modified.
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

// String lists the set in braces.
func (s Hops) String() string {
	parts := make([]string, len(s))
	for i, h := range s {
		parts[i] = h.String()
	}
	return "{" + strings.Join(parts, ", ") + "}"
}

// A Route is a prefix with its next hops. The prefix is masked. An empty set
// means that the prefix is known to be unreachable (a blackhole, say), which
// hides shorter prefixes; it is not the same as having no route.
type Route struct {
	Prefix netip.Prefix
	Hops   Hops
}

// String returns "prefix → {hops}".
func (r Route) String() string { return r.Prefix.String() + " → " + r.Hops.String() }

// A NeighborKey names a neighbor: an address behind a port.
type NeighborKey struct {
	Addr netip.Addr
	Port string // as in NextHop
}

// A Neighbor is what a next hop resolves to.
type Neighbor struct {
	NeighborKey
	MAC MAC
}

// A MAC is an Ethernet address. It can be compared with ==; the zero value
// means "not known".
type MAC [6]byte

// ParseMAC reads the usual form, six pairs of hexadecimal digits with colons.
func ParseMAC(s string) (MAC, error) {
	var m MAC
	parts := strings.Split(s, ":")
	if len(parts) != len(m) {
		return m, fmt.Errorf("routing: %q is not a MAC address: want six pairs of hex digits with colons, as 02:00:00:00:00:01", s)
	}
	for i, p := range parts {
		b, err := hex.DecodeString(p)
		if err != nil || len(b) != 1 {
			return MAC{}, fmt.Errorf("routing: %q is not a MAC address: %q is not a pair of hex digits", s, p)
		}
		m[i] = b[0]
	}
	return m, nil
}

// IsMulticast reports whether the group bit is set; no neighbor has such an
// address.
func (m MAC) IsMulticast() bool { return m[0]&1 != 0 }

// String returns the usual form.
func (m MAC) String() string {
	return fmt.Sprintf("%02x:%02x:%02x:%02x:%02x:%02x", m[0], m[1], m[2], m[3], m[4], m[5])
}

// MarshalText makes it the usual form in files.
func (m MAC) MarshalText() ([]byte, error) { return []byte(m.String()), nil }

// A Delta is a step from one state of a source to the next.
type Delta struct {
	Routes    []Route        // new, or with another set than before
	Withdrawn []netip.Prefix // that the source no longer has
	Neighbors []Neighbor     // new, or with another MAC than before
	Lost      []NeighborKey  // that the source no longer has
}

// Empty reports whether nothing changes.
func (d Delta) Empty() bool {
	return len(d.Routes)+len(d.Withdrawn)+len(d.Neighbors)+len(d.Lost) == 0
}

// sort gives d an order that does not depend on map iteration.
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
