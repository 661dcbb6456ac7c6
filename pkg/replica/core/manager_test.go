package core

import (
	"fmt"
	"slices"
)

func (w *world) apply(h *host, a Apply) {
	if h.n.hard.Backfilling && !a.Partial {
		w.fail("%d applies entries to what has not been copied", h.id)
	}
	for i := h.store.to + 1; i <= a.To; i++ {
		v, ok := h.at(i)
		if !ok {
			w.fail("%d applies %d and does not have it", h.id, i)
			return
		}
		w.committed(v, fmt.Sprintf("%d applies", h.id))
		if x := w.data[v]; !a.Partial || uint64(x.block) < a.Before {
			h.store.blocks[x.block] = x.value
		}
	}
	h.store.to = max(h.store.to, a.To)
}

func (w *world) install(h *host, c Chunk) {
	if c.Cursor < blocks {
		h.store.blocks[c.Cursor] = h.chunk
	}
}

// ask sends a request to the configuration manager.
func (w *world) ask(e event) {
	if !w.away && !w.chance(10) {
		w.later(w.soon(), e)
	}
}

// manager carries out a request.
func (w *world) manager(e event) {
	if e.kind == evPropose && slices.ContainsFunc(e.m.Acting, func(x Member) bool { return !w.up(x.ID) }) {
		return // it is refused, with an error
	}
	if e.kind == evPropose && e.m.Epoch == w.osdmap.Epoch+1 {
		w.swap(e.m)
	}
	if !w.away && !w.chance(10) {
		for range 1 + btoi(w.chance(5)) {
			w.later(w.soon(), event{kind: evMap, host: e.host, m: w.osdmap})
		}
	}
}

// swap changes the map, and checks that it may be changed so.
func (w *world) swap(m Map) {
	was := w.osdmap
	w.osdmap = m
	w.logf("map %+v", m)
	same := slices.ContainsFunc(m.Acting, was.Acts)
	switch {
	case m.Since == was.Since:
		if len(m.Acting) < len(was.Acting) {
			w.tally.removals++
		} else {
			w.tally.promotions++
		}
		if len(m.Acting) < len(was.Acting) && len(m.Acting) < m.MinSize {
			w.fail("map %+v has fewer than min_size, after %+v", m, was)
		}
	case same:
		w.tally.takeovers++
		if !was.Acts(m.Primary) {
			w.fail("%v takes over and is not in the acting set of %+v", m.Primary, was)
		}
	default:
		w.tally.revived++
		for _, x := range was.Acting {
			if w.host(x) != nil {
				w.fail("map %+v, and %v is alive", m, x)
			}
		}
		lead := w.hosts[m.Primary.ID].disk
		for _, x := range m.Acting {
			if slices.Contains(w.lost, m.Primary.ID) {
				break // it was asked for before that was replaced
			}
			if d := w.hosts[x.ID].disk; d.hard.LastEpochStarted > lead.hard.LastEpochStarted || d.hard.LastEpochStarted == lead.hard.LastEpochStarted && d.head().Compare(lead.head()) > 0 {
				w.fail("%v goes on with %v, and %v has %v", m.Primary, lead.head(), x, d.head())
			}
		}
		w.client.era(w)
	}
	w.client.holds(w)
}

// has says whether a member's process has an entry in memory, in its log or on its way there.
func (w *world) has(h *host, v Version) bool {
	if h.n.log.has(v) || v.Index < h.n.log.tail.Index {
		return true
	}
	for _, g := range w.groups {
		for _, p := range g.members {
			if p.m != h.n.self || g.iv.Since != v.Epoch || !(h.n.follow.group == g.iv) {
				continue
			}
			for i := p.from; i < p.got; i++ {
				if g.posted[i].Version == v {
					return true
				}
			}
		}
	}
	return false
}

// committed checks that all members of the acting set that live have an entry.
func (w *world) committed(v Version, what string) {
	if v.Epoch < w.only {
		return
	}
	for _, m := range w.osdmap.Acting {
		if h := w.host(m); h != nil && !w.has(h, v) {
			w.fail("%s %v, and %v, which is in the acting set, does not have it", what, v, m)
		}
	}
}

// check checks what always holds.
func (w *world) check() {
	serving := -1
	for i, h := range w.hosts {
		if h.n == nil {
			continue
		}
		if h.n.leased(h.clock(w.now)) {
			if serving >= 0 {
				w.fail("%d and %d serve", serving, i)
			}
			serving = i
		}
		if !w.osdmap.Acts(h.n.self) {
			continue
		}
		if p := w.hosts[w.osdmap.Primary.ID].n; p != nil && p.lead != nil && p.lead.interval == h.n.follow.interval && h.n.follow.started && !p.log.has(h.n.log.head()) && h.n.log.head().Index > p.log.tail.Index {
			w.fail("%d has agreed to the log of %d, and ends with %v", i, w.osdmap.Primary.ID, h.n.log.head())
		}
		for _, m := range w.osdmap.Acting {
			if d := w.hosts[m.ID].disk.head(); d.Index < h.n.stable && !slices.Contains(w.lost, m.ID) {
				w.fail("%d holds %d for stable, and the disk of %v, which is in the acting set, ends with %v", i, h.n.stable, m, d)
			}
		}
		for _, o := range w.hosts[:i] {
			if o.n == nil || !w.osdmap.Acts(o.n.self) {
				continue
			}
			c := min(h.n.commit, o.n.commit)
			a, ok := h.n.log.at(c)
			if b, there := o.n.log.at(c); ok && there && a != b {
				w.fail("entry %d is committed, as %v at %d and as %v at %d", c, a, h.id, b, o.id)
			}
		}
	}
}
