package replica

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/mcrdma/mcrdma/pkg/mcrdma"
	"github.com/mcrdma/mcrdma/pkg/replica/core"
)

// followerEvents are the events of a membership, called in the loop.
type followerEvents interface {
	join(iv core.Interval) bool
	landed(iv core.Interval, i item)
	leaving()
	left(iv core.Interval)
	fail(err error)
}

// following is this node's membership in groups that others lead, at most one at a time. Its
// methods are called in the loop.
type following struct {
	post        func(func()) // to the loop
	events      followerEvents
	ctx         context.Context
	wg          *sync.WaitGroup
	receiving   sync.WaitGroup
	incarnation uint64
	buffers     pool
	size        int64 // of the ring
	alloc       register
	spare       *mcrdma.Memory // a ring that no group writes to
	refused     *counters

	now *membership // nil: there is none
}

// A membership is this node's place in one group.
type membership struct {
	iv     core.Interval
	id     mcrdma.GroupID
	ring   *mcrdma.Memory
	member *mcrdma.Member // nil: the group is not formed yet
	leave  bool
	ctx    context.Context // of waiting for memory
	cancel context.CancelFunc
}

// listen offers the ring to the groups of this volume.
func (f *following) listen(client *mcrdma.Client, service string) error {
	l, err := client.Listen(f.ctx, mcrdma.ListenConfig{Service: service, Accept: f.accept})
	if err != nil {
		return err
	}
	f.wg.Go(func() {
		defer l.Close()
		for {
			m, err := l.Accept(f.ctx)
			if err != nil {
				return
			}
			f.post(func() { f.joined(m) })
		}
	})
	return nil
}

// accept decides whether this node joins a group.
func (f *following) accept(r *mcrdma.Request) (*mcrdma.Grant, error) {
	if len(r.Regions) != 1 || r.Regions[0].Length != uint64(f.size) { //nolint:gosec // not negative
		return nil, fmt.Errorf("the ring of this host has %d bytes: hosts of a volume need the same setting", f.size)
	}
	iv, err := parseRegionName(r.Regions[0].Name)
	if err != nil {
		return nil, err
	}
	var grant *mcrdma.Grant
	done := make(chan struct{})
	f.post(func() {
		grant, err = f.grant(iv, r.Group)
		close(done)
	})
	select {
	case <-done:
		return grant, err
	case <-f.ctx.Done():
		return nil, f.ctx.Err()
	}
}

func (f *following) grant(iv core.Interval, id mcrdma.GroupID) (*mcrdma.Grant, error) {
	if f.now != nil && f.now.member == nil {
		f.leaveGroup(f.now.iv) // that was not formed
	}
	if f.now != nil {
		return nil, errors.New("this host is still a member of another group")
	}
	ring := f.spare
	if f.spare = nil; ring == nil {
		var err error
		if ring, err = f.alloc(int(f.size)); err != nil {
			return nil, err
		}
	}
	if !f.events.join(iv) {
		f.spare = ring
		return nil, fmt.Errorf("this host does not take part in interval %v", iv)
	}
	f.now = &membership{iv: iv, id: id, ring: ring}
	return &mcrdma.Grant{Regions: []mcrdma.Piece{ring.All()}, Receives: make([]mcrdma.Piece, 2*depth), Replenish: true}, nil
}

// joined: a group is formed.
func (f *following) joined(m *mcrdma.Member) {
	n := f.now
	if n == nil || n.id != m.Info().ID || n.member != nil || f.ctx.Err() != nil {
		f.wg.Go(func() { _ = m.Close() }) // it was left before it was formed
		return
	}
	n.member = m
	n.ctx, n.cancel = context.WithCancel(f.ctx)
	f.receiving.Go(func() {
		err := f.receive(n)
		if closed := m.Close(); closed != nil {
			err = fmt.Errorf("the device does not give up the ring, so that an old primary might still write to it: %w; restart this host's program, and see to the device", closed)
			f.post(func() { f.events.fail(err) })
			return
		}
		f.post(func() { f.ended(n) })
	})
}

// receive handles received entries until the membership ends.
func (f *following) receive(n *membership) error {
	if err := n.member.SetCounter(counterIncarnation, f.incarnation); err != nil {
		return err
	}
	told, taken := int64(0), int64(0) // bytes
	for {
		r, err := n.member.Recv(f.ctx)
		if err != nil {
			return err
		}
		i, err := f.take(n.ctx, n.member.Region(0), &r)
		if err != nil {
			return err
		}
		f.post(func() {
			if f.events.landed(n.iv, i); n.leave {
				f.events.leaving()
			}
		})
		if taken += int64(r.N); taken-told >= f.size/16 {
			told = taken
			_ = n.member.SetCounter(counterConsumed, i.Version.Index) // an error: Recv says it too
		}
	}
}

// take copies an entry out of the ring. It counts what is no entry.
func (f *following) take(ctx context.Context, ring []byte, r *mcrdma.Received) (i item, err error) {
	at := int64(r.Imm) * align
	if r.Kind != mcrdma.OpWriteImm || at+int64(r.N) > int64(len(ring)) {
		err = fmt.Errorf("%v of %d bytes at %d of the ring is no entry", r.Kind, r.N, at)
	} else {
		i, err = parseEntry(ring[at:at+int64(r.N)], func(n int) *Buffer {
			b, _ := f.buffers.get(ctx, n) // nil: this host leaves, or has no memory
			return b
		})
	}
	if err != nil && !errors.Is(err, errNoMemory) {
		f.refused.badEntries.Add(1)
	}
	return i, err
}

// durable reports to the leader of a group the last entry that this host has on disk.
func (f *following) durable(iv core.Interval, index uint64) {
	if n := f.now; n != nil && n.iv == iv && n.member != nil {
		_ = n.member.SetCounter(counterDurable, index) // an error: Recv says it too
	}
}

// leaveGroup ends the membership of an interval. All received entries are reported before
// events.left.
func (f *following) leaveGroup(iv core.Interval) {
	n := f.now
	switch {
	case n == nil || n.iv != iv:
		f.events.left(iv)
	case n.member == nil: // the group is not formed, and may or may not be later
		f.now = nil
		f.wg.Go(func() { _ = n.ring.Close() }) // if it is in use, another user frees it when the client ends
		f.events.left(iv)
	case !n.leave:
		n.leave = true
		f.events.leaving()
		f.wg.Go(func() { _ = n.member.Close() }) // then receive ends
	}
}

// discard ends the waiting for memory of a membership that is being left. What it has not received
// then is not reported.
func (f *following) discard() {
	if n := f.now; n != nil && n.leave {
		n.cancel()
	}
}

// ended: nothing more is received, and all received entries have been reported.
func (f *following) ended(n *membership) {
	n.cancel()
	f.now, f.spare = nil, n.ring
	f.events.left(n.iv)
}
