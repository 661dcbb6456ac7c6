package core

import (
	"slices"
	"time"
)

// next has the event happen that is the next, and says whether there was one until end.
func (w *world) next(end time.Duration) bool {
	k := -1
	for i := range w.queue {
		if k < 0 || w.queue[i].at < w.queue[k].at || w.queue[i].at == w.queue[k].at && w.queue[i].order < w.queue[k].order {
			k = i
		}
	}
	if k < 0 || w.queue[k].at > end {
		w.now = max(w.now, end)
		return false
	}
	w.take(k)
	return true
}

func (w *world) take(k int) {
	e := w.queue[k]
	w.queue[k] = w.queue[len(w.queue)-1]
	w.queue[len(w.queue)-1] = nil
	w.queue = w.queue[:len(w.queue)-1]
	w.now = max(w.now, e.at)
	w.happens(*e)
}

func (w *world) happens(e event) {
	switch e.kind { // those that are no host's
	case evPropose, evRead:
		w.manager(e)
		return
	case evForm, evLoss, evEnd, evAdd, evViewLate, evLand:
		w.groupEvent(e)
		return
	case evThaw:
		w.hosts[e.host.ID].frozen = false
		return
	case evStart:
		if h := w.hosts[e.host.ID]; h.n == nil {
			w.start(h)
		}
		return
	}
	if e.kind == evMessage {
		if h := w.hosts[e.host.ID]; h.n != nil {
			e.host = h.n.self
		}
	}
	h := w.host(e.host)
	if h == nil {
		return
	}
	if h.frozen {
		e.at = w.now
		w.later(20*time.Millisecond, e)
		return
	}
	now := h.clock(w.now)
	switch e.kind {
	case evMessage:
		if !w.reachable(e.msg.From.ID, e.msg.To.ID) {
			return
		}
		w.arrives(h, e)
	case evTick:
		h.n.Tick(now)
		w.settle(h)
		if !w.steps {
			w.tick(h)
		}
		return
	case evSync:
		for len(h.ops) > 0 && h.ops[0].Seq <= e.seq {
			h.disk.change(h.ops[0].Change)
			h.ops = h.ops[1:]
		}
		if d := &h.disk; !d.hard.Backfilling && d.hard.Applying > d.head().Index {
			w.fail("the store of %d may have %d, and its log ends with %v", h.id, d.hard.Applying, d.head())
		}
		h.n.Synced(e.seq, now)
	case evMap:
		if !slices.Contains(e.m.Up, h.id) {
			w.drop(h)
			return
		}
		h.n.MapIs(e.m, now)
	case evTell:
		w.tell(h, e.g)
	case evComplete:
		g := w.groups[e.g]
		h.n.Completed(g.iv, e.seq, now)
	case evLeft:
		for i, g := range w.groups {
			if g.iv == e.iv {
				w.tell(h, i)
			}
		}
		h.n.Left(e.iv, now)
	case evReadDone:
		w.client.readDone(w, h, e)
	}
	w.settle(h)
}

func (w *world) arrives(h *host, e event) {
	if p, ok := e.msg.Body.(Push); ok && !p.Reset {
		i := p.Prev.Index
		for _, r := range p.Runs {
			for ; i < r.Index; i++ {
				h.mem[Version{r.Epoch, i + 1}] = true
			}
		}
	}
	h.chunk = e.val
	h.n.Step(e.msg, h.clock(w.now))
}

// tell tells a node what has landed in its memory.
func (w *world) tell(h *host, i int) {
	g := w.groups[i]
	for _, p := range g.members {
		if p.m != h.n.self {
			continue
		}
		for ; p.told < p.got; p.told++ {
			h.mem[g.posted[p.told].Version] = true
			h.n.Landed(g.iv, g.posted[p.told], h.clock(w.now))
		}
	}
}

func (w *world) leader(g *group) *host { return w.host(g.lead) }

