package replica

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/mcrdma/mcrdma/pkg/mcrdma"
	"github.com/mcrdma/mcrdma/pkg/replica/core"
	"github.com/mcrdma/mcrdma/pkg/replica/wal"
)

// depth is the maximum number of entries in flight to the members: less than a member's number of
// receives.
const depth = 256

// A member's counters.
const (
	counterConsumed    = 0 // the last entry that it has consumed from the ring
	counterIncarnation = 1 // of its node
	counterDurable     = 2 // the last entry that it has on disk (core.Durable)
)

// leaderEvents are the events of a group, called in the loop.
type leaderEvents interface {
	formed(g *leading, err error)
	added(g *leading, m core.Member, from uint64, err error) // 0: it is not
	asked(g *leading, number uint32, members []core.Member)
	completed(g *leading, index uint64)
	durable(g *leading, m core.Member, index uint64)
	ended(g *leading, err error)
}

// leading is a group that this node leads. Its methods are called in the loop.
type leading struct {
	iv     core.Interval
	first  uint64       // the index of operation 0
	post   func(func()) // to the loop
	events leaderEvents
	ctx    context.Context
	cancel context.CancelFunc
	wg     *sync.WaitGroup

	members map[string]core.Member // by the address of the device, including those that have left
	adding  map[string]bool
	views   map[uint32]view // that wait

	group *mcrdma.Group // once formed
	ring  *ring
	queue []item // entries that wait for room
	ops   []*op  // that are not under way
	done  uint64 // all members of the view have the entries up to this one
}

// A view is one that operations are to complete with.
type view struct {
	members []core.Member
	answer  chan<- bool
}

// An op is an operation that is reused.
type op struct {
	mcrdma.Op
	index  uint64
	buf    *Buffer
	pieces [1]mcrdma.Piece
}

// lead makes a group of members, by the addresses of their devices, for the entries from first on.
func lead(ctx context.Context, client *mcrdma.Client, cfg mcrdma.GroupConfig, iv core.Interval, members map[string]core.Member, first uint64, ringSize int64, wg *sync.WaitGroup, post func(func()), events leaderEvents) *leading {
	g := &leading{iv: iv, first: first, post: post, events: events, wg: wg, members: members, adding: map[string]bool{}, views: map[uint32]view{},
		ring: newRing(ringSize, first), done: first - 1}
	g.ctx, g.cancel = context.WithCancel(ctx)
	for range depth {
		o := &op{}
		finished := func() { g.finished(o) }
		o.Done = func(*mcrdma.Op) { post(finished) }
		g.ops = append(g.ops, o)
	}
	cfg.OnView, cfg.Depth, cfg.MinSize, cfg.ViewTime = g.onView, depth, 1, mcrdma.MaxViewTime
	cfg.Regions = []mcrdma.Region{{Name: regionName(iv), Length: uint64(ringSize)}} //nolint:gosec // above 0
	for address := range members {
		cfg.Receivers = append(cfg.Receivers, address)
		g.ring.consumed[address] = first - 1
	}
	who := maps.Clone(members)
	wg.Go(func() { g.run(client, cfg, who) })
	return g
}

// regionName tells a member the interval of a group.
func regionName(iv core.Interval) string { return fmt.Sprintf("%d.%d", iv.Since, iv.Round) }

func parseRegionName(s string) (iv core.Interval, err error) {
	if _, err = fmt.Sscanf(s, "%d.%d", &iv.Since, &iv.Round); err == nil && regionName(iv) != s {
		err = errors.New("something follows")
	}
	if err != nil {
		return iv, fmt.Errorf("a region named %.40q, which is no interval: %w", s, err)
	}
	return iv, nil
}

// run forms the group, and waits for its end.
func (g *leading) run(client *mcrdma.Client, cfg mcrdma.GroupConfig, members map[string]core.Member) {
	group, err := client.Create(g.ctx, cfg)
	if err == nil {
		defer func() { _ = group.Close(g.ctx) }() // it has been canceled: do not wait for operations
		for address, m := range members {
			if err = g.meet(group, address, m); err != nil {
				break
			}
		}
	}
	if err != nil {
		g.cancel()
		g.post(func() { g.events.formed(g, err) })
		return
	}
	g.post(func() {
		g.group = group
		g.events.formed(g, nil)
		g.pump() // a node that was alone has accepted writes meanwhile
	})
	for more := true; more; {
		select {
		case _, more = <-group.Events():
		case <-g.ctx.Done():
			return
		}
	}
	g.cancel()
	g.post(func() { g.events.ended(g, group.Err()) })
}

// meet checks a member's incarnation, and follows its counters.
func (g *leading) meet(group *mcrdma.Group, address string, m core.Member) error {
	u, err := group.Unicast(address)
	if err == nil {
		err = u.WaitCounter(g.ctx, counterIncarnation, 1)
	}
	if err != nil {
		return err
	}
	if is := u.Counter(counterIncarnation); is != m.Incarnation {
		return fmt.Errorf("host %d has joined in incarnation %d and not %d", m.ID, is, m.Incarnation)
	}
	g.follow(u, counterConsumed, func(index uint64) {
		g.ring.consume(address, index)
		g.pump()
	})
	g.follow(u, counterDurable, func(index uint64) { g.events.durable(g, m, index) })
	return nil
}

