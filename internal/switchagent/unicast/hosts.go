package unicast

import (
	"maps"
	"slices"
	"time"
)

// How hosts that are learned age.
const (
	ProbeAfter = 60 * time.Second // without having been heard, a host is asked
	ProbeEvery = time.Second      // and again, if it does not answer
	Probes     = 3                // after so many it is forgotten
)

type host struct {
	Host
	static bool
	heard  time.Time // zero: on the switch that was adopted
	asked  time.Time
	asks   int // since it was heard
}

// Why Learn refuses a host, as Refused counts it.
const (
	RefusedPort    = "not a port of hosts"
	RefusedAddress = "not an address of a host in the switch's prefixes"
	RefusedOwn     = "the switch's own address"
	RefusedMAC     = "not a station's MAC"
	RefusedOwnMAC  = "the switch's own MAC"
	RefusedStatic  = "contradicts a static host"
	RefusedLimit   = "too many hosts"
)

// Refused counts the hosts that Learn did not take, by the reason.
func (t *Table) Refused() map[string]uint64 { return maps.Clone(t.refused) }

// unfit says why there can be no such host; empty: there can.
func (t *Table) unfit(h Host) string {
	p := t.ports[h.Port]
	switch {
	case p == nil || p.routed():
		return RefusedPort
	case t.own[h.Addr]:
		return RefusedOwn
	case !h.Addr.Is4() || !t.ownPrefix(h.Addr) || t.edge(h.Addr):
		return RefusedAddress
	case !h.MAC.IsStation():
		return RefusedMAC
	case t.ownMACs[h.MAC]:
		return RefusedOwnMAC
	}
	known := t.hosts[h.Addr]
	if known != nil && known.static && known.Host != h {
		return RefusedStatic
	}
	if known != nil && known.MAC == h.MAC && known.Port == h.Port {
		return "" // as nearly always; saves looking at all
	}
	for _, o := range t.hosts {
		if o.static && o.MAC == h.MAC && o.Port != h.Port {
			return RefusedStatic // a station is behind one port
		}
	}
	if known == nil && len(t.hosts) >= MaxHosts {
		return RefusedLimit
	}
	return ""
}

// Learn says that a host was heard, by ARP, and reports whether that changes a
// route. A host that is elsewhere than before, or has another MAC, has moved; so have
// the others with its MAC, as a station is behind one port. Static hosts do not move.
// What is refused is counted, see Refused.
func (t *Table) Learn(h Host, now time.Time) (changed bool) {
	if why := t.unfit(h); why != "" {
		t.refused[why]++
		return false
	}
	known := t.hosts[h.Addr]
	if known == nil {
		known = &host{}
		t.hosts[h.Addr] = known
	}
	known.heard, known.asks = now, 0
	if known.Host == h {
		return false
	}
	known.Host = h
	for _, o := range t.hosts {
		if o.MAC == h.MAC {
			o.Port = h.Port
		}
	}
	t.touch()
	return true
}

// Probe returns the hosts that are due for an ARP request, in order of address, and
// forgets those that did not answer; changed says whether there were any. It is to
// be called now and then, best every second.
func (t *Table) Probe(now time.Time) (ask []Host, changed bool) {
	for a, h := range t.hosts {
		if h.static || now.Sub(h.heard) < ProbeAfter || h.asks > 0 && now.Sub(h.asked) < ProbeEvery {
			continue
		}
		if h.asks == Probes {
			delete(t.hosts, a)
			changed = true
			continue
		}
		h.asks++
		h.asked = now
		ask = append(ask, h.Host)
	}
	if changed {
		t.touch()
	}
	slices.SortFunc(ask, func(x, y Host) int { return x.Addr.Compare(y.Addr) })
	return ask, changed
}
