package unicast

import (
	"encoding/binary"
	"fmt"
	"maps"
	"slices"

	"github.com/mcrdma/mcrdma/internal/switchspec"
	"github.com/mcrdma/mcrdma/pkg/bifurcation"
)

// A way is where routes lead. All by the same next hops share it.
type way struct {
	to     switchspec.RouteTo
	note   string
	number uint16   // as in switchspec.Route
	keys   []hopKey // sorted, without duplicates
	route  bifurcation.Route
	ahead  []string // neighbors that are not programmable: what is behind depends on the destination
	routes int      // that lead there
	gone   bool     // it was forgotten: none led there any more
}

// Notes say what a route without next hops is.
const (
	NoteOwn         = "own"         // an address of the switch
	NoteHosts       = "hosts"       // a prefix of hosts: asked for by ARP
	NoteUnresolved  = "unresolved"  // no next hop is usable, or its MAC is known
	NoteUnreachable = "unreachable" // says the source
)

var (
	ownWay         = &way{to: switchspec.ToAgent, note: NoteOwn}
	hostsWay       = &way{to: switchspec.ToAgent, note: NoteHosts}
	unresolvedWay  = &way{to: switchspec.ToNowhere, note: NoteUnresolved}
	unreachableWay = &way{to: switchspec.ToNowhere, note: NoteUnreachable}
)

// number gives numbers to fresh ways. If there are too few, idle ways lose theirs first.
func (t *Table) number(fresh map[*way]bool, idle []*way) {
	keys := t.unnumbered(fresh)
	if len(t.hops.byKey)+len(keys) > MaxNextHops {
		t.forget(idle)
		keys = t.unnumbered(fresh)
	}
	for i, k := range keys {
		if len(t.hops.byKey) == MaxNextHops {
			t.limits.add(fmt.Sprintf("all %d numbers of next hops are in use: routes that need more are unreachable", MaxNextHops), none)
			keys = keys[:i]
			break
		}
		t.hop(t.hops.give(k), k)
	}
	groups := map[string]*way{}
	members := 0
	for w := range fresh {
		numbers := t.hops.of(w.keys)
		if len(numbers) < len(w.keys) {
			t.fail(w)
			continue
		}
		t.lead(w, numbers)
		if w.to, w.number = switchspec.ToNextHop, numbers[0]; len(numbers) > 1 {
			groups[ecmpKey(numbers)] = w
			members += len(numbers)
		}
	}
	if t.ecmp.members+members > MaxECMPMembers {
		t.forget(idle)
	}
	for _, key := range slices.Sorted(maps.Keys(groups)) {
		if id := t.ecmp.free(len(key) / 2); id != 0 {
			t.group(groups[key], id, key)
			continue
		}
		t.fail(groups[key])
		t.limits.add(fmt.Sprintf("all %d places in ECMP groups are in use: routes that need more are unreachable", MaxECMPMembers), none)
	}
	for _, k := range keys {
		t.release(t.hops.byKey[k]) // of a way that failed
	}
}

// unnumbered are the ways' next hops that have no number, in order.
func (t *Table) unnumbered(fresh map[*way]bool) []hopKey {
	var keys []hopKey
	for w := range fresh {
		for _, k := range w.keys {
			if t.hops.byKey[k] == 0 {
				keys = append(keys, k)
			}
		}
	}
	slices.SortFunc(keys, hopKey.compare)
	return slices.Compact(keys)
}

// lead takes a way's next hops into use.
func (t *Table) lead(w *way, numbers []uint16) {
	for i, n := range numbers {
		t.hops.slots[n].ways++
		w.route.Hops = append(w.route.Hops, bifurcation.Hop{NextHop: n, Port: uint32(w.keys[i].port)})
	}
}

// group makes a way one by an ECMP group, of the numbers that the key says.
func (t *Table) group(w *way, id uint16, key string) {
	w.to, w.number = switchspec.ToECMP, id
	t.ecmp.put(id, len(w.keys))
	e := switchspec.ECMPGroup{ID: id, Hops: ecmpHops(key)}
	t.lacks(e.Key(), e)
}

// hop has the switch get a next hop under its number.
func (t *Table) hop(n uint16, k hopKey) {
	hop, neighbor := switchspec.NextHop{ID: n, Port: k.port}, switchspec.Neighbor{NextHop: n, Src: k.src, Dst: k.dst}
	t.lacks(hop.Key(), hop)
	t.lacks(neighbor.Key(), neighbor)
}

// fail makes a way unresolved for which there are no numbers.
func (t *Table) fail(w *way) {
	delete(t.led, wayKey(w.keys))
	t.leadNot(w)
	*w = *unresolvedWay
}

// forget drops those of the ways to which no route leads, and their numbers.
func (t *Table) forget(idle []*way) {
	for _, w := range idle {
		if w.routes > 0 || w.gone || len(w.keys) == 0 {
			continue
		}
		w.gone = true
		delete(t.led, wayKey(w.keys))
		if w.to == switchspec.ToECMP {
			t.ecmp.drop(w.number, len(w.keys))
			t.lacks(switchspec.ECMPGroup{ID: w.number}.Key(), nil)
		}
		t.leadNot(w)
	}
}

func (t *Table) leadNot(w *way) {
	for _, h := range w.route.Hops {
		t.hops.slots[h.NextHop].ways--
		t.release(h.NextHop)
	}
}

// release frees a next hop's number if nothing needs it, and reports whether it did.
func (t *Table) release(number uint16) bool {
	if !t.hops.take(number) {
		return false
	}
	t.lacks(switchspec.NextHop{ID: number}.Key(), nil)
	t.lacks(switchspec.Neighbor{NextHop: number}.Key(), nil)
	return true
}

func wayKey(keys []hopKey) string {
	b := make([]byte, 0, 14*len(keys))
	for _, k := range keys {
		b = append(append(binary.BigEndian.AppendUint16(b, k.port), k.src[:]...), k.dst[:]...)
	}
	return string(b)
}

// way is that by these next hops. It has no number before a route leads there.
func (t *Table) way(keys []hopKey) *way {
	if len(keys) == 0 {
		return unresolvedWay
	}
	slices.SortFunc(keys, hopKey.compare)
	w := &way{keys: slices.Compact(keys)}
	key := wayKey(w.keys)
	if known := t.led[key]; known != nil {
		return known
	}
	t.led[key] = w
	for _, k := range w.keys {
		to := t.ports[k.port].To
		switch {
		case to == "":
			w.route.Direct = true
		case t.switches[to].Programmable:
			w.route.Next = append(w.route.Next, bifurcation.Switch(to))
		case !slices.Contains(w.ahead, to):
			w.ahead = append(w.ahead, to)
		}
	}
	slices.Sort(w.route.Next)
	w.route.Next = slices.Compact(w.route.Next)
	return w
}
