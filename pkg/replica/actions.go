package replica

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/mcrdma/mcrdma/pkg/mcrdma"
	"github.com/mcrdma/mcrdma/pkg/replica/core"
)

// maxPush is the maximum memory in bytes that the entries of one message take at the receiver. Each
// pool of buffers is larger, so all of them fit once earlier entries are on disk.
const maxPush = MaxEntry

// perform carries out one action.
func (l *loop) perform(a core.Action) {
	switch a := a.(type) {
	case core.Send:
		l.send(a.Message)
	case core.Persist:
		l.persist(a)
	case core.Apply:
		l.apply(a)
	case core.Install:
		l.disk.install(a.Chunk.Cursor, l.pieces)
	case core.Hurry:
		l.disk.log.Hurry(a.To)
	case core.ReadMap:
		l.readMap()
	case core.Propose:
		l.propose(a.Map)
	case core.Form:
		l.form(a)
	case core.Add:
		l.add(a)
	case core.Post:
		l.write(a.Version)
	case core.AnswerView:
		if l.lead != nil && l.lead.iv == a.Interval {
			l.lead.answer(a.Number, a.OK)
		}
	case core.Dissolve:
		l.dissolve()
	case core.Leave:
		l.follow.leaveGroup(a.Interval)
	case core.Ack:
		l.calls.ack(a.Index)
	case core.Flushed:
		l.calls.flushed(a.Call)
	case core.Deposed:
		l.calls.end()
	}
}

// send sends a message, with the content that belongs to it.
func (l *loop) send(m core.Message) {
	out := message{Message: m, fetch: l.fetch}
	switch b := m.Body.(type) {
	case core.Push:
		if !b.Reset {
			l.attach(&out, b)
		}
	case core.Durable:
		l.follow.durable(m.Interval, b.Index)
		return
	case core.Chunk:
		l.disk.piece(b.Cursor, func(pieces []piece, next uint64) {
			b.Next, out.pieces = next, pieces
			out.Body = b
			l.out.send(out)
		})
		return
	}
	l.out.send(out)
}

// attach adds the entries of a Push: as many as go with one message, and at least one.
func (l *loop) attach(m *message, b core.Push) {
	bytes, index := 0, b.Prev.Index
	for _, r := range b.Runs {
		for ; index < r.Index; index++ {
			i := l.content.at(index + 1)
			if bytes += l.memory.pushed.class(i.DataLen()).size; bytes > maxPush && len(m.entries) > 0 {
				b.Runs = cutRuns(b.Runs, index)
				m.Body = b
				return
			}
			i.buf.retain()
			m.entries = append(m.entries, *i)
		}
	}
}

func (l *loop) persist(p core.Persist) {
	c := change{Persist: p}
	switch x := p.Change.(type) {
	case core.Append:
		i := l.content.take(x.Version, p.Seq)
		if i == nil {
			l.fail(fmt.Errorf("entry %v has no content, which is a mistake in this program", x.Version))
			return
		}
		if i.buf != nil {
			l.unsaved = append(l.unsaved, unsaved{p.Seq, i.buf.retain()})
		}
		e := i.Entry
		c.entry = &e
	case core.Truncate:
		l.content.truncate(x.After)
	case core.Reset:
		l.content.reset(x.Tail.Index)
		l.disk.reset(x.Tail.Index)
		l.shown = x.Tail.Index
	case core.Trim:
		l.content.trim(x.To)
	}
	l.disk.persist(c)
}

func (l *loop) apply(a core.Apply) {
	var entries []item
	for i := l.disk.applied + 1; i <= a.To; i++ {
		x := *l.content.at(i)
		x.buf.retain()
		entries = append(entries, x)
	}
	before := int64(math.MaxInt64)
	if a.Partial {
		before = int64(a.Before) //nolint:gosec // an offset in the volume
	}
	l.disk.apply(entries, a.To, before, func(counts bool) {
		if counts {
			l.shown = a.To
			l.spare()
		}
	})
}

// attempts is the maximum number of concurrent calls of one kind to the configuration manager. A
// call that waits for a frozen etcd member, or for a new leader, does not delay those of the next
// beats.
const attempts = 8

func (l *loop) readMap() { l.call(&l.busy.reading, l.out.readMap) }

func (l *loop) propose(m core.Map) {
	l.call(&l.busy.proposing, func(ctx context.Context) (core.Map, error) { return l.out.propose(ctx, m) })
}

// call calls the configuration manager, for the map that is there then.
func (l *loop) call(underway *int, f func(context.Context) (core.Map, error)) {
	if *underway == attempts {
		return
	}
	*underway++
	l.wg.Go(func() {
		m, err := f(l.ctx)
		l.post(func() {
			if *underway--; err == nil {
				l.mapIs(m)
			}
		})
	})
}

