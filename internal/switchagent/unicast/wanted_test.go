package unicast

import (
	"fmt"
	"slices"
	"weak"

	"github.com/mcrdma/mcrdma/internal/switchspec"
)

// shadows are switches, each written by the Changes of its table alone.
var shadows = map[weak.Pointer[Table]]*switchspec.State{}

// write gives a switch some of the changes.
func write(s *switchspec.State, list []*Change) {
	for _, c := range list {
		if c.Entity == nil {
			s.Delete(c.Key)
		} else if err := s.Put(c.Entity); err != nil {
			panic(err)
		}
	}
}

// Wanted computes the whole state that the switch is to have, and makes sure that the
// Changes lead to it.
func (t *Table) Wanted() *switchspec.State {
	t.compile()
	s := &switchspec.State{}
	if err := s.Put(t.fixed()...); err != nil {
		panic(err)
	}
	for k, n := range t.hops.byKey {
		must(0, s.Put(switchspec.NextHop{ID: n, Port: k.port}, switchspec.Neighbor{NextHop: n, Src: k.src, Dst: k.dst}))
	}
	for p, w := range t.table {
		must(0, s.Put(switchspec.Route{Dst: p.netip(), To: w.to, Number: w.number}))
		if w.to == switchspec.ToECMP {
			g := switchspec.ECMPGroup{ID: w.number}
			for _, h := range w.route.Hops {
				g.Hops = append(g.Hops, switchspec.ECMPHop{NextHop: h.NextHop, Weight: 1})
			}
			slices.SortFunc(g.Hops, func(x, y switchspec.ECMPHop) int { return int(x.NextHop) - int(y.NextHop) })
			must(0, s.Put(g))
		}
	}
	for _, h := range t.hosts {
		must(0, s.Put(switchspec.BridgeMAC{MAC: h.MAC, Port: h.Port}))
	}
	shadow := shadows[weak.Make(t)]
	if shadow == nil {
		shadow = &switchspec.State{}
		shadows[weak.Make(t)] = shadow
	}
	list := t.Changes()
	write(shadow, list)
	t.Written(list)
	if d := switchspec.Diff(shadow, s); len(d) > 0 {
		panic(fmt.Sprint("the changes do not lead to what is wanted; it lacks ", d))
	}
	return s
}
