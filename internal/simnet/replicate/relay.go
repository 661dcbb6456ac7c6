package replicate

import (
	"fmt"
	"slices"

	"github.com/mcrdma/mcrdma/internal/simnet"
	"github.com/mcrdma/mcrdma/pkg/qp"
	"github.com/mcrdma/mcrdma/pkg/rdmcfallback/engine"
	"github.com/mcrdma/mcrdma/pkg/rdmcfallback/schedule"
)

// A relay is a group of RDMC's engines. Blocks go over queue pairs, and so do the messages by which a host says that it is ready
// for one, in the other direction. Other control messages take the time of a small packet on an idle network, and no bandwidth.
type relay struct {
	pending
	s        *simnet.Sim
	hosts    []int
	members  []*engine.Engine
	links    map[[2]int]link // by sender and receiver
	missing  []int           // members that do not have it, by message from the oldest that is not complete
	joined   bool
	early    []int // writes before that
	finished int   // messages that all have
}

// A link has the two ends of the queue pair by which a member sends blocks to another.
type link struct{ from, to *simnet.Endpoint }

func newRelay(s *simnet.Sim, a schedule.Algorithm, block, sender int, receivers []int) (*relay, error) {
	r := &relay{s: s, hosts: append([]int{sender}, receivers...), links: map[[2]int]link{}}
	c := engine.Config{Algorithm: a, BlockSize: block}
	for _, h := range r.hosts {
		c.Members = append(c.Members, s.Name(h))
		if a == schedule.Hybrid {
			c.Racks = append(c.Racks, s.Rack(h))
		}
	}
	for i := range r.hosts {
		c.Self = i
		e, err := engine.New(c)
		if err != nil {
			return nil, err
		}
		r.members = append(r.members, e)
	}
	for i := range r.members {
		r.perform(i)
	}
	return r, nil
}

// link returns the link from a member to another.
func (r *relay) link(from, to int) link {
	key := [2]int{from, to}
	if l, ok := r.links[key]; ok {
		return l
	}
	a, b := r.s.Connect(r.hosts[from], r.hosts[to])
	a.Sent = func(wc *qp.WC) {
		if r.look(wc) {
			r.members[from].Sent(to)
			r.perform(from)
		}
	}
	b.Received = func(wc *qp.WC) {
		if r.look(wc) {
			r.members[to].Received(from, wc.Imm, int(wc.ByteLen))
			r.perform(to)
		}
	}
	b.Sent = func(wc *qp.WC) { r.look(wc) }
	for range simnet.WorkRequests {
		r.keep(a.PostRecv(0))
	}
	a.Received = func(wc *qp.WC) {
		if r.look(wc) {
			r.keep(a.PostRecv(0))
			r.members[from].Ready(to)
			r.perform(from)
		}
	}
	r.links[key] = link{a, b}
	return r.links[key]
}

// perform carries out a member's actions.
func (r *relay) perform(i int) {
	m := r.members[i]
	for {
		a, ok := m.Next()
		if !ok || r.err != nil {
			return
		}
		switch a.Kind {
		case engine.PostRecv:
			in := r.link(a.Peer, i).to
			r.keep(in.PostRecv(m.BlockSize()))
			r.keep(in.Post(qp.OpSendImm, 0, 0)) // ready
		case engine.SendBlock:
			r.keep(r.link(i, a.Peer).from.Post(qp.OpSendImm, a.Span.Len, a.Imm))
		case engine.Tell:
			msg := slices.Clone(a.Msg)
			r.s.At(r.s.Now()+r.s.Delay(r.hosts[i], r.hosts[a.Peer]), func() {
				r.members[a.Peer].Told(i, msg)
				r.perform(a.Peer)
			})
		case engine.Joined:
			if i == 0 {
				r.joined = true
				for _, n := range r.early {
					r.keep(m.Send(int64(n)))
				}
			}
		case engine.Open:
			m.Provide()
		case engine.Complete:
			if i > 0 {
				r.completed(a.Span.Message)
			}
		case engine.Failed:
			r.err = fmt.Errorf("the relay failed: %w", m.Failure())
			return
		}
	}
}

// completed counts a receiver that has a message. Each completes them in order, so the oldest is complete first.
func (r *relay) completed(number int64) {
	at := int(number) - r.finished
	r.missing[at]--
	for len(r.missing) > 0 && r.missing[0] == 0 {
		r.missing = slices.Delete(r.missing, 0, 1)
		r.finished++
		r.finish()
	}
}

// Write implements Set.
func (r *relay) Write(n int, done func()) error {
	root := r.members[0]
	if err := root.CanSend(int64(n)); err != nil {
		return err
	}
	if !r.joined {
		r.early = append(r.early, n)
	} else if err := root.Send(int64(n)); err != nil {
		return err
	}
	r.missing = append(r.missing, len(r.hosts)-1)
	r.list = append(r.list, done)
	r.perform(0)
	return nil
}
