package replicate

import (
	"fmt"
	"slices"
	"time"

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
	members  []*member
	links    map[[2]int]*simnet.Endpoint
	later    []func() // control messages under way, by the timer's argument
	unused   []int
	timer    simnet.Timer
	missing  []int // members that do not have it, by message from the oldest that is not complete
	joined   bool
	early    []int // writes before that
	finished int   // messages that all have
}

type member struct {
	*engine.Engine
	block int
}

func newRelay(s *simnet.Sim, a schedule.Algorithm, block, sender int, receivers []int) (*relay, error) {
	r := &relay{s: s, hosts: append([]int{sender}, receivers...), links: map[[2]int]*simnet.Endpoint{}}
	r.timer = s.Timer(func(_ time.Duration, i int) {
		do := r.later[i]
		r.later[i] = nil
		r.unused = append(r.unused, i)
		do()
	})
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
		r.members = append(r.members, &member{Engine: e, block: e.BlockSize()})
	}
	for i := range r.members {
		r.perform(i)
	}
	return r, nil
}

// after has something done when a small message from one member to another has arrived.
func (r *relay) after(from, to int, do func()) {
	i := len(r.later)
	if n := len(r.unused); n > 0 {
		i = r.unused[n-1]
		r.unused = r.unused[:n-1]
		r.later[i] = do
	} else {
		r.later = append(r.later, do)
	}
	r.s.At(r.s.Now()+r.s.Delay(r.hosts[from], r.hosts[to]), r.timer, i)
}

// link is the queue pair by which a member sends blocks to another.
func (r *relay) link(from, to int) *simnet.Endpoint {
	key := [2]int{from, to}
	if e := r.links[key]; e != nil {
		return e
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
	r.links[key] = a
	r.links[[2]int{-1 - from, to}] = b
	return a
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
			r.link(a.Peer, i)
			in := r.links[[2]int{-1 - a.Peer, i}]
			r.keep(in.PostRecv(m.block))
			r.keep(in.Post(qp.OpSendImm, 0, 0)) // ready
		case engine.SendBlock:
			r.keep(r.link(i, a.Peer).Post(qp.OpSendImm, a.Span.Len, a.Imm))
		case engine.Tell:
			msg := slices.Clone(a.Msg)
			r.after(i, a.Peer, func() {
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
