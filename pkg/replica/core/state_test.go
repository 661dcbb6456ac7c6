package core

import (
	"encoding/binary"
	"fmt"
	"hash/maphash"
	"maps"
	"slices"
)

// An encoder makes bytes of which equal ones mean equal futures.
type encoder struct{ b []byte }

func (e *encoder) num(list ...uint64) {
	for _, v := range list {
		e.b = binary.AppendUvarint(e.b, v)
	}
}

func (e *encoder) flag(list ...bool) {
	for _, v := range list {
		e.num(uint64(btoi(v)))
	}
}

func (e *encoder) versions(list []Version) {
	e.num(uint64(len(list)))
	for _, v := range list {
		e.num(v.Epoch, v.Index)
	}
}

func (e *encoder) members(list ...Member) {
	e.num(uint64(len(list)))
	for _, m := range list {
		e.num(uint64(m.ID), m.Incarnation)
	}
}

func (e *encoder) grants(list []grant) {
	e.num(uint64(len(list)))
	for _, g := range list {
		e.members(g.to)
		e.num(uint64(g.at))
	}
}

func (e *encoder) interval(iv Interval) { e.num(iv.Since, iv.Round) }

func (e *encoder) hard(h *HardState) {
	e.num(h.Incarnation, h.Epoch, h.Born, h.LastEpochStarted, h.Applying)
	e.flag(h.Backfilling)
}

func (e *encoder) osdmap(m *Map) {
	if e.flag(m != nil); m == nil {
		return
	}
	e.num(m.Epoch, m.Since)
	e.members(m.Primary)
	e.members(m.Acting...)
}

// state appends all that a node is.
func (e *encoder) state(n *Node) {
	if e.flag(n != nil); n == nil {
		return
	}
	e.hard(&n.hard)
	e.hard(&n.disk.hard)
	e.versions(n.log.list())
	e.num(n.disk.durable, uint64(len(n.disk.pending)), n.commit, n.stable, n.applied, uint64(n.beat))
	for _, p := range n.disk.pending {
		e.num(p.head)
		e.hard(&p.hard)
	}
	e.osdmap(&n.osdmap)
	e.osdmap(n.proposal)
	e.flag(n.asking)
	f := &n.follow
	e.interval(f.interval)
	e.interval(f.group)
	e.interval(f.next)
	e.flag(f.leaving, f.started)
	e.num(f.match, f.cut, f.landed, f.commit, f.stable, uint64(f.granted), uint64(f.heard), uint64(f.sent), uint64(f.stage), f.cursor, f.fill)
	e.grants(f.grants)
	notices := slices.Clone(n.notices)
	slices.SortFunc(notices, func(a, b notice) int { return int(a.ID) - int(b.ID) })
	for i := range notices {
		e.members(notices[i].Member)
		e.hard(&notices[i].HardState)
		e.num(notices[i].Head.Epoch, notices[i].Head.Index)
	}
	l := n.lead
	if e.flag(l != nil); l == nil {
		return
	}
	e.interval(l.interval)
	e.num(uint64(l.state), l.acked, l.former, uint64(len(l.flushes)), uint64(len(l.peers)))
	e.members(l.members...)
	e.members(l.required...)
	e.grants(l.granted)
	if e.flag(l.wanted != nil); l.wanted != nil {
		e.members(l.wanted.members...)
	}
	for i := range l.peers {
		p := &l.peers[i]
		e.members(p.member)
		e.num(uint64(p.heard), uint64(p.lease), p.next, p.match, p.durable, uint64(p.stage), p.cursor, p.reset.have, p.reset.tail, p.from, p.race.base, p.race.head, uint64(p.race.gained))
		for _, a := range []*attempt{&p.pushed, &p.asked} {
			e.num(a.from, uint64(a.begun), uint64(a.took), uint64(a.wait), uint64(a.again), uint64(a.rest))
			e.flag(a.calls == l.calls)
		}
		e.flag(p.known, p.started, p.refill, p.reset.sent, p.adding, p.present, p.left, p.promoting)
	}
}