// follow passes a member's counter to the loop.
func (g *leading) follow(u *mcrdma.Unicast, counter int, is func(index uint64)) {
	g.wg.Go(func() {
		for c := uint64(0); u.WaitCounter(g.ctx, counter, c+1) == nil; {
			c = u.Counter(counter)
			at := c
			g.post(func() { is(at) })
		}
	})
}

// add takes a member into the group.
func (g *leading) add(address string, m core.Member) {
	if g.group == nil || g.adding[address] {
		g.events.added(g, m, 0, errors.New("the group is not formed yet"))
		return
	}
	g.members[address], g.adding[address] = m, true
	g.ring.consumed[address] = max(g.first-1, g.ring.last()) // until the cut is known, keep entries from now on
	group := g.group
	g.wg.Go(func() {
		cut, err := group.Add(g.ctx, address)
		var stranger error
		if err == nil {
			stranger = g.meet(group, address, m)
		}
		g.post(func() {
			delete(g.adding, address)
			switch {
			case stranger != nil:
				g.events.ended(g, stranger)
			case err != nil:
				delete(g.ring.consumed, address)
				g.pump()
				g.events.added(g, m, 0, err)
			default:
				g.ring.consume(address, g.first+cut-1)
				g.pump()
				g.events.added(g, m, g.first+cut, nil)
			}
		})
	})
}

// onView asks the loop whether operations may complete with a view. It is called by the group.
func (g *leading) onView(ctx context.Context, v mcrdma.View) error {
	answer := make(chan bool, 1)
	g.post(func() {
		var members []core.Member
		for _, p := range v.Members {
			if m, ok := g.members[p.Address]; ok {
				members = append(members, m)
			}
		}
		g.views[v.Number] = view{members, answer}
		g.events.asked(g, v.Number, members)
	})
	select {
	case ok := <-answer:
		if ok {
			return nil
		}
		return errors.New("too few would have everything: it waits for the members that are missing")
	case <-ctx.Done():
		return ctx.Err()
	case <-g.ctx.Done():
		return g.ctx.Err()
	}
}

// answer answers onView. After a view is approved, members that are not in it have left.
func (g *leading) answer(number uint32, ok bool) {
	v, there := g.views[number]
	if !there {
		return
	}
	delete(g.views, number)
	for address := range g.ring.consumed {
		if ok && !g.adding[address] && !slices.Contains(v.members, g.members[address]) {
			delete(g.ring.consumed, address)
		}
	}
	v.answer <- ok
	g.pump()
}

// write sends an entry to all members, when there is room.
func (g *leading) write(i item) {
	i.buf.retain()
	g.queue = append(g.queue, i)
	g.pump()
}

// pump begins operations while there is room.
func (g *leading) pump() {
	for g.group != nil && len(g.queue) > 0 && len(g.ops) > 0 {
		g.ring.free(g.done)
		q := g.queue[0]
		n := wal.HeaderSize + q.DataLen()
		offset, ok := g.ring.place(int64(n))
		if !ok {
			return
		}
		o := g.ops[len(g.ops)-1]
		q.AppendHeader(q.buf.slot.Bytes()[:0])
		o.index, o.buf = q.Version.Index, q.buf
		o.pieces[0] = q.buf.slot.Slice(0, n)
		o.Op = mcrdma.Op{Kind: mcrdma.OpWriteImm, At: mcrdma.At{Offset: uint64(offset)}, Imm: uint32(offset / align), Pieces: o.pieces[:], Done: o.Done} //nolint:gosec // a ring has at most 256 GiB
		if g.group.Submit(g.ctx, &o.Op) != nil {
			return // it has ended, as is told
		}
		g.ops = g.ops[:len(g.ops)-1]
		g.queue[0] = item{}
		g.queue = g.queue[1:]
	}
}

// waits returns why entries are not sent, and for which members; "": they are.
func (g *leading) waits() (why string, hosts []core.ID) {
	switch {
	case len(g.queue) == 0:
		return "", nil
	case g.group == nil:
		return "the group is being formed", nil
	case len(g.ops) == 0:
		return "so many entries as may be in flight have not arrived at all hosts", nil
	}
	for address, index := range g.ring.consumed {
		if index < g.ring.first {
			hosts = append(hosts, g.members[address].ID)
		}
	}
	return "the ring is full of entries that are not consumed", hosts
}

// finished: an operation is done.
func (g *leading) finished(o *op) {
	o.buf.Release()
	o.buf = nil
	g.ops = append(g.ops, o)
	if o.Err == nil {
		g.done = o.index
		g.events.completed(g, o.index)
		g.pump()
	}
}

// close ends the group, and does not wait.
func (g *leading) close() {
	g.cancel()
	for _, q := range g.queue {
		q.buf.Release()
	}
	g.queue = nil
}
