package unicast

import (
	"fmt"
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

// refusedFor is how long a host that was refused is a problem.
const refusedFor = 5 * time.Minute

// A refusal is why Learn did not take a host, which an operator has to correct.
type refusal struct {
	why string
	at  time.Time
}

// unfit says why there can be no such host; empty: there can. wrong: if it is heard, an operator has to correct that.
func (t *Table) unfit(h Host) (why string, wrong bool) {
	p := t.ports[h.Port]
	switch {
	case p == nil || p.routed():
		return fmt.Sprintf("port %d is not a port of hosts", h.Port), false // neighbors send ARP, too
	case t.own[h.Addr]:
		return fmt.Sprintf("a host at port %d with MAC %v uses %v, which is the switch's own address", h.Port, h.MAC, h.Addr), true
	case !h.Addr.Is4() || !t.ownPrefix(h.Addr) || t.edge(h.Addr):
		return "its address is not one of a host in the switch's prefixes", false // hosts may have others, too
	case !h.MAC.IsStation():
		return "its MAC is not a station's", false
	case t.ownMACs[h.MAC]:
		return fmt.Sprintf("host %v at port %d uses %v, which is the switch's own MAC", h.Addr, h.Port, h.MAC), true
	}
	known := t.hosts[h.Addr]
	if known != nil && known.static && known.Host != h {
		return contradicts(h, known.Host), true
	}
	if known != nil && known.MAC == h.MAC && known.Port == h.Port {
		return "", false // as nearly always; saves looking at all
	}
	for _, o := range t.hosts {
		if o.static && o.MAC == h.MAC && o.Port != h.Port {
			return contradicts(h, o.Host), true // a station is behind one port
		}
	}
	if known == nil && len(t.hosts) >= MaxHosts {
		return fmt.Sprintf("there is room for %d hosts, and others are not known", MaxHosts), true
	}
	return "", false
}

func contradicts(h, static Host) string {
	return fmt.Sprintf("host %v at port %d with MAC %v contradicts the agent's configuration, which has %v at port %d with MAC %v, and is used: correct one of them",
		h.Addr, h.Port, h.MAC, static.Addr, static.Port, static.MAC)
}

// Learn says that a host was heard, by ARP, and reports whether that changes a
// route. A host that is elsewhere than before, or has another MAC, has moved; so have
// the others with its MAC, as a station is behind one port. Static hosts do not move.
// What is refused, and should be corrected, is one of the Problems for a while.
func (t *Table) Learn(h Host, now time.Time) (changed bool) {
	if why, wrong := t.unfit(h); why != "" {
		if _, ok := t.refused[h]; wrong && (ok || len(t.refused) < maxProblems) {
			t.refused[h] = refusal{why, now}
		}
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
	maps.DeleteFunc(t.refused, func(_ Host, r refusal) bool { return now.Sub(r.at) >= refusedFor })
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
