package collective

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/mcrdma/mcrdma/pkg/collective/core"
	"github.com/mcrdma/mcrdma/pkg/mcrdma"
)

// An engine is a rank's connections, which all its Comms share.
type engine struct {
	cfg    Config
	layout core.Layout
	ctx    context.Context // of goroutines
	cancel context.CancelFunc
	wg     sync.WaitGroup
	group  *mcrdma.Group  // to all others; nil: there are none
	all    *mcrdma.Memory // what is written to all
	memory []*mcrdma.Memory
	peers  []*peer // by id; nil: this rank
	lanes  []lane
	device poller // nil: it cannot poll, or shall not

	mu        sync.Mutex
	node      *core.Node
	changed   chan struct{} // closed when what is known of ranks has changed
	announced chan struct{} // closed when the announcement under way is done; nil: there is none
	announce  []uint32      // what waits until an announcement is done
	givenUp   string        // why, if this rank has
	closing   bool          // Close was called
	closed    error         // why there is nothing to be done any more
}

// A lane does one operation at a time.
type lane struct {
	busy chan struct{} // has a token while it does
	wake chan struct{} // has a token if its operation may have something to do
}

// A peer is another rank.
type peer struct {
	memory  *mcrdma.Memory // that it writes to
	staging *mcrdma.Memory // what is written to it alone
	member  *mcrdma.Member // in its group
	unicast *mcrdma.Unicast
	why     string         // it was lost
	removed bool           // it has removed this rank from its group
	replies [MaxLanes]bool // on their way to it
}

// counter is by which a rank tells how many messages of a lane it has taken.
func counter(lane int, p core.Path) int { return lane*core.Paths + int(p) }

// locked does something with the node, and then what that wants done.
func (e *engine) locked(f func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	f()
	e.perform()
}

// perform does what the node wants. e.mu is held.
func (e *engine) perform() {
	for list := e.node.Actions(); len(list) > 0; list = e.node.Actions() {
		for _, a := range list {
			switch a.Type {
			case core.Write, core.Rewrite:
				e.write(a)
			case core.Tell:
				_ = e.peers[a.To].member.SetCounter(counter(a.Lane, a.Path), a.Seq) // an error: Recv says it too
			case core.Announce:
				e.announce = []uint32{a.Imm}
				e.tellState()
			case core.Also:
				e.announce = append(e.announce, a.Imm)
				e.tellState()
			case core.Reply:
				e.reply(a)
			case core.Wake:
				e.lanes[a.Lane].signal()
			case core.Changed:
				e.wake()
			}
		}
	}
}

// wake has all look again who wait for something: operations, and Shrink. e.mu is held.
func (e *engine) wake() {
	close(e.changed)
	e.changed = make(chan struct{})
	for i := range e.lanes {
		e.lanes[i].signal()
	}
}

// A poller is a device that can poll: see qp.Poller.
type poller interface{ PollFor(d time.Duration) }

// poll has the device poll if an operation of that many bytes is about to wait.
func (e *engine) poll(size int) {
	if e.device != nil && size <= max(e.cfg.Small, 0) {
		e.device.PollFor(e.cfg.Poll)
	}
}

func (l *lane) signal() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// write sends a message. There is room: a ring has no more slots than a group has operations.
func (e *engine) write(a core.Action) {
	path, staging := core.Unicast, e.all
	submit := e.group.Submit
	if a.To == core.All {
		path = core.Multicast
	} else {
		staging = e.peers[a.To].staging
		submit = e.peers[a.To].unicast.Submit
	}
	at, size := e.layout.At(core.Multicast, a.Lane, a.Seq), e.layout.Slot()
	from, to := e.layout.Span(a.Size)
	if a.Type == core.Write {
		e.layout.Fill(staging.Bytes()[at:at+size], a.Message, a.Seq)
	}
	op := &mcrdma.Op{Kind: mcrdma.OpWriteImm, At: mcrdma.At{Offset: uint64(e.layout.At(path, a.Lane, a.Seq) + from)}, //nolint:gosec // not negative
		Imm: a.Imm, Deferred: a.Later, Pieces: []mcrdma.Piece{staging.Slice(at+from, to-from)}}
	op.Done = func(*mcrdma.Op) {
		e.locked(func() {
			if op.Err != nil && (a.To == core.All || e.peers[a.To].unicast.Err() != nil) {
				e.broken(a.To, op.Err)
			} else {
				e.node.Landed(a.Lane, a.To, op.Err == nil)
			}
		})
	}
	if err := submit(e.ctx, op); err != nil {
		e.broken(a.To, err)
	}
}

// reply says something to a rank alone. One that is lost with the connection is not repeated: the rank asks again.
func (e *engine) reply(a core.Action) {
	p := e.peers[a.To]
	if p.replies[a.Lane] {
		return
	}
	op := &mcrdma.Op{Kind: mcrdma.OpWriteImm, Imm: a.Imm}
	op.Done = func(*mcrdma.Op) { e.locked(func() { p.replies[a.Lane] = false }) }
	p.replies[a.Lane] = p.unicast.Submit(e.ctx, op) == nil
}