func (l *loop) form(a core.Form) {
	members := map[string]core.Member{}
	for _, m := range a.Members {
		address, ok := l.out.device(m.ID)
		if !ok {
			l.formedLater(a.Interval, fmt.Errorf("host %d has no record with the configuration manager", m.ID))
			return
		}
		members[address] = m
	}
	if len(members) == 0 {
		l.alone = a.Interval
		l.node.Formed(a.Interval, true, now())
		return
	}
	l.lead = l.out.lead(l.ctx, &l.wg, a.Interval, members, l.content.head()+1, l)
}

// dissolve ends the group that this node leads.
func (l *loop) dissolve() {
	if l.lead != nil {
		l.lead.close()
	}
	l.lead, l.alone, l.joining = nil, core.Interval{}, core.Member{}
}

// formedLater reports that the group cannot be formed, after a delay, because forming may keep
// failing.
func (l *loop) formedLater(iv core.Interval, err error) {
	l.log.Warn("the group is not formed; it is tried again", "interval", iv, "error", err)
	time.AfterFunc(l.beat, func() { l.post(func() { l.node.Formed(iv, false, now()) }) })
}

func (l *loop) formed(g *leading, err error) {
	joining := l.joining
	switch {
	case g != l.lead:
		g.close()
	case joining != core.Member{} && err != nil:
		g.close()
		l.lead, l.joining = nil, core.Member{}
		l.node.Completed(g.iv, l.content.head(), now()) // what waited for the member
		l.added(g, joining, 0, err)
	case joining != core.Member{}:
		l.joining = core.Member{}
		l.added(g, joining, g.first, nil)
	case err != nil:
		l.dissolve()
		if x, ok := errors.AsType[*mcrdma.Error](err); ok && errors.Is(err, mcrdma.ErrUnreachable) {
			l.node.Hindered(g.iv, l.out.named(x.Host), now())
		}
		l.formedLater(g.iv, err)
	default:
		l.node.Formed(g.iv, true, now())
	}
}

func (l *loop) ended(g *leading, err error) {
	if g == l.lead {
		l.log.Warn("the group has ended; it is formed again", "interval", g.iv, "error", err)
		l.dissolve()
		l.node.GroupEnded(g.iv, now())
	}
}

// add adds a member to the group. If this node is alone in it, there is no library group yet.
func (l *loop) add(a core.Add) {
	address, ok := l.out.device(a.Member.ID)
	ok = ok && l.out.reachable(a.Member.ID)
	switch {
	case ok && l.lead != nil && l.lead.iv == a.Interval:
		l.lead.add(address, a.Member)
	case ok && l.alone == a.Interval:
		l.joining = a.Member
		l.lead = l.out.lead(l.ctx, &l.wg, a.Interval, map[string]core.Member{address: a.Member}, l.content.head()+1, l)
	default:
		l.node.Added(a.Interval, a.Member, 0, now())
	}
}

func (l *loop) added(g *leading, m core.Member, from uint64, err error) {
	if err != nil {
		l.log.Info("a member could not be taken into the group; it is tried again", "member", m, "error", err)
	}
	if g == l.lead || from == 0 {
		l.node.Added(g.iv, m, from, now())
	}
}

func (l *loop) asked(g *leading, number uint32, members []core.Member) {
	if g != l.lead {
		g.answer(number, false)
		return
	}
	l.node.View(g.iv, number, members, now())
}

func (l *loop) completed(g *leading, index uint64) {
	if g == l.lead {
		l.node.Completed(g.iv, index, now())
	}
}

// durable handles a member's report of its last durable entry.
func (l *loop) durable(g *leading, m core.Member, index uint64) {
	if at := now(); g == l.lead {
		l.node.Step(core.Message{Volume: l.volume, From: m, To: l.node.Status(at).Self, Interval: g.iv, Body: core.Durable{Index: index}}, at)
	}
}

// write sends an entry to the members.
func (l *loop) write(v core.Version) {
	i := l.content.at(v.Index)
	if l.lead != nil {
		l.lead.write(*i)
	} else {
		l.node.Completed(l.alone, v.Index, now())
	}
}

// join decides whether this node joins a group.
func (l *loop) join(iv core.Interval) bool { return l.failure == nil && l.node.Join(iv) }

// landed handles an entry that the group has delivered.
func (l *loop) landed(iv core.Interval, i item) {
	v := i.Version
	l.content.arrive(i)
	l.node.Landed(iv, core.Post{Version: v}, now())
}