func (w *world) groupEvent(e event) {
	g := w.groups[e.g]
	if e.kind == evEnd {
		w.ended(e.g)
		return
	}
	h := w.leader(g)
	if g.ended || h == nil {
		return
	}
	if h.frozen {
		w.later(20*time.Millisecond, e)
		return
	}
	now := h.clock(w.now)
	switch e.kind {
	case evForm:
		ok := true
		for _, p := range g.members {
			if ok = ok && w.join(g, p); !ok && g.iv.Round%2 == 0 { // not always, and without changing what else is drawn
				h.n.Hindered(g.iv, p.m.ID, now)
			}
		}
		if !ok {
			g.ended = true
			w.later(w.soon(), event{kind: evEnd, g: e.g})
		}
		g.formed = ok
		h.n.Formed(g.iv, ok, now)
	case evLand:
		w.lands(e)
		return
	case evLoss:
		for _, p := range g.members {
			p.gone = p.gone || p.m == e.host
		}
		w.askView(e.g)
	case evAdd:
		p := g.add
		if g.asked != nil && !w.steps {
			w.later(w.soon()+time.Millisecond, e)
			return
		}
		if g.asked != nil || p.closed || !g.formed || !w.join(g, p) {
			g.add = nil
			h.n.Added(g.iv, p.m, 0, now)
			break
		}
		p.from, p.got, p.told = len(g.posted), len(g.posted), len(g.posted)
		g.members = append(g.members, p)
		w.askView(e.g)
	case evViewLate:
		if g.asked != nil && uint64(g.number) == e.seq {
			w.tally.waits++
			w.breaks(e.g)
		}
	}
	w.settle(h)
}

func (w *world) join(g *group, p *place) bool {
	h := w.host(p.m)
	if h == nil || h.frozen || !w.reachable(g.lead.ID, p.m.ID) || !h.n.Join(g.iv) {
		return false
	}
	w.settle(h)
	return true
}

// lands: the next operation is in a member's memory, whether its process runs or not.
func (w *world) lands(e event) {
	g := w.groups[e.g]
	for _, p := range g.members {
		if p.m != e.host || p.closed || w.host(p.m) == nil || p.got >= len(g.posted) {
			continue
		}
		if !w.reachable(g.lead.ID, p.m.ID) {
			if e.val++; e.val > 20 {
				p.closed = true
				w.later(w.soon(), event{kind: evLoss, g: e.g, host: p.m})
				w.later(w.soon(), event{kind: evLeft, host: p.m, iv: g.iv})
				continue
			}
			w.later(20*time.Millisecond, e)
			continue
		}
		p.got++
		w.later(w.soon(), event{kind: evTell, g: e.g, host: p.m})
	}
	w.completes(e.g)
}

// completes completes operations that all of the view have.
func (w *world) completes(i int) {
	g := w.groups[i]
	done := len(g.posted)
	for _, p := range g.members {
		again := func(q *place) bool { return q.m == p.m && !q.gone }
		if slices.Contains(g.view, p.m) && !(p.gone && slices.ContainsFunc(g.members, again)) {
			done = min(done, p.got)
		}
	}
	if g.add != nil && g.asked != nil && slices.Contains(g.asked, g.add.m) {
		done = min(done, g.add.from) // the rest is of the formation with that member
	}
	if done > g.done {
		g.done = done
		w.later(w.soon(), event{kind: evComplete, g: i, host: g.lead, seq: g.posted[done-1].Version.Index})
	}
}

// askView asks for the view of those that are there.
func (w *world) askView(i int) {
	g := w.groups[i]
	var members []Member
	for _, p := range g.members {
		if !p.gone && !slices.Contains(members, p.m) {
			members = append(members, p.m)
		}
	}
	if g.asked != nil || slices.Equal(members, g.view) {
		return
	}
	g.number++
	g.asked = append([]Member{}, members...)
	w.later(600*time.Millisecond, event{kind: evViewLate, g: i, seq: uint64(g.number)})
	h := w.leader(g)
	h.n.View(g.iv, g.number, members, h.clock(w.now))
}

func (w *world) answered(h *host, a AnswerView) {
	i := w.group(h.n.self, a.Interval)
	if i < 0 || w.groups[i].ended || w.groups[i].asked == nil || w.groups[i].number != a.Number {
		return
	}
	g := w.groups[i]
	if !a.OK {
		w.tally.waits++
		w.breaks(i)
		return
	}
	g.view, g.asked = g.asked, nil
	if p := g.add; p != nil && slices.Contains(g.view, p.m) {
		g.add = nil
		h.n.Added(g.iv, p.m, h.n.log.head().Index+1-uint64(len(g.posted)-p.from), h.clock(w.now))
	} else if p != nil && p.gone {
		g.add = nil
		h.n.Added(g.iv, p.m, 0, h.clock(w.now))
	}
	w.completes(i)
	w.askView(i)
}

// breaks ends a group at its sender.
func (w *world) breaks(i int) {
	g := w.groups[i]
	g.ended = true
	w.later(w.soon(), event{kind: evEnd, g: i})
	if h := w.leader(g); h != nil {
		h.n.GroupEnded(g.iv, h.clock(w.now))
	}
}

// ended: the members notice.
func (w *world) ended(i int) {
	for _, p := range w.groups[i].members {
		if !p.closed {
			p.closed = true
			w.later(w.soon(), event{kind: evLeft, host: p.m, iv: w.groups[i].iv})
		}
	}
}