// tellState tells the others what is known of ranks and calls, if that is to be done.
func (e *engine) tellState() {
	if len(e.announce) == 0 || e.announced != nil || e.group == nil {
		return
	}
	op := &mcrdma.Op{Kind: mcrdma.OpWriteImm, Imm: e.announce[0]}
	done := make(chan struct{})
	op.Done = func(*mcrdma.Op) {
		e.locked(func() {
			close(done)
			e.announced = nil
			e.tellState()
		})
	}
	e.announce, e.announced = e.announce[1:], done
	if e.group.Submit(e.ctx, op) != nil {
		e.announced = nil // the group has ended, as its events say
	}
}

// broken: a connection with one rank or all has failed.
func (e *engine) broken(to int, err error) {
	e.departures(e.group.Departures()) // they say why
	if to != core.All {
		e.lose(to, err.Error())
		return
	}
	for id, p := range e.peers {
		if p != nil && p.member != nil && errors.Is(p.member.Err(), mcrdma.ErrRemoved) {
			p.removed = true // receive may not have come to it yet
		}
		e.lose(id, fmt.Sprintf("this rank's group has ended: %v", err))
	}
}

// lose: a rank is lost. The first reason is the one that is told.
func (e *engine) lose(id int, why string) {
	p := e.peers[id]
	if p == nil || e.closed != nil || e.closing && p.member != nil && errors.Is(p.member.Err(), mcrdma.ErrClosed) { // receive comes to that
		return
	}
	if p.why == "" {
		p.why = why
	}
	e.node.Lost(id)
}

// departures: the group may have lost members. One of which it is not known yet why is lost when it is: an event follows.
func (e *engine) departures(list []mcrdma.Departure) {
	for _, d := range list {
		for id, h := range e.cfg.Hosts {
			if d.Why != "" && (h == d.Host || h == d.Address) {
				e.lose(id, d.Why)
			}
		}
	}
}

// watch follows this rank's group until it ends.
func (e *engine) watch() {
	for range e.group.Events() {
		e.locked(func() { e.departures(e.group.Departures()) })
	}
	e.locked(func() {
		if err := e.group.Err(); err != nil {
			e.broken(core.All, err)
		}
	})
}

// askEvery is how long nothing comes before those who wait ask whether all ranks are there; it may be twice as long.
const askEvery = 200 * time.Millisecond

// ask has the node ask for ranks of which nothing comes.
func (e *engine) ask() {
	for tick := time.NewTicker(askEvery); ; {
		select {
		case <-tick.C:
			e.locked(func() {
				if e.closed == nil {
					e.node.Ask()
				}
			})
		case <-e.ctx.Done():
			tick.Stop()
			return
		}
	}
}

// follow follows what a rank has taken.
func (e *engine) follow(id, lane int, p core.Path) {
	u, i := e.peers[id].unicast, counter(lane, p)
	for n := uint64(0); u.WaitCounter(e.ctx, i, n+1) == nil; {
		n = u.Counter(i)
		e.locked(func() {
			if err := e.node.Acked(id, lane, p, n); err != nil {
				e.lose(id, err.Error())
			}
		})
	}
}

// receive takes what a rank sends until it ends.
func (e *engine) receive(id int) {
	m := e.peers[id].member
	for {
		r, err := m.Recv(e.ctx)
		if err == nil && r.Kind != mcrdma.OpWriteImm {
			err = fmt.Errorf("it has sent %v, which no rank does", r.Kind)
		}
		if err != nil {
			e.locked(func() {
				if e.ctx.Err() != nil {
					return
				}
				if e.closing && e.closed == nil && errors.Is(err, mcrdma.ErrClosed) { // that rank knows already that all have called Close
					e.closed = &Error{kind: ErrClosed}
					e.wake()
					return
				}
				why := err.Error()
				if e.peers[id].removed = errors.Is(err, mcrdma.ErrRemoved); e.peers[id].removed {
					why = fmt.Sprintf("it goes on without this rank (%v)", err)
				}
				e.lose(id, why)
			})
			return
		}
		path := core.Multicast
		if r.Unicast {
			path = core.Unicast
		}
		memory := m.Region(0)
		e.locked(func() {
			if err := e.node.Arrived(id, path, memory, r.N, r.Imm); err != nil {
				e.lose(id, err.Error())
			}
		})
	}
}

// close ends all connections. Operations under way end.
func (e *engine) close(ctx context.Context) (err error) {
	e.mu.Lock()
	if e.closed == nil {
		e.closed = &Error{kind: ErrClosed}
	}
	e.wake()
	group := e.group
	for e.announced != nil && ctx.Err() == nil { // the others are to learn first whom this rank has lost
		announced := e.announced
		e.mu.Unlock()
		select {
		case <-announced:
		case <-ctx.Done():
		}
		e.mu.Lock()
	}
	e.mu.Unlock()
	if group != nil {
		if e := group.Close(ctx); ctx.Err() != nil {
			err = e // otherwise it says why the group had ended before, as operations have
		}
	}
	e.cancel()
	var members sync.WaitGroup
	for _, p := range e.peers {
		if p != nil && p.member != nil {
			members.Go(func() { _ = p.member.Close() }) // an error: its memory stays registered, as below
		}
	}
	members.Wait()
	e.wg.Wait()
	for i := range e.lanes { // operations may look into memory until they have ended
		e.lanes[i].busy <- struct{}{}
		<-e.lanes[i].busy
	}
	for _, m := range e.memory {
		err = errors.Join(err, m.Close())
	}
	return err
}
