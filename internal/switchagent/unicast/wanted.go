package unicast

import (
	"slices"

	"github.com/mcrdma/mcrdma/internal/switchspec"
)

// A Change is what the switch is to have under a key.
type Change struct {
	Key    switchspec.Key
	Entity switchspec.Entity // nil: nothing
}

func (t *Table) lacks(k switchspec.Key, e switchspec.Entity) { t.lacking[k] = &Change{k, e} }

// bridge follows the hosts' MACs.
func (t *Table) bridge() {
	now := make(map[switchspec.MAC]uint16, len(t.hosts))
	for _, h := range t.hosts {
		now[h.MAC] = h.Port
		if port, ok := t.bridged[h.MAC]; !ok || port != h.Port {
			e := switchspec.BridgeMAC{MAC: h.MAC, Port: h.Port}
			t.lacks(e.Key(), e)
		}
	}
	for m := range t.bridged {
		if _, ok := now[m]; !ok {
			t.lacks(switchspec.BridgeMAC{MAC: m}.Key(), nil)
		}
	}
	t.bridged = now
}

// fixed is what the switch has whatever the routes are.
func (t *Table) fixed() (list []switchspec.Entity) {
	for m := range t.ownMACs {
		list = append(list, switchspec.RouterMAC{MAC: m})
	}
	for a := range t.own {
		list = append(list, switchspec.ARPTarget{Addr: a})
	}
	if t.cfg.Guard {
		for _, h := range t.cfg.Hosts {
			list = append(list, switchspec.PortHost{Port: h.Port, Addr: h.Addr, MAC: h.MAC})
		}
	}
	if t.cfg.ECN != nil {
		for n := range t.ports {
			e := *t.cfg.ECN
			e.Port = n
			list = append(list, e)
		}
	}
	if len(t.portsTo[""]) > 0 {
		flood := switchspec.PREGroup{ID: FloodGroup}
		for _, p := range t.portsTo[""] {
			flood.Replicas = append(flood.Replicas, switchspec.PREReplica{Port: p.Number})
			list = append(list, switchspec.BridgePort{Port: p.Number, FloodGroup: FloodGroup})
			if t.cfg.Guard {
				list = append(list, switchspec.GuardedPort{Port: p.Number})
			}
		}
		slices.SortFunc(flood.Replicas, switchspec.PREReplica.Compare)
		list = append(list, flood)
	}
	return list
}
