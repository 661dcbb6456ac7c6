package fastpath

import (
	"slices"

	"github.com/mcrdma/mcrdma/internal/softswitch/pipeline"
)

// An index finds the entries of a group by the program's group number, which PRE groups do not
// have.
type index struct {
	of     map[*pipeline.Entry]uint16 // of matches
	parts  map[uint16]*parts
	byPRE  map[uint16]map[uint16]struct{}
	byHop  map[uint16]map[uint16]struct{}
	preOf  map[uint16][]uint16 // by group, as last computed
	hopsOf map[uint16][]uint16
}

// parts are a group's entries.
type parts struct {
	matches  map[*pipeline.Entry]struct{}
	replicas map[uint16]*pipeline.Entry
	regions  map[uint16]map[*pipeline.Entry]struct{}
}

func newIndex() index {
	return index{map[*pipeline.Entry]uint16{}, map[uint16]*parts{}, map[uint16]map[uint16]struct{}{}, map[uint16]map[uint16]struct{}{},
		map[uint16][]uint16{}, map[uint16][]uint16{}}
}

func (x *index) at(g uint16) *parts {
	p := x.parts[g]
	if p == nil {
		p = &parts{map[*pipeline.Entry]struct{}{}, map[uint16]*pipeline.Entry{}, map[uint16]map[*pipeline.Entry]struct{}{}}
		x.parts[g] = p
	}
	return p
}

// changed records a changed entry of the group tables, and returns the groups affected.
func (x *index) changed(l *plan, t *pipeline.Table, e *pipeline.Entry, gone bool) map[uint16]struct{} {
	concerns := map[uint16]struct{}{}
	if t == l.matches {
		if was, there := x.of[e]; there {
			delete(x.at(was).matches, e)
			delete(x.of, e)
			concerns[was] = struct{}{}
		}
		if g := uint16(arg(e, 0)); !gone { //nolint:gosec // 16 bits
			x.of[e], x.at(g).matches[e] = g, struct{}{}
			concerns[g] = struct{}{}
		}
		return concerns
	}
	g, rid := uint16(key32(e, 0)), uint16(key32(e, 1)) //nolint:gosec // 16 bits each
	p := x.at(g)
	concerns[g] = struct{}{}
	switch {
	case t == l.replicas && gone:
		delete(p.replicas, rid)
	case t == l.replicas:
		p.replicas[rid] = e
	case gone:
		delete(p.regions[rid], e)
		if len(p.regions[rid]) == 0 {
			delete(p.regions, rid)
		}
	default:
		if p.regions[rid] == nil {
			p.regions[rid] = map[*pipeline.Entry]struct{}{}
		}
		p.regions[rid][e] = struct{}{}
	}
	return concerns
}

// uses records the PRE groups and next hops that a group uses. It returns the groups that share, or
// shared, a PRE group with it.
func (x *index) uses(g uint16, pres, hops []uint16) map[uint16]struct{} {
	shared := map[uint16]struct{}{}
	for _, n := range slices.Concat(x.preOf[g], pres) {
		for other := range x.byPRE[n] {
			if other != g {
				shared[other] = struct{}{}
			}
		}
	}
	note(x.byPRE, x.preOf, g, pres)
	note(x.byHop, x.hopsOf, g, hops)
	return shared
}

func note(users map[uint16]map[uint16]struct{}, of map[uint16][]uint16, g uint16, now []uint16) {
	for _, n := range of[g] {
		delete(users[n], g)
		if len(users[n]) == 0 {
			delete(users, n)
		}
	}
	for _, n := range now {
		if users[n] == nil {
			users[n] = map[uint16]struct{}{}
		}
		users[n][g] = struct{}{}
	}
	if of[g] = now; len(now) == 0 {
		delete(of, g)
	}
}
