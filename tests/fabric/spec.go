package fabric

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/mcrdma/mcrdma/internal/switchagent"
	"github.com/mcrdma/mcrdma/internal/switchagent/config"
)

// Where agents learn routes from.
const (
	BGP    = config.BGP
	Static = config.Static
)

const (
	// defaultHello keeps a busy machine from taking links down.
	defaultHello = 400 * time.Millisecond
	// quickHello is for tests without the race detector in which links go down often.
	quickHello = 100 * time.Millisecond
)

// A Spec describes a fabric.
type Spec struct {
	Switches []Switch
	Links    []Link
	Hosts    []Host
	Routing  string // BGP (default) or Static
	TLS      bool   // between agents, and with their clients
	// OwnSpeakers has agents open BGP speakers of their own. Otherwise those are
	// opened once and outlive the agents, which the race detector asks for; but they
	// know nothing of graceful restart then.
	OwnSpeakers bool
	Hello       time.Duration // between two hellos; 0: defaultHello
	// Settle is how long after its start an agent waits for routes; 0: with BGP
	// 1 s, and else not at all.
	Settle time.Duration
	// Agent alters what an agent is started with; nil: nothing.
	Agent    func(name string, cfg *config.Config, o *switchagent.Options)
	StateDir string // of the agents' state; empty: one that goes with the test
}

// A Switch is one with its agent.
type Switch struct {
	Name         string
	Tier         int // 1 is next to the hosts
	Programmable bool
	Prefix       netip.Prefix // of its hosts; its first address is the gateway's. Zero: there are none
}

// A Link joins two switches. There may be several between two.
type Link struct{ A, B string }

// A Host is attached to a switch in whose prefix its address is.
type Host struct {
	Name, Switch string
	Addr         netip.Addr
}

// rack adds a switch with hosts, in 10.n.0.0/24; host i has address 10.n.0.10+i.
func (s *Spec) rack(sw string, n int, hosts ...string) {
	p := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(n >> 8), byte(n), 0}), 24)
	s.Switches = append(s.Switches, Switch{Name: sw, Tier: 1, Programmable: true, Prefix: p})
	for i, h := range hosts {
		a := p.Addr().As4()
		a[3] = byte(11 + i)
		s.Hosts = append(s.Hosts, Host{Name: h, Switch: sw, Addr: netip.AddrFrom4(a)})
	}
}

// Figure3 is the testbed of the MC-RDMA paper, its figure 3: four racks A to D of
// two servers (A1, A2, …) at programmable switches torA to torD, each of which has
// four links to the one switch between them, core, which is not programmable.
func Figure3() Spec {
	var s Spec
	for i, r := range []string{"A", "B", "C", "D"} {
		s.rack("tor"+r, i+1, r+"1", r+"2")
		for range 4 {
			s.Links = append(s.Links, Link{"tor" + r, "core"})
		}
	}
	s.Switches = append(s.Switches, Switch{Name: "core", Tier: 2})
	return s
}

// LeafSpine is a fabric of programmable leaves leaf1, … and spines spine1, …, with
// a link from each leaf to each spine. Leaf i has hosts h<i>-1, ….
func LeafSpine(leaves, spines, hostsPerLeaf int) Spec {
	var s Spec
	for l := range leaves {
		var hosts []string
		for h := range hostsPerLeaf {
			hosts = append(hosts, fmt.Sprintf("h%d-%d", l+1, h+1))
		}
		s.rack(fmt.Sprintf("leaf%d", l+1), l+1, hosts...)
	}
	for i := range spines {
		name := fmt.Sprintf("spine%d", i+1)
		s.Switches = append(s.Switches, Switch{Name: name, Tier: 2, Programmable: true})
		for l := range leaves {
			s.Links = append(s.Links, Link{fmt.Sprintf("leaf%d", l+1), name})
		}
	}
	return s
}

// FatTree is the k-ary fat tree of three tiers, all of it programmable: k pods of
// k/2 edge switches edge<pod>-<i> and k/2 switches agg<pod>-<i> above them, and
// (k/2)² core switches core<i>. Each edge switch has k/2 hosts
// h<pod>-<edge>-<i>. k is even.
func FatTree(k int) Spec {
	var s Spec
	half := k / 2
	for pod := 1; pod <= k; pod++ {
		for e := 1; e <= half; e++ {
			var hosts []string
			for h := 1; h <= half; h++ {
				hosts = append(hosts, fmt.Sprintf("h%d-%d-%d", pod, e, h))
			}
			s.rack(fmt.Sprintf("edge%d-%d", pod, e), (pod-1)*half+e, hosts...)
		}
		for a := 1; a <= half; a++ {
			agg := fmt.Sprintf("agg%d-%d", pod, a)
			s.Switches = append(s.Switches, Switch{Name: agg, Tier: 2, Programmable: true})
			for e := 1; e <= half; e++ {
				s.Links = append(s.Links, Link{fmt.Sprintf("edge%d-%d", pod, e), agg})
			}
			for c := 1; c <= half; c++ {
				s.Links = append(s.Links, Link{agg, fmt.Sprintf("core%d", (a-1)*half+c)})
			}
		}
	}
	for c := 1; c <= half*half; c++ {
		s.Switches = append(s.Switches, Switch{Name: fmt.Sprintf("core%d", c), Tier: 3, Programmable: true})
	}
	return s
}