// key is the world's state, hashed.
func (w *world) key(seed maphash.Seed, e *encoder) uint64 {
	e.b = e.b[:0]
	e.num(uint64(w.now))
	e.osdmap(&w.osdmap)
	for _, h := range w.hosts {
		e.state(h.n)
		e.hard(&h.disk.hard)
		e.num(h.disk.tail.Epoch, h.disk.tail.Index, h.store.to, uint64(len(h.ops)))
		e.versions(h.disk.log)
	}
	for _, g := range w.groups {
		e.interval(g.iv)
		if e.flag(g.ended); g.ended && !slices.ContainsFunc(g.members, func(p *place) bool { return p.told < p.got }) {
			continue
		}
		e.members(g.view...)
		e.members(g.asked...)
		e.num(uint64(len(g.posted)), uint64(g.done))
		e.flag(g.formed, g.add != nil, g.asked != nil)
		for _, p := range g.members {
			e.members(p.m)
			e.num(uint64(p.from), uint64(p.got), uint64(p.told))
			e.flag(p.closed, p.gone)
		}
	}
	e.versions(w.client.acks)
	e.versions(w.client.flush)
	order := w.inOrder() // as far as it matters what is the next: of those that do not commute
	for k := range resources {
		e.num(uint64(k))
		for _, i := range order {
			if x := w.queue[i]; w.touches(x)&(1<<k) != 0 {
				e.b = append(e.b, x.name()...)
			}
		}
	}
	return maphash.Bytes(seed, e.b)
}

// resources are what events touch: the hosts, and the configuration manager.
const (
	manager   = 3
	resources = manager + 1
)

// touches are the resources that an event changes or depends on: two that have none in common commute.
func (w *world) touches(e *event) (set uint8) {
	switch e.kind {
	case evPropose, evRead:
		return 1 << manager
	case evLoss:
		return 1 << w.groups[e.g].lead.ID
	case evForm, evEnd, evAdd:
		g := w.groups[e.g]
		set = 1 << g.lead.ID
		for _, p := range g.members {
			set |= 1 << p.m.ID
		}
		if g.add != nil {
			set |= 1 << g.add.m.ID
		}
		return set
	}
	return 1 << e.host.ID
}

// name names an event.
func (e *event) name() string {
	if e.text == "" {
		e.text = fmt.Sprint(e.kind, e.host, e.seq, e.m, e.g, e.iv, e.val, e.msg)
	}
	return e.text
}

func (w *world) clone() *world {
	c := *w
	c.queue = slices.Clone(w.queue)
	c.data = maps.Clone(w.data)
	c.lost = slices.Clone(w.lost)
	c.hosts = make([]*host, len(w.hosts))
	for i, h := range w.hosts {
		x := *h
		x.n = h.n.clone()
		x.mem = maps.Clone(h.mem)
		x.log, x.ops, x.disk.log = slices.Clone(h.log), slices.Clone(h.ops), slices.Clone(h.disk.log)
		c.hosts[i] = &x
	}
	c.groups = make([]*group, len(w.groups))
	for i, g := range w.groups {
		x := *g
		x.posted = slices.Clone(g.posted)
		x.members = make([]*place, len(g.members))
		for k, p := range g.members {
			y := *p
			x.members[k] = &y
		}
		if g.add != nil {
			y := *g.add
			x.add = &y
		}
		c.groups[i] = &x
	}
	c.client = w.client.clone()
	return &c
}

func (n *Node) clone() *Node {
	if n == nil {
		return nil
	}
	c := *n
	c.log.runs = slices.Clone(n.log.runs)
	c.disk.pending = slices.Clone(n.disk.pending)
	c.notices, c.out = slices.Clone(n.notices), nil
	c.cfg.Up = slices.Clone(n.cfg.Up)
	c.follow.grants = slices.Clone(n.follow.grants)
	if n.lead != nil {
		l := *n.lead
		l.peers, l.required, l.flushes = slices.Clone(l.peers), slices.Clone(l.required), slices.Clone(l.flushes)
		c.lead = &l
	}
	return &c
}
