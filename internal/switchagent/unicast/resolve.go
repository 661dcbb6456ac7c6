package unicast

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/mcrdma/mcrdma/internal/switchspec"
	"github.com/mcrdma/mcrdma/pkg/bifurcation"
)

// maxCache is for how many destinations answers of lookAhead are kept.
const maxCache = 1 << 16

// Unresolved is the error of Resolve for a host in one of the switch's prefixes that
// is not known yet: it has to be asked for by ARP.
type Unresolved struct{ Addr netip.Addr }

func (e *Unresolved) Error() string {
	return fmt.Sprintf("%v to host %v: its MAC is not known; it has not answered ARP yet", bifurcation.ErrNoRoute, e.Addr)
}

// Unwrap returns bifurcation.ErrNoRoute.
func (e *Unresolved) Unwrap() error { return bifurcation.ErrNoRoute }

// Resolve returns the way to dst, as packets go once the switch has the Changes. The
// answer must not be changed. Errors wrap bifurcation.ErrNoRoute, and may be
// *Unresolved.
func (t *Table) Resolve(dst netip.Addr) (bifurcation.Route, error) {
	t.compile()
	if r, ok := t.cache[dst]; ok {
		return r, nil
	}
	if !dst.Is4() {
		return noRoute(dst, "the address is not IPv4")
	}
	w, p := t.lookup(dst)
	switch {
	case w == nil:
		return noRoute(dst, "no prefix holds it")
	case w.note == NoteOwn:
		return noRoute(dst, "it is the switch's own address")
	case w.note == NoteHosts && t.edge(dst):
		return noRoute(dst, "it is a network's own or broadcast address")
	case w.note == NoteHosts:
		return bifurcation.Route{}, &Unresolved{dst}
	case w.note == NoteUnreachable:
		return noRoute(dst, "%v is unreachable, says the routing source", p.netip())
	case w.to == switchspec.ToNowhere:
		return noRoute(dst, "no next hop of %v is usable", p.netip())
	case len(w.ahead) > 0:
		return t.lookAhead(w, dst), nil
	}
	return w.route, nil
}

func noRoute(dst netip.Addr, why string, args ...any) (bifurcation.Route, error) {
	return bifurcation.Route{}, fmt.Errorf("%w to %v: %s", bifurcation.ErrNoRoute, dst, fmt.Sprintf(why, args...))
}

// lookAhead is Resolve through neighbors that are not programmable. Only its answers
// are worth keeping.
func (t *Table) lookAhead(w *way, dst netip.Addr) bifurcation.Route {
	r := w.route
	r.Next = slices.Clone(r.Next)
	for _, neighbor := range w.ahead {
		next, direct := t.behind(neighbor, dst)
		r.Next = append(r.Next, next...)
		r.Direct = r.Direct || direct || len(next) == 0
	}
	slices.Sort(r.Next)
	r.Next = slices.Compact(r.Next)
	if len(t.cache) == maxCache {
		clear(t.cache)
	}
	t.cache[dst] = r
	return r
}

// lookup finds the longest prefix.
func (t *Table) lookup(dst netip.Addr) (*way, prefix) {
	host := single(dst) >> 8
	for bits := 32; bits >= 0; bits-- {
		if t.lengths[bits] == 0 {
			continue
		}
		p := host>>(32-bits)<<(32-bits)<<8 | prefix(bits) //nolint:gosec // 0 to 32
		if w := t.table[p]; w != nil {
			return w, p
		}
	}
	return nil, 0
}

// Use counts a user of a next hop's number, and reports whether there is such a next
// hop. What is in use stays on the switch, even if no route leads there any more. Call it
// with numbers that Resolve just returned, or that an adopted switch had.
func (t *Table) Use(number uint16) bool {
	h := t.hops.at(number)
	if h == nil {
		return false
	}
	h.uses++
	return true
}

// Unuse takes a Use back.
func (t *Table) Unuse(number uint16) {
	t.compile() // it may be wanted again
	h := t.hops.at(number)
	if h == nil || h.uses == 0 {
		return
	}
	if h.uses--; t.release(number) {
		t.version++
	}
}

// behind looks through a neighbor that is not programmable.
func (t *Table) behind(neighbor string, dst netip.Addr) (next []bifurcation.Switch, direct bool) {
	if t.cfg.Next != nil {
		return t.cfg.Next(neighbor, dst)
	}
	var at *Switch
	longest := -1
	for i, s := range t.cfg.Switches {
		for _, p := range s.Prefixes {
			if p.Bits() > longest && p.Contains(dst) {
				at, longest = &t.cfg.Switches[i], p.Bits()
			}
		}
	}
	if at == nil || !at.Programmable {
		return nil, true
	}
	return []bifurcation.Switch{bifurcation.Switch(at.Name)}, false
}
